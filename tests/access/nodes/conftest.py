"""PostgreSQL, Redis, a web server on loopback, and nodes that use them."""

from __future__ import annotations

import http.server
import itertools
import shutil
import threading

import pytest

from tests.access.nodes.processes import NodeProcess
from tests.services.postgres import postgres_server
from tests.services.redis import RedisServer

_channels = itertools.count()


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def website():
    """Address of a loopback server that answers every request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Nodes:
    """Factory of nodes over one store and one bus, which stops them at the end."""

    def __init__(self, **settings):
        self.settings = settings
        self.all = []

    def start(self, number=2):
        """Start several nodes and return them when all respond."""
        started = [NodeProcess(self.settings) for _ in range(number)]
        self.all += started
        return [node.wait_until_started() for node in started]

    def close(self):
        for node in self.all:
            node.kill()


def over_network(database, redis):
    """Settings of nodes on several machines."""
    bus = {"url": redis.url, "channel": f"nodes-{next(_channels)}"}
    return {"store": database, "bus": "redis", "bus_settings": bus}


def on_one_host(folder, prepared_file):
    """Settings of nodes on one machine without additional servers."""
    shutil.copy(prepared_file, folder / "access.db")
    bus = {"folder": str(folder / "events"), "channel": "nodes"}
    return {"store": f"sqlite:///{folder}/access.db", "bus": "ipc", "bus_settings": bus}


@pytest.fixture
def settings(postgres, pattern, redis):
    """Settings of nodes on several machines, whose servers a test may stop."""
    return over_network(postgres.new_database(like=pattern), redis)


@pytest.fixture(scope="module", params=["postgresql and redis", "sqlite and ipc"])
def pair(request, tmp_path_factory):
    """Two nodes for all tests of a module. They hardly ever poll, so timely changes arrived by an event."""
    if request.param == "sqlite and ipc":
        settings = on_one_host(tmp_path_factory.mktemp("host"), request.getfixturevalue("prepared_file"))
    else:
        postgres, pattern, redis = map(request.getfixturevalue, ("postgres", "pattern", "redis"))
        settings = over_network(postgres.new_database(like=pattern), redis)
    nodes = Nodes(**settings, poll=60)
    try:
        yield nodes.start()
    finally:
        nodes.close()


@pytest.fixture
def nodes_over(request):
    """Return a factory of nodes that a test may stop."""
    made = []

    def make(settings):
        made.append(Nodes(**settings))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()
