"""Two machines and a third for what they share: network namespaces, joined by wires, of this one machine.

On the third are PostgreSQL, Redis and the sites that modules want to reach; on each of the two is a node with all that
the kernel has, its own packet filter and its own helper. The tests reach a node where it listens, on its own loopback.
"""

from __future__ import annotations

import re
import selectors
import socket
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx

from tests.console.serving import PLAIN, ROOT, SAME_ORIGIN, Served, merge
from tests.kernel.netlab import Namespace
from tests.services import places
from tests.services.commands import prepared
from tests.services.postgres import PostgresServer, find_programs
from tests.services.redis import RedisServer

SHARED = "10.78.0.1"
NAMES = ("one", "two")
PROBE = Path(__file__).with_name("probe")
EVERYTHING = {
    "sandbox": {
        "poll_seconds": 1.0,
        "os": {"enabled": True, "require": True, "landlock": {"enabled": True}, "seccomp": {"enabled": True}},
    },
}


class Node(Served):
    """A process that serves in a namespace of its own. People are made past it, by the socket of the database."""

    def __init__(self, folder, config, space, own_url, **more):
        self.space = space
        self._own_url = own_url
        prepared()  # which is not to be in the namespace
        with space.entered():
            super().__init__(folder, config, **more)

    def start(self):
        with self.space.entered():
            super().start()

    @property
    def accounts(self):
        from democrai_sandbox.access.store import open_store
        from democrai_sandbox.host.accounts.accounts import Accounts
        from democrai_sandbox.host.config import load

        if self._accounts is None:
            settings = replace(load(self.file, environ={}).settings, database=self._own_url)
            store = open_store(settings.database)
            self._accounts = (store, Accounts(store.database, settings))
        return self._accounts[1]

    def client(self, **more):
        inside = _Inside(self.space)
        return httpx.Client(base_url=self.url, timeout=60, headers=SAME_ORIGIN, transport=inside, **PLAIN, **more)

    def bearer(self, person, *scopes):
        return self.by_token(self.token(person, *scopes))

    def by_token(self, token):
        """A program that has a token, on the API of this node."""
        client = self.client()
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    def readiness(self):
        """The checks of /health/ready, with its status; None while nobody answers."""
        try:
            with self.client() as client:
                answer = client.get("/health/ready")
        except httpx.HTTPError:
            return None
        return answer.json()["checks"] | {"status": answer.status_code}

    def fetch(self, client, url):
        """Have the module probe fetch something on this node."""
        return client.post("/api/v1/modules/probe/actions/fetch", json={"params": {"url": url}})


class _Inside(httpx.HTTPTransport):
    """Makes its connections in a namespace, on whichever thread it is asked."""

    def __init__(self, space):
        super().__init__(**PLAIN)
        self._space = space

    def handle_request(self, request):
        with self._space.entered():
            return super().handle_request(request)


class Sites:
    """Web servers at many ports of one address, on one thread; ``asked`` has who came for which path at which port.

    Who comes first for a path in ``held`` waits without an answer; later ones get theirs.
    """

    def __init__(self, address, count):
        self.asked = []
        self.held = set()
        self._kept = []
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_server((address, 0), backlog=64) for _ in range(count)]
        self.ports = [one.getsockname()[1] for one in self._sockets]
        self.urls = [f"http://{address}:{port}" for port in self.ports]
        for one in self._sockets:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, self._accept)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self):
        self._ending.set()
        self._thread.join(10)
        for one in (*(key.fileobj for key in self._selector.get_map().values()), *self._kept):
            one.close()
        self._selector.close()

    def let_go(self):
        """Hang up on those that wait without an answer."""
        while self._kept:
            self._kept.pop().close()

    def _serve(self):
        while not self._ending.is_set():
            for key, _ in self._selector.select(0.2):
                with suppress(OSError):
                    key.data(key.fileobj)

    def _accept(self, listener):
        connection, _ = listener.accept()
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, self._answer)

    def _answer(self, connection):
        self._selector.unregister(connection)
        words = connection.recv(65536).split(b" ")
        path = words[1].decode() if len(words) > 1 else ""
        if path in self.held:
            self.held.discard(path)
            self._kept.append(connection)
            self.asked.append((connection.getsockname()[1], path))
            return
        with connection:
            if path:
                self.asked.append((connection.getsockname()[1], path))
                body = words[1]
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)


class Cluster:
    """What the two nodes share, and ways to start and stop one."""

    def __init__(self, sites=1):
        self._stack = ExitStack()
        self._sites = sites
        self.nodes = {}

    def __enter__(self):
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-", dir=places.SHORT)))
            self.shared = Namespace(SHARED, "")
            stack.callback(self.shared.close)
            self.shared.run(["ip", "-batch", "-"], input=f"link set lo up\naddress add {SHARED}/32 dev lo\n")
            self.spaces = {name: self._machine(stack, number) for number, name in enumerate(NAMES, 1)}
            self._services(stack)
            with self.shared.entered():
                self.sites = Sites(SHARED, self._sites)
            stack.callback(self.sites.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        for node in self.nodes.values():
            with suppress(Exception):
                node.stop()
        self._stack.close()

    def _machine(self, stack, number):
        near, far = f"10.78.{number}.2", f"10.78.{number}.1"
        space = Namespace(near, "")
        stack.callback(space.close)
        self.shared.run(
            ["ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "wire", "netns", space.path]
        )
        lines = f"address add {far}/24 dev to{number}\nlink set to{number} up\n"
        self.shared.run(["ip", "-batch", "-"], input=lines)
        lines = f"link set lo up\naddress add {near}/24 dev wire\nlink set wire up\nroute add default via {far}\n"
        space.run(["ip", "-batch", "-"], input=lines)
        return space

    def _services(self, stack):
        (self.folder / "redis").mkdir()
        self.postgres = PostgresServer(find_programs(), address=SHARED)
        stack.callback(self.postgres.remove)
        self.redis = RedisServer(self.folder / "redis", password="between-us", address=SHARED)
        stack.callback(self.redis.stop)
        with self.shared.entered():
            self.postgres.start()
            self.redis.start()
        self.own_url = self.postgres.new_database()

    @property
    def url(self):
        """The database as the nodes reach it."""
        name = self.own_url.partition("@/")[2].partition("?")[0]
        return f"postgresql://postgres@{SHARED}:5432/{name}"

    def node(self, name, config=None, **more):
        """Start a node, or start it anew with another configuration; the second gets the keys of the first."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if name not in self.nodes:
            self._furnish(folder)
        wanted = {
            "modules_path": str(folder / "modules"),
            "database": {"url": self.url},
            "network": {"stream": {"type": "redis", "url": self.redis.url}},
        }
        for part in (EVERYTHING, config or {}):
            merge(wanted, part)
        node = Node(folder, wanted, self.spaces[name], self.own_url, extensions=False, **more)
        if first := next(iter(self.nodes.values()), None):
            node.admin, node.password = first.admin, first.password
        self.nodes[name] = node
        return node

    def _furnish(self, folder):
        (folder / "modules" / "probe").mkdir(parents=True)
        for file in PROBE.iterdir():
            if file.is_file():
                (folder / "modules" / "probe" / file.name).write_text(file.read_text())
        (folder / "state").mkdir(mode=0o700)
        if first := next(iter(self.nodes.values()), None):
            keys = folder / "state" / "keys"
            keys.touch(0o600)
            keys.write_text((first.folder / "state" / "keys").read_text())

    def rules(self, name):
        """The packet filter of a machine, as text."""
        return self.spaces[name].rules()


def as_in_the_unit():
    """The command that leaves a process the rights which the unit of systemd leaves it, and what it starts as root."""
    unit = (ROOT / "deploy" / "systemd" / "democrai-sandbox.service").read_text()
    listed = re.search(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)[1].lower().split()
    return ("setpriv", "--bounding-set=-all" + "".join(f",+{name.removeprefix('cap_')}" for name in listed))


@contextmanager
def two_nodes(*, sites=1, config=None):
    """Give a cluster whose two nodes serve; the second with the rights of its unit, and the module in a worker."""
    with Cluster(sites) as cluster:
        for name in NAMES:
            isolation = {"sandbox": {"isolation": {"module:probe": "process"}}} if name == "two" else {}
            merge(isolation, config or {})
            cluster.node(name, isolation, command=as_in_the_unit() if name == "two" else ())
        yield cluster
