"""Telling open pages that something changed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from democrai_sandbox.console import live_updates
from democrai_sandbox.console.live_updates import Pulse
from democrai_sandbox.errors import StoreUnavailable

QUICK = 0.01
PATIENCE = 30


class Store:
    """A pulse that a test sets, and how often it was asked for."""

    def __init__(self):
        self.pulse = (1, 1)
        self.asked = 0
        self.away = False

    def read(self):
        self.asked += 1
        if self.away:
            raise StoreUnavailable
        return self.pulse


async def eventually(happened):
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(QUICK)


def test_every_listener_is_told_of_a_change_by_one_poller():
    """Two hundred pages hear of a change, and the store is asked once for all of them."""

    async def story():
        store, closing = Store(), asyncio.Event()
        pulse = Pulse(store.read, closing, seconds=QUICK)
        heard = []

        async def listen():
            async with aclosing(pulse.changes(patience=PATIENCE)) as changes:
                said = [await anext(changes)]
                ready.append(True)
                said.append(await anext(changes))
                heard.append(said)

        ready = []
        pages = [asyncio.create_task(listen()) for _ in range(200)]
        await eventually(lambda: len(ready) == 200)
        before, begun = store.asked, asyncio.get_running_loop().time()
        store.pulse = (2, 5)
        await asyncio.wait_for(asyncio.gather(*pages), PATIENCE)
        assert heard == [["1.1", "2.5"]] * 200
        passed = asyncio.get_running_loop().time() - begun
        assert store.asked - before <= passed / QUICK + 2

    asyncio.run(story())


def test_nobody_is_asked_while_nobody_listens():
    """When the last page is gone the poller ends, and it begins anew with the next one."""

    async def story():
        store, closing = Store(), asyncio.Event()
        pulse = Pulse(store.read, closing, seconds=QUICK)
        assert store.asked == 0
        for _ in range(2):
            async with aclosing(pulse.changes(patience=PATIENCE)) as changes:
                assert await anext(changes) == "1.1"
            assert pulse.listeners == 0
            await eventually(lambda: pulse._poller.done())
            asked = store.asked
            await asyncio.sleep(5 * QUICK)
            assert store.asked == asked

    asyncio.run(story())


def test_a_slow_page_gets_the_latest_only():
    """Changes that were not fetched do not pile up."""

    async def story():
        store, closing = Store(), asyncio.Event()
        pulse = Pulse(store.read, closing, seconds=QUICK)
        async with aclosing(pulse.changes(patience=PATIENCE)) as changes:
            assert await anext(changes) == "1.1"
            for number in range(2, 12):
                store.pulse = (number, 1)
                await eventually(lambda: pulse._latest == store.pulse)
            assert await anext(changes) == "11.1"

    asyncio.run(story())


def test_silence_is_broken_by_a_sign_of_life():
    """Without a change a listener is woken after a while, so that it can say that it is still there."""

    async def story():
        pulse = Pulse(Store().read, asyncio.Event(), seconds=QUICK)
        async with aclosing(pulse.changes(patience=0.2)) as changes:
            while (told := await anext(changes)) == "":  # the store was slower than that
                pass
            assert told == "1.1"
            assert await anext(changes) == ""

    asyncio.run(story())


def test_streams_end_when_the_server_stops():
    """A page that listens does not keep the server from stopping."""

    async def story():
        closing = asyncio.Event()
        pulse = Pulse(Store().read, closing, seconds=QUICK)

        async def listen():
            return [change async for change in pulse.changes(patience=PATIENCE)]

        page = asyncio.create_task(listen())
        await eventually(lambda: pulse._latest is not None)
        closing.set()
        assert "1.1" in await asyncio.wait_for(page, PATIENCE) + ["1.1"]
        await eventually(lambda: pulse._poller.done())

    asyncio.run(story())


def test_a_store_that_is_away_ends_nothing():
    """While the database cannot be reached pages hear nothing, and afterwards they do again."""

    async def story():
        store = Store()
        pulse = Pulse(store.read, asyncio.Event(), seconds=QUICK)
        async with aclosing(pulse.changes(patience=PATIENCE)) as changes:
            assert await anext(changes) == "1.1"
            store.away = True
            asked = store.asked
            await eventually(lambda: store.asked > asked + 2)
            store.away, store.pulse = False, (3, 3)
            assert await anext(changes) == "3.3"

    asyncio.run(story())


def test_there_is_an_end_to_listeners(monkeypatch):
    """No more than so many pages listen at a time."""

    async def story():
        pulse = Pulse(Store().read, asyncio.Event(), seconds=QUICK)
        assert pulse.has_room
        async with aclosing(pulse.changes(patience=PATIENCE)) as changes:
            await anext(changes)
            assert not pulse.has_room

    monkeypatch.setattr(live_updates, "MOST_LISTENERS", 1)
    asyncio.run(story())


# ---- over HTTP -------------------------------------------------------------------------------------------------------


def events(stream):
    """Yield the events of a stream."""
    event = {}
    for line in stream.iter_lines():
        if line:
            name, _, value = line.partition(":")
            event[name] = value.strip()
        else:
            yield event
            event = {}


def test_a_page_hears_of_a_new_request(served):
    """A stream tells the present pulse at once, and a new one when an extension is stopped."""
    with served.signed_in() as client, client.stream("GET", "/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        heard = events(stream)
        assert next(heard) == {"retry": "5000"}
        first = next(event for event in heard if event.get("event") == "pulse")
        with served.bearer(served.person("uma")) as uma:
            served.stop_weather(uma, "/heard/of")
        second = next(event for event in heard if event.get("event") == "pulse")
        assert second["data"] != first["data"]


def test_nobody_listens_without_a_session(served):
    """A stream is for people who are signed in; anybody else, a machine too, is told that it is over, and no more."""
    with served.client() as client, served.bearer(served.administrator()) as machine:
        for nobody in (client, machine):
            answer = nobody.get("/live")
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.text == "event: over\ndata: signed out\n\n"
