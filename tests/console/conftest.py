"""What the tests of the console share."""

from __future__ import annotations

import pytest

from tests.console.serving import served  # a fixture, found by its name
from tests.services.marks import mark_below


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run these on the default interpreter only: what the interpreter changes is tested with the guard."""
    mark_below(__file__, items, pytest.mark.once)
