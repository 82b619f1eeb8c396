"""Shared fixtures of the console tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console import shared_server
from tests.console.shared_server import served  # a fixture, found by its name
from tests.services.marks import mark_below

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run these on the default interpreter only; the guard tests cover the others."""
    mark_below(__file__, items, pytest.mark.once)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem):
    """Stop the server after the last console test."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            shared_server.close()
