"""The kernel is the same for every interpreter: these tests run on the default one only."""

from __future__ import annotations

import pytest

from tests.services.marks import mark_below


def pytest_collection_modifyitems(items):
    mark_below(__file__, items, pytest.mark.once)
