"""Media services give guarded code its own streams and plain data, and nothing of the host."""

from __future__ import annotations

import asyncio
import os
import time

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")


def open_stage(world, **limits):
    from types import SimpleNamespace

    stage = SimpleNamespace(**world.load(STAGE))
    return stage, stage.Host(world, decides=False, **limits)


def thief_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox import process_guard_context, sdk
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.sdk import media

    site = stage.Site()
    site.routes["/long"] = lambda *_: slowly(stage.answer(b"first", length="10"), b"later")
    out = {}
    rules = [stage.rule(site.url())]

    async def apart():
        """Keep the owner's stream open while others try to use it, each in a separate guard."""
        token = []

        async def owner():
            token.append((await media.stream(site.url("/long")))._token)

        async def thief():
            sdk_services.call("media.close", token[0])
            return await stage.told(_call(sdk_services, "media.read", token[0]))

        async def reader():
            return (await _call(sdk_services, "media.read", token[0]))[1].decode()

        def guard(**changed):
            given = {"subject": "gallery", "user_id": "uma", "session_key": "s1", **changed}
            return process_guard_context(access=rules, **given)

        await guard().run(owner)
        out["another module"] = await guard(subject="thief").run(thief)
        out["another session"] = await guard(session_key="s2").run(thief)
        out["another user"] = await guard(user_id="ulf").run(thief)
        out["owner"] = await guard().run(reader)

    async def serve():
        host.media.open()
        await apart()

    asyncio.run(serve())
    out["left"] = [host.media.under_way]
    host.close()
    return out


def slowly(*parts):
    for part in parts:
        yield part
        time.sleep(0.5)


async def _call(doors, *args):
    return await doors.call(*args)


def test_a_stream_is_its_owners_alone(case):
    """Another module, session or user cannot use a token, or close a stream that it does not own."""
    told = case.run(thief_story)
    for who in ("another module", "another session", "another user"):
        assert told[who].startswith("MediaClosed: "), who
    assert told["owner"] == "first"
    assert told["left"] == [1]


def misuse_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox import sdk
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.sdk import media

    site = stage.Site()
    site.text("/a", b"a")
    out = {}

    class Sly(str):
        __slots__ = ()

        def lower(self):
            return "accept"

    def tried(*args):
        try:
            sdk_services.call(*args)
        except Exception as error:
            return stage.said(error)
        return "passed"

    async def module():
        plain = {"method": "GET", "headers": {}, "max_bytes": None, "timeout": None}
        future = sdk_services.call("media.fetch", site.url("/a"), plain)
        out["future"] = [type(future).__name__, [type(call).__name__ for call, _ in future._callbacks or []]]
        out["outcome"] = list((await future)[:1])
        settled = sdk_services.call("media.fetch", site.url("/a"), plain)
        settled.set_result("made up")
        await asyncio.sleep(0.2)
        out["options"] = tried("media.fetch", site.url("/a"), {"asker": "module:other"})
        out["no options"] = tried("media.fetch", site.url("/a"), None)
        out["sly"] = tried("media.fetch", site.url("/a"), {"headers": {Sly("cookie"): "a=b"}})
        out["few"] = tried("media.fetch")
        out["token"] = tried("media.read", 7)
        out["denied url"] = (await stage.told(media.fetch("http://127.0.0.2:9/"))).split(" (")[0]
        out["error"] = await stage.told(media.fetch("nonsense"))
        out["closed"] = await stage.told(media.fetch(site.url("/a"), timeout=-1))

    def no_loop():
        return [sdk_services.call("media.fetch", site.url("/a"), {})[0], media.fetch_blocking(site.url("/a")).status]

    def forged_loop():
        class Loop:
            def __getattr__(self, name):
                out["reached"] = name
                raise AttributeError(name)

        asyncio._set_running_loop(Loop())
        try:
            token = sdk_services.call("media.stream", site.url("/a"), {})[1][0]
            body = (
                sdk_services.call("media.read", token)[1].decode() + sdk_services.call("media.read", token)[1].decode()
            )
            sdk_services.call("media.close", token)
            return [sdk_services.call("media.fetch", site.url("/a"), {})[0], body]
        finally:
            asyncio._set_running_loop(None)

    async def blocks():
        return media.fetch_blocking(site.url("/a"))

    host.run_module(module, targets=[site.url()])
    out["no loop"] = host.as_module(no_loop, targets=[site.url()])
    out["forged loop"] = host.as_module(forged_loop, targets=[site.url()])
    try:
        host.run_module(blocks, targets=[site.url()])
    except Exception as error:
        out["blocks"] = stage.said(error)
    out["host"] = tried("media.fetch", site.url("/a"), {})
    out["left"] = [stage.soon(lambda: host.media.under_way == 0), stage.states()]
    host.close()
    return out


def test_doors_take_plain_data_and_give_bare_futures(case):
    """The results for a module expose no callback and no frame of the host; errors are reported as such."""
    told = case.run(misuse_story)
    assert told["future"] == ["Future", []]
    assert told["outcome"] == ["value"]
    assert told["options"].startswith("InvalidInputError: /options: ")
    assert "asker" in told["options"]
    assert told["no options"].startswith("InvalidInputError: ")
    assert told["sly"].startswith("InvalidInputError: ")
    assert told["few"].startswith("RuntimeServiceFailed: ")
    assert told["token"].startswith("MediaClosed: ")
    assert told["denied url"] == f"NetworkDenied: {EXTERNAL_URL_LOCKED}"
    assert told["error"].startswith("InvalidInputError: ")
    assert told["closed"].startswith("InvalidInputError: /timeout")
    assert told["no loop"] == ["value", 200]
    assert told["forged loop"] == ["value", "a"]
    assert "reached" not in told
    assert told["blocks"].startswith("GuardUsageError: ")
    assert told["host"].startswith("InvalidInputError: ")
    for name in ("token", "blocks", "host"):
        sentence(name, told[name])
    assert told["left"] == [True, 0]


def debug_story(world):
    stage, host = open_stage(world)
    import contextlib
    import io

    site = stage.Site()
    site.text("/a", b"a", cache_control="max-age=60")
    site.moved("/to", site.url("/a?token=tiger#x"))
    lines = io.StringIO()

    async def story():
        asker = host.asker(site.url(), session_key="cheetah")
        for _ in range(2):
            await host.media.fetch(asker, site.url("/to?key=lion"))
        await stage.told(host.media.fetch(asker, "http://127.0.0.2:1/b?key=puma"))

    with contextlib.redirect_stderr(lines):
        asyncio.run(story())
    host.close()
    return lines.getvalue()


def test_the_flow_can_be_watched_without_secrets(case):
    """DEMOCRAI_DEBUG_MEDIA_FLOW=1 prints each step; session keys and queries are masked. Without it, nothing."""
    text = case.run(debug_story, DEMOCRAI_DEBUG_MEDIA_FLOW="1")
    lines = text.splitlines()
    assert all(line.startswith("[MEDIA_FLOW] ") for line in lines)
    events = [line.split(" ")[1] for line in lines]
    for event in ("begin", "allowed", "answer", "redirect", "kept", "cached", "locked"):
        assert event in events, text
    for secret in ("cheetah", "tiger", "lion", "puma"):
        assert secret not in text
    assert "session='***" in text
    assert "?***" in text


def test_without_the_switch_nothing_is_printed(case):
    """The flow is for debugging."""
    assert case.run(debug_story, DEMOCRAI_DEBUG_MEDIA_FLOW="0") == ""
