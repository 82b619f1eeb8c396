"""The hand-over: a permitted request opens the one connection it needs, where it needs it and while it lasts."""

from __future__ import annotations

import pytest

CLIENT_FILE = __file__.replace("test_hand_over.py", "clients.py")


def dial(address, timeout=5):
    """Connect, and say who is there."""
    import socket

    with socket.create_connection(address, timeout=timeout) as made:
        return f"{made.getpeername()[0]}:{made.getpeername()[1]}"


def tickets(world):
    """What an open ticket lets through, and what it does not."""
    import socket

    from democrai_sandbox.guard import _core

    here, port = world.address("http")
    url = world.url("http", "/allowed")

    def datagram():
        with socket.socket(type=socket.SOCK_DGRAM) as made:
            made.sendto(b"leak", (here, port))

    def inside():
        with _core.request("GET", f"{url}/page"):
            return outcomes(
                {
                    "its own": lambda: dial((here, port)),
                    "again": lambda: dial((here, port)),
                    "other port": lambda: dial(world.address("other")),
                    "other address": lambda: dial(("127.0.0.2", port)),
                    "datagram": datagram,
                    "raw send": lambda: raw_bytes(world, "http", b"leak\r\n\r\n"),
                }
            )

    def nested():
        with _core.request("GET", url), _core.request("GET", world.url("other", "/allowed")):
            return outcomes({"inner": lambda: dial(world.address("other")), "outer": lambda: dial((here, port))})

    def after_inner():
        with _core.request("GET", url):
            with _core.request("GET", world.url("other", "/allowed")):
                pass
            return outcomes({"outer": lambda: dial((here, port)), "inner": lambda: dial(world.address("other"))})

    def subject():
        seen = {"before": outcome(dial, (here, port)), "inside": inside(), "after": outcome(dial, (here, port))}
        seen["nested"], seen["after inner"] = nested(), after_inner()
        seen["denied"] = outcome(_core.request, "GET", world.url("http", "/other"))
        seen["after denied"] = outcome(dial, (here, port))
        ticket = _core.request("GET", url)
        seen["not entered"] = outcome(dial, (here, port))
        del ticket
        return seen

    rules = [rule(url, "receive"), rule(world.url("other", "/allowed"), "receive")]
    seen = world.guard(*rules).run(subject)
    return {**seen, "unguarded": _core.request("GET", url) is None}


def raw_bytes(world, place, data):
    """Connect and send these bytes."""
    import socket

    with socket.create_connection(world.address(place), timeout=5) as made:
        made.sendall(data)
        made.settimeout(1)
        return made.recv(100).decode("latin-1").partition("\r\n")[0]


def carried(world):
    """Who carries an open ticket: what is started inside it. What was started before, or lives longer, does not."""
    import asyncio
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from democrai_sandbox.guard import _core

    address, url = world.address("http"), world.url("http", "/allowed")

    def in_thread(go=None):
        box = []
        thread = threading.Thread(target=lambda: box.append((go and go.wait(5), outcome(dial, address))[1]))
        thread.start()
        return thread, box

    def plain():
        early, late = threading.Event(), threading.Event()
        before, before_box = in_thread(early)
        with ThreadPoolExecutor(1) as old:
            old.submit(int).result()
            with _core.request("GET", url):
                inside, inside_box = in_thread()
                inside.join()
                pooled = old.submit(outcome, dial, address).result()
                with ThreadPoolExecutor(1) as new:
                    fresh = new.submit(outcome, dial, address).result()
                early.set()
                before.join()
                outliving, outliving_box = in_thread(late)
            late.set()
            outliving.join()
            stale = old.submit(outcome, dial, address).result()
        return {
            "thread": inside_box[0],
            "new pool": fresh,
            "old pool": pooled,
            "old pool, afterwards": stale,
            "thread from before": before_box[0],
            "thread that outlives it": outliving_box[0],
        }

    async def connected():
        try:
            _, writer = await asyncio.open_connection(*address)
        except Exception as error:
            return tell(error)
        writer.close()
        return "{}:{}".format(*address)

    async def waiting(event):
        await event.wait()
        return await connected()

    async def on_loop():
        early, late = asyncio.Event(), asyncio.Event()
        before = asyncio.create_task(waiting(early))
        await asyncio.sleep(0)
        with _core.request("GET", url):
            inside = await asyncio.create_task(connected())
            eyeballs = await asyncio.gather(connected(), connected())
            executor = await asyncio.to_thread(outcome, dial, address)
            early.set()
            earlier = await before
            outliving = asyncio.create_task(waiting(late))
            await asyncio.sleep(0)
        late.set()
        return {
            "task": inside,
            "tasks": sorted(set(eyeballs)),
            "to_thread": executor,
            "task from before": earlier,
            "task that outlives it": await outliving,
            "after": await connected(),
        }

    def subject():
        import uvloop

        seen = {"plain": plain(), "asyncio": asyncio.run(on_loop())}
        return {**seen, "uvloop": run_async(on_loop(), uvloop.new_event_loop)}

    return world.guard(rule(url, "receive")).run(subject)


def others(world):
    """A ticket in the hands of another subject, or of nobody."""
    from democrai_sandbox.guard import _core

    address, url = world.address("http"), world.url("http", "/allowed")
    ticket = world.guard(rule(url, "receive")).run(_core.request, "GET", url)

    def use():
        try:
            with ticket:
                return dial(address)
        except Exception as error:
            return tell(error)

    return {"other": world.guard(subject="other").run(use), "host": use()}


def wire(world):
    """What may be sent on a connection that a ticket opened, byte for byte; the sink keeps what arrives."""
    import socket

    from democrai_sandbox.guard import _core

    home = world.url("sink")
    host = world.at("sink").encode()

    def head(method, path, *more, name=host):
        return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: " + name, *more, b"", b""])

    allowed = head(b"GET", b"/allowed")
    payloads = {
        "allowed": [allowed],
        "allowed, below": [head(b"GET", b"/allowed/x?y=/secret")],
        "allowed, in pieces": [allowed[:3], allowed[3:20], allowed[20:]],
        "allowed, twice": [allowed, allowed],
        "allowed, pipelined": [allowed * 2],
        "allowed, body": [head(b"POST", b"/post", b"Content-Length: 4") + b"body"],
        "other path": [head(b"GET", b"/secret")],
        "other path, in pieces": [head(b"GET", b"/secret")[:6], head(b"GET", b"/secret")[6:]],
        "other path, second": [allowed, head(b"GET", b"/secret")],
        "other path, pipelined": [allowed + head(b"GET", b"/secret")],
        "other method": [head(b"POST", b"/allowed", b"Content-Length: 0")],
        "other host": [head(b"GET", b"/allowed", name=b"evil.example.com")],
        "absolute": [head(b"GET", b"http://evil.example.com/allowed")],
        "body then request": [head(b"POST", b"/post", b"Content-Length: 0") + head(b"GET", b"/secret")],
        "climbing": [head(b"GET", b"/allowed/../secret")],
        "not HTTP": [b"EHLO evil\r\n"],
    }

    def play(pieces):
        with _core.request("GET", f"{home}/allowed"), socket.create_connection(world.address("sink"), 5) as made:
            for piece in pieces:
                made.sendall(piece)
            made.settimeout(2)
            return made.recv(15).decode()

    guard = [rule(f"{home}/allowed", "receive"), rule(f"{home}/post", "send")]
    told = {}
    for name, pieces in payloads.items():
        result = world.under(guard, {"it": lambda pieces=pieces: play(pieces)})
        sent = "".join(entry["data"] for entry in result["arrived"] if entry["event"] == "bytes")
        told[name] = {"told": result["seen"]["it"], "secret": any(word in sent for word in ("secret", "evil"))}
    return told


def own_connection(world):
    """http.client's connection, connected first and asked afterwards, and then used by its socket."""
    from http.client import HTTPConnection

    home = world.url("http")

    def connect_first(place, path):
        connection = HTTPConnection(*world.address(place), timeout=5)
        try:
            connection.connect()
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def raw(path):
        connection = HTTPConnection(*world.address("http"), timeout=5)
        try:
            connection.request("GET", "/allowed")
            connection.getresponse().read()
            connection.sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {world.at('http')}\r\n\r\n".encode())
            return connection.sock.recv(15).decode()
        finally:
            connection.close()

    actions = {
        "allowed": lambda: connect_first("http", "/allowed"),
        "other path": lambda: connect_first("http", "/secret"),
        "other origin": lambda: connect_first("other", "/allowed"),
        "by its socket": lambda: raw("/allowed/again"),
        "by its socket, other path": lambda: raw("/secret"),
    }
    return world.under([rule(f"{home}/allowed", "receive")], actions)


def pools(world):
    """One client object of the host, used by the host and by two subjects in turn: who shares a connection?"""
    url = world.url("http", "/allowed")
    clients = {name: make(world) for name, make in SHARED.items() if name == world.args[0]}
    seen = {}
    for name, fetch in clients.items():
        peers = []
        allowed = rule(url, "receive")
        for who in ("host", "first", "first", "second", "host", "first", "second"):
            peers.append((who, fetch(url) if who == "host" else world.guard(allowed, subject=who).run(fetch, url)))
        seen[name] = [[who, peer] for who, peer in peers]
        arrived = world.journal()
        seen["connections"] = len([entry for entry in arrived if entry["event"] == "connect"])
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
    client = __import__(library).Client()
    return lambda url: client.get(url).json()["peer"]


def shared_httpx2(world):
    return shared_httpx(world, "httpx2")


def shared_async(library):
    """A client that lives on a loop of the host's; each fetch is a task there, made where it is asked for."""

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
            client = module.AsyncClient()

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


def clients_in_threads(world):
    """Requests that a client makes from threads and tasks of its caller."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import httpx2
    import requests

    url = world.url("http", "/allowed")

    def pooled():
        with ThreadPoolExecutor(4) as pool, requests.Session() as session:
            return [answer.status_code for answer in pool.map(session.get, [url] * 8)]

    async def gathered():
        async with httpx2.AsyncClient() as client:
            return [answer.status_code for answer in await asyncio.gather(*(client.get(url) for _ in range(8)))]

    async def in_threads():
        return [
            answer.status_code
            for answer in await asyncio.gather(*(asyncio.to_thread(requests.get, url) for _ in "abcd"))
        ]

    actions = {"threads": pooled, "tasks": gathered, "to_thread": in_threads}
    return world.under([rule(url, "receive")], actions)["seen"]


class TestTickets:
    def test_it_opens_its_own_connection_and_nothing_else(self, net):
        """Its host and port by TCP, as often as needed; no other port, address, protocol or kind of bytes."""
        seen = net.run(tickets)["inside"]
        here, other = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "other"))
        assert seen["its own"] == seen["again"] == here
        assert seen["other port"] == f"denied connect {other}"
        assert seen["other address"] == f"denied connect 127.0.0.2:{net.places['http'][1]}"
        assert seen["datagram"] == f"denied connect {here}"
        assert seen["raw send"] == "InvalidInputError"

    def test_it_lasts_as_long_as_the_request(self, net):
        """Not before, not after, and not when it is merely held."""
        seen = net.run(tickets)
        denied = f"denied connect 127.0.0.1:{net.places['http'][1]}"
        assert seen["before"] == seen["after"] == seen["not entered"] == seen["after denied"] == denied
        assert seen["denied"].startswith("denied receive http://")

    def test_one_inside_another(self, net):
        """The innermost is the one that counts; after it the outer one is good again."""
        seen = net.run(tickets)
        here, other = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "other"))
        assert seen["nested"] == {"inner": other, "outer": f"denied connect {here}"}
        assert seen["after inner"] == {"outer": here, "inner": f"denied connect {other}"}

    def test_without_a_guard_there_is_none(self, net):
        """Nothing to permit."""
        assert net.run(tickets)["unguarded"] is True

    def test_it_is_worth_nothing_to_another_subject(self, net):
        """Whoever gets hold of it gains nothing by it."""
        seen = net.run(others)
        assert seen["other"].startswith(("denied connect", "GuardUsageError"))


class TestWhoCarriesIt:
    def test_threads_and_pools(self, net):
        """A thread or job started inside carries it; one from before does not, and none after it has ended."""
        seen = net.run(carried)["plain"]
        here = f"127.0.0.1:{net.places['http'][1]}"
        carrying = {name for name, verdict in seen.items() if verdict == here}
        assert carrying == {"thread", "new pool", "old pool"}, seen
        assert set(seen.values()) == {here, f"denied connect {here}"}

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test_tasks(self, net, loop):
        """The same for tasks, for several at once and for work they hand to threads."""
        seen = net.run(carried)[loop]
        here = f"127.0.0.1:{net.places['http'][1]}"
        assert seen.pop("tasks") == [here]
        carrying = {name for name, verdict in seen.items() if verdict == here}
        assert carrying == {"task", "to_thread"}, seen
        assert set(seen.values()) == {here, f"denied connect {here}"}

    def test_clients_used_from_threads_and_tasks(self, net):
        """Pools and gathers of real clients work as they do without a guard."""
        seen = net.run(clients_in_threads)
        assert seen == {"threads": [200] * 8, "tasks": [200] * 8, "to_thread": [200] * 4}


class TestOnTheWire:
    def test_permitted_requests_pass_however_they_are_cut(self, net):
        """In pieces, one after the other, pipelined, with a body."""
        for name, seen in net.run(wire).items():
            if name.startswith("allowed"):
                assert seen["told"] == "HTTP/1.1 200 OK", name

    def test_anything_else_is_stopped_before_it_leaves(self, net):
        """Another path, method or host, the second of two requests, what is not HTTP at all."""
        for name, seen in net.run(wire).items():
            if not name.startswith("allowed"):
                assert seen["told"].startswith(("denied ", "InvalidInputError")), (name, seen)
                assert seen["secret"] is False, name

    def test_a_connection_opened_ahead_of_its_request(self, net):
        """To an origin for which something is permitted it opens; each request on it is checked, also by its socket."""
        told = net.run(own_connection)
        home = f"http://127.0.0.1:{net.places['http'][1]}"
        assert told["seen"] == {
            "allowed": 200,
            "other path": f"denied receive {home}/secret",
            "other origin": f"denied connect http://127.0.0.1:{net.places['other'][1]}",
            "by its socket": "HTTP/1.1 200 OK",
            "by its socket, other path": f"denied receive {home}/secret",
        }
        paths = [entry["path"] for entry in told["arrived"] if entry["event"] == "request"]
        assert paths == ["/allowed", "/allowed", "/allowed/again", "/allowed"]
        assert {entry["at"] for entry in told["arrived"]} == {"http"}


class TestPools:
    @pytest.mark.parametrize("client", SHARED)
    def test_connections_are_not_shared_between_subjects(self, net, client):
        """One client object for everybody: the host and each subject keep connections of their own, and reuse those."""
        seen = net.run(pools, client)[client]
        peers = {who: {peer for one, peer in seen if one == who} for who in ("host", "first", "second")}
        assert not peers["host"] & peers["first"]
        assert not peers["host"] & peers["second"]
        assert not peers["first"] & peers["second"]
        in_a_row = [peer for who, peer in seen if who == "first"][:2]
        assert in_a_row[0] == in_a_row[1]

    @pytest.mark.parametrize("client", SHARED)
    def test_without_a_guard_they_are(self, net, client):
        """The client pools: otherwise the test above would show nothing."""
        assert len({peer for _, peer in net.run(pools, client, guarded=False)[client]}) == 1
