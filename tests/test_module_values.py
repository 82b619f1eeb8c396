"""Values of modules that guarded code in the same process could change."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).parents[1] / "src/democrai_sandbox"


def partial_objects(path):
    """Yield the names that a module binds to partial objects."""
    for node in ast.parse(path.read_text()).body:
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == "partial":
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_modules_of_the_host_have_no_partial_objects():
    """``functools.partial.__setstate__`` replaces the function. The command line has no subject in its process."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "cli"]
    assert [name for path in paths for name in partial_objects(path)] == []
