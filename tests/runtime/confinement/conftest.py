"""The kernel is the same for every interpreter: these run on the default one only."""

from __future__ import annotations

import pytest

from tests.services.forks import RuntimeCase as Case
from tests.services.marks import mark_below


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_below(__file__, items, pytest.mark.once)


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)
