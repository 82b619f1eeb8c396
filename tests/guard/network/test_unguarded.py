"""Unguarded code is not affected by guards in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.network.clients import CLIENTS

pytestmark = pytest.mark.once  # does not depend on the interpreter

CLIENT_FILE = str(Path(__file__).with_name("clients.py"))


def beside(world):
    """Use the network as the host while a subject is guarded in another thread."""
    import socket
    import threading

    clients = world.load(world.args[0])["CLIENTS"]
    entered, leave = threading.Event(), threading.Event()
    seen = {"subject": []}

    def subject():
        seen["subject"].append(outcome(dial, world.address("tcp")))
        entered.set()
        leave.wait(30)
        seen["subject"].append(outcome(dial, world.address("tcp")))

    thread = threading.Thread(target=lambda: world.guard().run(subject))
    thread.start()
    entered.wait(10)
    seen["clients"] = {
        f"{client} {form}": status(recipe(world.places["ca"]), method, world.url(place, "/any"))
        for client, forms in clients.items()
        for form, recipe in forms.items()
        for place in ("http", "https")
        for method in ("GET", "POST")
    }
    seen["sockets"] = outcomes(
        {
            "tcp": lambda: dial(world.address("tcp")),
            "udp": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", world.address("udp")) and None,
            "unix": lambda: unix(world.places["unix"]),
            "lookup": lambda: socket.getaddrinfo("localhost", 80) and None,
            "odd lookup": lambda: socket.gethostbyname("127.1"),
            "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
            "connect_ex": lambda: connect_ex(world.args[1]),
            "listen": lambda: socket.create_server(("0.0.0.0", 0)).close(),
        }
    )
    leave.set()
    thread.join()
    return seen


def dial(address):
    import socket

    socket.create_connection(address, timeout=5).close()


def unix(path):
    import socket

    with socket.socket(socket.AF_UNIX) as made:
        made.connect(path)


def connect_ex(port):
    """A refused connection is an errno for the host, as usual."""
    import errno
    import socket

    with socket.socket() as made:
        return errno.errorcode[made.connect_ex(("127.0.0.1", port))]


def status(fetch, method, url):
    answer = fetch(method, url, b"" if method == "POST" else None)
    return (run_async(answer) if hasattr(answer, "__await__") else answer)[0]


def on_one_loop(world):
    """Run guarded and unguarded tasks on one loop, in turn on the same client."""
    import asyncio

    import aiohttp
    import httpx2

    url = world.url("http", "/any")

    async def get(client):
        if isinstance(client, aiohttp.ClientSession):
            async with client.get(url) as response:
                return response.status
        return (await client.get(url)).status_code

    async def guarded(client):
        async with world.guard():
            await asyncio.sleep(0)
            try:
                return await get(client)
            except Exception as error:
                return tell(error)

    async def main():
        seen = {}
        async with httpx2.AsyncClient() as one, aiohttp.ClientSession() as other:
            for name, client in {"httpx2": one, "aiohttp": other}.items():
                turns = [work(client) for _ in range(10) for work in (get, guarded)]
                results = await asyncio.gather(*turns)
                seen[name] = [sorted(map(str, set(results[0::2]))), sorted(map(str, set(results[1::2])))]
        return seen

    return asyncio.run(main())


def sequence(world):
    """Make the same calls before, between and after guards, with a pool of the host."""
    import requests

    session = requests.Session()
    url = world.url("http", "/any")
    seen = []
    for _ in range(3):
        seen.append(session.get(url).json()["peer"])
        seen.append(world.guard().run(outcome, lambda: session.get(url)))
    seen.append(session.get(url).json()["peer"])
    return seen


def leftovers(world):
    """Use and close, as the host, sockets that a subject left behind."""
    made = []

    def subject():
        import socket

        made.append(socket.create_connection(world.address("tcp"), timeout=5))

    world.guard(rule(world.at("tcp"), "connect")).run(subject)
    with made[0] as left:
        left.sendall(b"mine now")
        return left.recv(16).decode()


def signatures(world):
    """Return names and parameters of changed functions, with and without the guard."""
    import http.client
    import inspect
    import socket
    import urllib.request

    if world.guarded:
        import democrai_sandbox.guard
    things = (socket.getaddrinfo, socket.create_connection, http.client.HTTPConnection.request, urllib.request.urlopen)
    return {thing.__qualname__: list(inspect.signature(thing).parameters) for thing in things}


class TestBesideAGuard:
    def test_every_client_and_every_socket_works(self, net, free_port):
        """A subject without rights runs in another thread meanwhile."""
        seen = net.run(beside, CLIENT_FILE, free_port)
        assert seen["subject"] == [f"denied connect 127.0.0.1:{net.places['tcp'][1]}"] * 2
        assert {name: code for name, code in seen["clients"].items() if code != 200} == {}
        assert len(seen["clients"]) == sum(map(len, CLIENTS.values()))
        assert seen["sockets"].pop("connect_ex") == "ECONNREFUSED"
        assert seen["sockets"].pop("odd lookup") == "127.0.0.1"
        assert set(seen["sockets"].values()) == {"ok"}, seen["sockets"]

    def test_tasks_on_one_loop(self, net):
        """Guarded and unguarded tasks interleave on the same client; each has its own result."""
        denied = f"denied receive http://127.0.0.1:{net.places['http'][1]}/any"
        assert net.run(on_one_loop) == {"httpx2": [["200"], [denied]], "aiohttp": [["200"], [denied]]}

    def test_the_hosts_pool_lives_through_guards(self, net):
        """It keeps its connection while guarded code is refused the same request."""
        seen = net.run(sequence)
        assert len(set(seen[0::2])) == 1
        assert set(seen[1::2]) == {f"denied receive http://127.0.0.1:{net.places['http'][1]}/any"}

    def test_what_a_subject_leaves_behind_is_the_hosts(self, net):
        """A connection created inside a guard works outside it."""
        assert net.run(leftovers) == "mine now"


def test_patched_callables_look_the_same(net):
    """Introspection shows what the standard library documents."""
    assert net.run(signatures) == net.run(signatures, guarded=False)
