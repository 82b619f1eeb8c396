"""Fixtures of the network tests: real servers on loopback, and a namespace in which names can be forged."""

from __future__ import annotations

import socket

import pytest

from tests.guard.network.harness import NetCase, Town, TownCase, why_no_namespaces
from tests.guard.network.servers.bed import Bed


@pytest.fixture(scope="session")
def bed(tmp_path_factory):
    """The servers, once for all tests of this process."""
    with Bed(tmp_path_factory.mktemp("bed")) as running:
        yield running


@pytest.fixture
def net(tmp_path, bed):
    """A private world next to the servers."""
    return NetCase(tmp_path, bed)


@pytest.fixture(scope="session")
def namespace(tmp_path_factory):
    """A network namespace with its own servers and names, once for all tests of this process."""
    if reason := why_no_namespaces():
        pytest.skip(reason)
    running = Town(tmp_path_factory.mktemp("town"))
    yield running
    running.close()


@pytest.fixture
def town(tmp_path, namespace):
    """A private world in which every address and every name leads to the servers of the test."""
    return TownCase(tmp_path, namespace)


@pytest.fixture
def free_port():
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
