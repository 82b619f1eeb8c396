"""Pools: an idle connection belongs to the subject that opened it."""

from __future__ import annotations

import pytest


def pools(world):
    """Use one client of the host by the host and two subjects in turn; return the connection each time."""
    url = world.url("http", "/allowed")
    fetch = SHARED[world.args[0]](world)
    allowed = rule(url, "receive", "send")

    def as_who(who):
        return fetch(url) if who == "host" else world.guard(allowed, subject=who).run(fetch, url)

    return [[who, as_who(who)] for who in ("host", "first", "first", "second", "host", "first", "second")]


def at_once(world):
    """Share one client between several subjects in threads; each may fetch its page and tries its neighbor's."""
    import threading

    fetch = SHARED[world.args[0]](world)
    number = 6
    seen = [[] for _ in range(number)]

    def subject(mine):
        for turn in range(12):
            page = (mine + turn % 2) % number
            try:
                fetch(world.url("http", f"/page{page}"))
                verdict = "ok"
            except Exception as error:
                verdict = tell(error).rpartition("/")[2]
            seen[mine].append(verdict)

    def run(mine):
        world.guard(rule(world.url("http", f"/page{mine}"), "receive"), subject=f"s{mine}").run(subject, mine)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def shared_requests(world):
    import requests

    session = requests.Session()
    return lambda url: session.get(url, timeout=5).json()["peer"]


def shared_urllib3(world):
    import urllib3

    pool = urllib3.PoolManager()
    return lambda url: pool.request("GET", url).json()["peer"]


def shared_httpx(world, library="httpx"):
    client = __import__(library).Client(verify=False)
    return lambda url: client.get(url).json()["peer"]


def shared_httpx2(world):
    return shared_httpx(world, "httpx2")


def shared_async(library):
    """Use a client on a loop of the host; each fetch is a task there, created by its caller."""

    def make(world):
        import asyncio

        module, loop = __import__(library), asyncio.new_event_loop()
        if library == "aiohttp":

            async def opened():
                return module.ClientSession()

            client = loop.run_until_complete(opened())

            async def fetch(url):
                async with client.get(url) as response:
                    return (await response.json())["peer"]
        else:
            client = module.AsyncClient(verify=False)

            async def fetch(url):
                return (await client.get(url)).json()["peer"]

        return lambda url: loop.run_until_complete(fetch(url))

    return make


SHARED = {
    "requests": shared_requests,
    "urllib3": shared_urllib3,
    "httpx": shared_httpx,
    "httpx2": shared_httpx2,
    "httpx async": shared_async("httpx"),
    "httpx2 async": shared_async("httpx2"),
    "aiohttp": shared_async("aiohttp"),
}


class TestPools:
    @pytest.mark.once  # test_adapters.py shows it on each interpreter
    @pytest.mark.parametrize("client", SHARED)
    def test_connections_are_not_shared_between_subjects(self, net, client):
        """With one shared client object, the host and each subject have and reuse separate connections."""
        seen = net.run(pools, client, loaded=True)
        peers = {who: {peer for one, peer in seen if one == who} for who in ("host", "first", "second")}
        assert not peers["host"] & peers["first"]
        assert not peers["host"] & peers["second"]
        assert not peers["first"] & peers["second"]
        in_a_row = [peer for who, peer in seen if who == "first"][:2]
        assert in_a_row[0] == in_a_row[1]

    @pytest.mark.parametrize("client", ["requests", "urllib3", "httpx", "httpx2"])
    def test_subjects_at_once_do_not_get_in_each_others_way(self, net, client):
        """Every subject always gets its page, and never its neighbor's."""
        for mine, verdicts in enumerate(net.run(at_once, client, loaded=True)):
            assert verdicts == ["ok", f"page{(mine + 1) % 6}"] * 6

    @pytest.mark.once  # concerns the clients alone
    @pytest.mark.parametrize("client", SHARED)
    def test_without_a_guard_they_are(self, net, client):
        """The client does pool; otherwise the test above would show nothing."""
        assert len({peer for _, peer in net.run(pools, client, guarded=False, loaded=True)}) == 1
