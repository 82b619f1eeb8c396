"""Deployments are the same for every interpreter: their tests run on the default one only."""

from __future__ import annotations

import pytest

from tests.services.marks import mark_below


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_below(__file__, items, pytest.mark.once)
