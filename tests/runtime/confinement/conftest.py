"""The kernel is the same for every interpreter: these run on the default one only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.forks import RuntimeCase as Case

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.once)


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)
