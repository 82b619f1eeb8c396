"""What the tests of the console share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.serving import served  # a fixture, found by its name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run these on the default interpreter only: what the interpreter changes is tested with the guard."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.once)
