"""What the tests of the runtimes share."""

from __future__ import annotations

from pathlib import Path

import pytest

ONCE = {"children", "engines", "installs", "mcp", "media", "store", "tasks"}
"""Parts that stand on processes, sockets and the store; what the interpreter changes is tested with the guard."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run those parts on the default interpreter only."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in ONCE:
            item.add_marker(pytest.mark.once)
