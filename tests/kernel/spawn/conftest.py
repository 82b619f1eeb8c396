"""Fixtures of the spawn server's tests."""

from __future__ import annotations

import sys

import pytest

from democrai_sandbox.kernel.spawn import SpawnServer
from tests.services.marks import mark_below


def pytest_collection_modifyitems(items):
    mark_below(__file__, items, pytest.mark.skipif(sys.platform != "linux", reason="the spawn server is for Linux"))


@pytest.fixture(scope="module")
def server():
    """Server shared by the tests of one file."""
    found = SpawnServer.start()
    yield found
    found.stop()


@pytest.fixture
def own_server():
    """Server that a test may break."""
    found = SpawnServer.start()
    yield found
    found.stop()
