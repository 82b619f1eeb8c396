"""Limits of size, time and number: a server that lies, drips or never ends costs only these, and nothing remains."""

from __future__ import annotations

import asyncio
import os
import time

from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")


def open_stage(world, **limits):
    from types import SimpleNamespace

    stage = SimpleNamespace(**world.load(STAGE))
    return stage, stage.Host(world, decides=False, **limits)


def drip(parts, seconds):
    for part in parts:
        yield part
        time.sleep(seconds)


def endless(head, part):
    yield head
    while True:
        yield part


STALLING = ("/silent", "/stops")
"""Paths that stop sending at some point; the idle limit ends them."""
SLOW = ("/slow-head", "/slow-body", "/slow-chunk-line")
"""Paths that keep sending slowly; the total timeout ends them."""


def server_story(world):
    from democrai_sandbox.runtime.media.service import Media
    from democrai_sandbox.runtime.media.values import MediaLimits

    stage, host = open_stage(world, fetch_bytes=100_000, header_bytes=8192)
    hasty = Media(stage.Nobody(), data_dir=host.data, limits=MediaLimits(idle_seconds=0.4))
    site = stage.Site()
    head = b"HTTP/1.1 200 OK\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    block = b"x" * 16384
    site.routes.update(
        {
            "/endless": lambda *_: endless(head + b"\r\n", block),
            "/endless-chunks": lambda *_: endless(chunked, b"4000\r\n" + block + b"\r\n"),
            "/says-much": lambda *_: head + b"content-length: 100001\r\n\r\n",
            "/says-more": lambda *_: stage.answer(b"abc", length="10"),
            "/says-less": lambda *_: stage.answer(b"abcdef", length="3"),
            "/no-length": lambda *_: head + b"\r\nabc",
            "/two-lengths": lambda *_: head + b"content-length: 3\r\ncontent-length: 300\r\n\r\nabc",
            "/negative": lambda *_: head + b"content-length: -5\r\n\r\nabc",
            "/cut-chunk": lambda *_: chunked + b"10\r\nabc",
            "/bad-chunk": lambda *_: chunked + b"zz\r\nabc",
            "/good-chunks": lambda *_: chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            "/silent": lambda *_: drip([b"", b"x"], 60),
            "/stops": lambda *_: drip([head + b"content-length: 9\r\n\r\nabc", b"x"], 60),
            "/slow-head": lambda *_: drip([b"H"] + [b"T"] * 600, 0.1),
            "/slow-body": lambda *_: drip([head + b"content-length: 99\r\n\r\n"] + [b"x"] * 600, 0.1),
            "/slow-chunk-line": lambda *_: drip([chunked] + [b"0"] * 600, 0.1),
            "/big-head": lambda *_: head + b"x: " + b"y" * 9000 + b"\r\n\r\n",
            "/many-heads": lambda *_: endless(head, b"x: y\r\n"),
            "/continues": lambda *_: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
            "/trailers": lambda *_: endless(chunked + b"0\r\n", b"x: y\r\n"),
            "/garbage": lambda *_: b"\x00\x01garbage\r\n\r\n",
            "/closes": lambda *_: b"",
            "/early": lambda *_: b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + stage.answer(b"late"),
            "/both-lengths": lambda *_: (
                head + b"content-length: 99\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ),
        }
    )
    out, lengths = {}, {}

    async def one(path, **more):
        media = hasty if path in STALLING else host.media
        found = await stage.told(media.fetch(host.asker(site.url()), site.url(path), **more))
        if not isinstance(found, str):
            lengths[path] = found.headers.get("content-length")
        return found if isinstance(found, str) else [found.status, found.body.decode()]

    async def story():
        for path in list(site.routes):
            out[path] = await one(path, timeout=0.6 if path in SLOW else None)
        out["/endless head"] = await one("/endless", method="HEAD")
        out["/asked for less"] = await one("/good-chunks", max_bytes=4)
        with stage.socket.socket() as nobodys:
            nobodys.bind(("127.0.0.1", 0))  # and does not listen
            url = f"http://127.0.0.1:{nobodys.getsockname()[1]}/"
            out["unreachable"] = await stage.told(host.media.fetch(host.asker(url), url))

    asyncio.run(story())
    out["lengths"] = lengths
    hasty.close()
    out["left"] = [stage.soon(lambda: host.media.under_way == hasty.under_way == 0), stage.states()]
    host.close()
    return out


def test_a_server_that_lies_or_never_ends_is_told_as_what_it_is(case):
    """Limits of bodies, heads and times apply independent of the server's headers."""
    told = case.run(server_story)
    assert told["/endless"] == told["/endless-chunks"] == told["/says-much"]
    assert told["/endless"].startswith("MediaTooLarge: ")
    assert "100000" in told["/endless"]
    assert told["/says-more"].startswith("MediaBroken: ")
    assert {"3", "10"} <= set(told["/says-more"].split())
    assert told["/says-less"] == [200, "abc"]
    assert told["/no-length"] == [200, "abc"]
    assert told["/good-chunks"] == [200, "abcde"]
    assert told["/two-lengths"] == [200, "abc"] or told["/two-lengths"].startswith("MediaBroken")
    for path in ("/cut-chunk", "/bad-chunk", "/garbage", "/closes", "/early"):
        assert told[path].startswith("MediaBroken"), (path, told[path])
    assert told["/negative"] == [200, "abc"]  # an invalid length counts as none
    for path in (*STALLING, *SLOW):
        assert told[path].startswith("MediaTimeout: "), (path, told[path])
        sentence(f"late {path}", told[path])
    for path in ("/big-head", "/continues", "/trailers", "/many-heads"):
        assert told[path].startswith(("MediaTooLarge: ", "MediaBroken: ")), (path, told[path])
    sentence("large headers", told["/big-head"])
    assert told["/both-lengths"] == [200, "abc"]
    assert told["lengths"]["/says-less"] == "3"
    assert told["lengths"]["/both-lengths"] is told["lengths"]["/negative"] is None
    assert told["/endless head"] == [200, ""]
    assert told["/asked for less"] == told["/endless"].replace("100000", "4")
    sentence("a large body", told["/endless"])
    assert told["unreachable"].startswith("MediaUnreachable: http://127.0.0.1:")
    assert told["left"] == [True, 0]


def crowd_story(world):
    import threading

    from democrai_sandbox.runtime.media.service import Media
    from democrai_sandbox.runtime.media.values import MediaLimits

    limits = {"flows_per_subject": 3, "waiting_per_subject": 4, "flows": 4}
    stage, host = open_stage(world, waiting_seconds=100.0, **limits)
    hasty = Media(stage.Nobody(), data_dir=host.data, limits=MediaLimits(waiting_seconds=0.5, **limits))
    site, elsewhere = stage.Site(), stage.Site()
    release = threading.Event()
    most = [0]

    def hold(*_):
        if not release.is_set():  # afterwards, the server may see the end of a connection after the next one
            most[0] = max(most[0], site.open, elsewhere.open)
        release.wait(60)
        yield stage.answer(b"x")

    site.routes["/hold"] = elsewhere.routes["/hold"] = hold
    site.text("/quick", b"q")
    out = {}

    async def fetch(asker, url, media=host.media):
        found = await stage.told(media.fetch(asker, url))
        return found if isinstance(found, str) else found.status

    async def first_of(tasks, number):
        """Return the outcomes of ended fetches, once that many have ended."""
        while sum(task.done() for task in tasks) < number:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for those that should not end
        return [task.result() for task in tasks if task.done()]

    async def story():
        asker = host.asker(site.url(), elsewhere.url())
        other = asker._replace(subject=type(asker.subject)("tool", "other"), chain=("tool:other",))
        crowd = [asyncio.create_task(fetch(asker, site.url("/hold"))) for _ in range(9)]
        out["turned away"] = await first_of(crowd, 2)
        out["others go on"] = await fetch(other, site.url("/quick"))
        hurried = [asyncio.create_task(fetch(asker, elsewhere.url("/hold"), hasty)) for _ in range(7)]
        out["waited"] = await first_of(hurried, 4)
        crowd[3].cancel()
        release.set()
        out["rest"] = await asyncio.gather(*crowd[:3], *hurried[:3])
        out["late"] = [str(item) for item in await asyncio.gather(*crowd[4:7])]
        out["after"] = await fetch(asker, site.url("/quick"))

    asyncio.run(story())
    out["most"] = most[0]
    hasty.close()
    out["left"] = [stage.soon(lambda: host.media.under_way == hasty.under_way == 0), stage.states()]
    host.close()
    return out


def test_a_subject_waits_for_itself_and_others_go_on(case):
    """Limits of running and waiting fetches, the rest is refused; a caller that stopped waiting takes no slot."""
    told = case.run(crowd_story)
    assert len(told["turned away"]) == 2
    assert len(told["waited"]) == 4
    assert all(item.startswith("MediaBusy: module:gallery") for item in told["turned away"] + told["waited"])
    assert told["others go on"] == 200
    assert told["rest"] == [200] * 6
    assert told["late"] == ["200", "200", "200"]
    assert told["after"] == 200
    assert told["most"] == 3
    assert told["left"] == [True, 0]


def unread_story(world):
    stage, host = open_stage(world, flows_per_subject=2, waiting_seconds=0.2, unread_seconds=1.5)
    site = stage.Site()
    site.routes["/endless"] = lambda *_: endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)
    site.text("/quick", b"q")
    out = {}

    async def story():
        asker = host.asker(site.url())
        left = [await host.media.stream(asker, site.url("/endless")) for _ in range(2)]
        out["full"] = await stage.told(host.media.fetch(asker, site.url("/quick")))
        until = time.monotonic() + 1.6
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            await left[1].read()
        out["room"] = (await host.media.fetch(asker, site.url("/quick"))).status
        out["ended"] = [stream.closed for stream in left]
        left[1].end()

    asyncio.run(story())
    host.close()
    return out


def test_a_stream_that_nobody_reads_makes_room(case):
    """An open stream keeps its slot only until another fetch needs it."""
    told = case.run(unread_story)
    assert told["full"].startswith("MediaBusy")
    assert told["room"] == 200
    assert told["ended"] == [True, False]


def cancel_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox import sdk
    from democrai_sandbox.sdk import media

    site = stage.Site()
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    site.routes["/endless"] = lambda *_: endless(head, b"x" * 65536)
    site.routes["/silent"] = lambda *_: drip([head, b"x"], 300)
    out = {}

    async def host_side():
        asker = host.asker(site.url())
        task = asyncio.create_task(host.media.fetch(asker, site.url("/silent")))
        await asyncio.sleep(0.3)
        task.cancel()
        (ended,) = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
        out["fetch"] = type(ended).__name__
        stream = await host.media.stream(asker, site.url("/endless"))
        out["some"] = len(await stream.read()) > 0
        reading = asyncio.create_task(stream.read())
        await stream.aclose()
        out["reading"] = await stage.told(reading)
        out["closed"] = await stage.told(stream.read())
        short = await host.media.stream(asker, site.url("/endless"), timeout=0.2)
        for _ in range(200):
            if short.closed:
                break
            await asyncio.sleep(0.1)
        out["forgotten"] = [short.closed, await stage.told(short.read())]

    async def module():
        task = asyncio.create_task(media.fetch(site.url("/silent")))
        await asyncio.sleep(0.3)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            out["cancelled"] = True
        stream = await media.stream(site.url("/endless"))
        out["part"] = len(await stream.read()) > 0
        try:
            await asyncio.wait_for(_read_on(stream), 0.3)
        except TimeoutError:
            out["timed out"] = True
        await stream.aclose()
        out["after close"] = await stage.told(stream.read())
        await stream.aclose()
        await asyncio.sleep(0.3)

    asyncio.run(host_side())
    host.run_module(module, targets=[site.url()])
    out["ended"] = stage.soon(lambda: site.open <= 2)  # the two silent ones keep sleeping
    out["left"] = [stage.soon(lambda: host.media.under_way == 0), stage.states()]
    host.close()
    return out


async def _read_on(stream):
    while await stream.read():
        pass


def test_cancelling_ends_the_connection_and_leaves_no_guard(case):
    """For the host and for a module: the thread returns, the connection closes, and no guard remains."""
    told = case.run(cancel_story)
    assert told["fetch"] == "CancelledError"
    assert told["some"]
    assert told["part"]
    assert "MediaClosed" in str(told["closed"])
    closed, why = told["forgotten"]
    assert closed is True
    assert why.startswith("MediaTimeout: ")
    assert told["cancelled"]
    assert told["timed out"]
    assert told["after close"].startswith("MediaClosed")

    assert told["ended"]
    assert told["left"] == [True, 0]
