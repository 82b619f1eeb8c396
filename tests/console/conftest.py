"""What the tests of the console share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console import sharing
from tests.console.sharing import served  # a fixture, found by its name
from tests.services.marks import mark_below

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run these on the default interpreter only: what the interpreter changes is tested with the guard."""
    mark_below(__file__, items, pytest.mark.once)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """End the server with the last test of the console: other tests are not to run beside it."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            sharing.close()
