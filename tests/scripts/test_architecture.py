"""The diagram of the packages is that of the import contract."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "architecture.py"))


def test_the_diagram_is_current():
    """``python scripts/architecture.py docs/architecture.svg`` writes it."""
    assert (ROOT / "docs" / "architecture.svg").read_text() == SCRIPT["drawing"](SCRIPT["layers"]())


def test_every_package_is_in_the_diagram():
    """Each has a purpose, and a row of the contract."""
    source = ROOT / "src" / "democrai_sandbox"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    assert {name for row in SCRIPT["layers"]() for name in row} == packages
