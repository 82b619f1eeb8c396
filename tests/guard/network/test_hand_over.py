"""Connection permits: an allowed HTTP request opens the one connection it needs, while it lasts."""

from __future__ import annotations

import pytest


def dial(address, timeout=5):
    """Connect, and return the peer."""
    import socket

    with socket.create_connection(address, timeout=timeout) as made:
        return f"{made.getpeername()[0]}:{made.getpeername()[1]}"


def tickets(world):
    """Return what an open permit allows and refuses."""
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
    """Return which code has an open permit: code that is started inside it, not code from before or after."""
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
    """Use a permit by another subject, or without a subject."""
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


def clients_in_threads(world):
    """Make requests from threads and tasks of the caller."""
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
        """Its host and port over TCP, repeatedly; no other port, address, protocol or kind of bytes."""
        seen = net.run(tickets)["inside"]
        here, other = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "other"))
        assert seen["its own"] == seen["again"] == here
        assert seen["other port"] == f"denied connect {other}"
        assert seen["other address"] == f"denied connect 127.0.0.2:{net.places['http'][1]}"
        assert seen["datagram"] == f"denied connect {here}"
        assert seen["raw send"] == "InvalidInputError"

    def test_it_lasts_as_long_as_the_request(self, net):
        """Not before, not after, and not when it is merely referenced."""
        seen = net.run(tickets)
        denied = f"denied connect 127.0.0.1:{net.places['http'][1]}"
        assert seen["before"] == seen["after"] == seen["not entered"] == seen["after denied"] == denied
        assert seen["denied"].startswith("denied receive http://")

    def test_one_inside_another(self, net):
        """The innermost permit counts; after it the outer one is valid again."""
        seen = net.run(tickets)
        here, other = (f"127.0.0.1:{net.places[place][1]}" for place in ("http", "other"))
        assert seen["nested"] == {"inner": other, "outer": f"denied connect {here}"}
        assert seen["after inner"] == {"outer": here, "inner": f"denied connect {other}"}

    def test_without_a_guard_there_is_none(self, net):
        """Without a guard no permit is needed."""
        assert net.run(tickets)["unguarded"] is True

    def test_it_is_worth_nothing_to_another_subject(self, net):
        """Another subject gains nothing from it."""
        seen = net.run(others)
        assert seen["other"].startswith(("denied connect", "GuardUsageError"))


class TestWhoCarriesIt:
    def test_threads_and_pools(self, net):
        """A thread or job started inside has it; an earlier one does not, and none has it after its end."""
        seen = net.run(carried)["plain"]
        here = f"127.0.0.1:{net.places['http'][1]}"
        carrying = {name for name, verdict in seen.items() if verdict == here}
        assert carrying == {"thread", "new pool", "old pool"}, seen
        assert set(seen.values()) == {here, f"denied connect {here}"}

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test_tasks(self, net, loop):
        """The same applies to tasks, also several, and to their work in threads."""
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
