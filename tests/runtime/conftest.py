"""What the tests of the runtimes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.marks import mark_below

ONCE = {"children", "engines", "installs", "mcp", "media", "store", "tasks"}
"""Parts that stand on processes, sockets and the store; what the interpreter changes is tested with the guard."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run those parts on the default interpreter only."""
    for part in ONCE:
        mark_below(Path(__file__).with_name(part) / "conftest.py", items, pytest.mark.once)
