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
    """A server that the tests of one file share."""
    found = SpawnServer.start()
    yield found
    found.stop()


@pytest.fixture
def own_server():
    """A server that a test may break."""
    found = SpawnServer.start()
    yield found
    found.stop()
