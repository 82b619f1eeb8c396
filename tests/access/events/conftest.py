"""Fixtures that open the three kinds of bus in the same way."""

from __future__ import annotations

import itertools
import threading

import pytest

from democrai_sandbox.access.events import open_bus
from tests.access.events.nodes import NodeProcess
from tests.services.redis import RedisServer

_channels = itertools.count()


class Buses:
    """Factory of connected buses of one kind, which stops them at the end."""

    def __init__(self, kind, settings):
        self.kind = kind
        self.settings = settings
        self._opened = []
        self._processes = []

    def open(self, **settings):
        bus = open_bus(self.kind, **{**self.settings, **settings})
        self._opened.append(bus)
        return bus

    def process(self, **settings):
        node = NodeProcess(self.kind, {**self.settings, **settings})
        self._processes.append(node)
        return node

    def close(self):
        for bus in self._opened:
            bus.stop()
        for node in self._processes:
            if node.process.poll() is None:
                node.kill()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path):
    """Redis server that a test may kill."""
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()


@pytest.fixture
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("events")]
    assert left == []


@pytest.fixture
def opened(no_thread_stays):
    """Return the factory of one kind."""
    made = []

    def make(kind, **settings):
        buses = Buses(kind, {"channel": f"test-{next(_channels)}", **settings})
        made.append(buses)
        return buses

    yield make
    for buses in made:
        buses.close()


@pytest.fixture
def ipc(opened, tmp_path):
    return opened("ipc", folder=str(tmp_path / "events"))


@pytest.fixture(params=["memory", "ipc", "redis"])
def buses(request, opened, tmp_path):
    """Buses of each kind in turn."""
    if request.param == "memory":
        return opened("memory")
    if request.param == "ipc":
        return request.getfixturevalue("ipc")
    return opened("redis", url=request.getfixturevalue("redis_server").url)
