"""Fetching: declared and approved URLs arrive, all others are locked, and every hop is a separate question."""

from __future__ import annotations

import asyncio
import os
import sys

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED
from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")


def open_stage(world, **limits):
    from types import SimpleNamespace

    stage = SimpleNamespace(**world.load(STAGE))
    return stage, stage.Host(world, **limits)


LOCKED = f"NetworkDenied: {EXTERNAL_URL_LOCKED}"


def module_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox import sdk
    from democrai_sandbox.errors import NetworkDenied
    from democrai_sandbox.sdk import media

    site = stage.Site()
    site.text("/pictures/one.png", b"PNG", content_type="image/png", set_cookie="a=b", x_secret="1")
    site.text("/other", b"other")
    out = {}

    async def module():
        found = await media.fetch(site.url("/pictures/one.png?size=7#top"))
        out["result"] = [found.status, found.body.decode(), found.headers, found.url, found.from_cache]
        try:
            await media.fetch(site.url("/other"))
        except NetworkDenied as denial:
            out["denied"] = [str(denial).split(" (")[0], denial.subject, list(map(str, denial.subject_chain))]
            out["facts"] = [denial.operation, denial.target, denial.request_id is not None, denial.errno]
            out["hint"] = denial.request_id in denial.hint
            out["frames"] = denial.__traceback__.tb_next.tb_frame.f_code.co_filename.endswith("sdk/media.py")
        async with await media.stream(site.url("/pictures/one.png"), range="bytes=0-1") as stream:
            out["stream"] = [stream.status, b"".join([part async for part in stream]).decode()]

    def blocking():
        return media.fetch_blocking(site.url("/pictures/one.png"), method="HEAD")

    host.run_module(module, targets=[site.url("/pictures")])
    head = host.as_module(blocking, targets=[site.url("/pictures")])
    out["head"] = [head.status, head.body.decode(), head.headers["content-length"]]
    out["asked"] = site.asked
    out["pending"] = host.pending()
    out["left"] = [stage.states(), host.media.under_way]
    host.close()
    return out


def test_a_module_gets_what_it_declared_and_a_pending_request_for_the_rest(case):
    """A declared URL arrives with its descriptive headers; another is locked, with a request to approve."""
    told = case.run(module_story)
    status, body, headers, url, cached = told["result"]
    assert (status, body, cached) == (200, "PNG", False)
    assert headers == {"content-type": "image/png", "content-length": "3"}
    assert url.endswith("/pictures/one.png?size=7")
    assert told["denied"] == [EXTERNAL_URL_LOCKED, "gallery", ["module:gallery"]]
    assert told["facts"][0] == "receive"
    assert told["facts"][1].endswith("/other")
    assert told["facts"][2:] == [True, 13]
    assert told["hint"]
    assert told["frames"]
    assert told["stream"] == [200, "PNG"]
    assert told["head"] == [200, "", "3"]
    first = told["asked"][0]
    assert first[:2] == ["GET", "/pictures/one.png?size=7"]
    assert sorted(first[2]) == ["accept", "accept-encoding", "connection", "host", "user-agent"]
    assert first[2]["accept-encoding"] == "identity"
    assert told["asked"][1][2]["range"] == "bytes=0-1"
    assert "/other" not in [path for _, path, _ in told["asked"]]
    assert told["pending"] == [["module:gallery", told["facts"][1]]]
    assert told["left"] == [0, 0]


def approval_story(world):
    stage, host = open_stage(world)
    site = stage.Site()
    site.text("/a.png", b"A", content_type="image/png", cache_control="max-age=600", etag='"a"')
    out = {}

    async def story():
        asker, other = host.asker(), host.asker(session_key="s2")
        out["locked"] = await stage.told(host.media.fetch(asker, site.url("/a.png")))
        wanted = host.admin("pending_requests").items[0]
        host.admin("approve_for_session", wanted.id)
        found = await host.media.fetch(asker, site.url("/a.png"))
        again = await host.media.fetch(asker, site.url("/a.png"))
        out["session"] = [found.status, found.from_cache, again.from_cache, host.entries()]
        answer = await host.media.proxy(asker, site.url("/a.png"), {})
        out["no-store"] = answer.headers["cache-control"]
        await answer.body.aclose()
        out["other session"] = await stage.told(host.media.fetch(other, site.url("/a.png")))
        wanted = next(item for item in host.admin("pending_requests").items if item.origin.session_key == "s2")
        host.admin("approve_permanently", wanted.id)
        found = await host.media.fetch(other, site.url("/a.png"))
        again = await host.media.fetch(other, site.url("/a.png"))
        out["permanent"] = [found.from_cache, again.from_cache, len(host.entries())]
        answer = await host.media.proxy(other, site.url("/a.png"), {})
        out["kept"] = [answer.headers["cache-control"], answer.body.from_cache]
        await answer.body.aclose()
        decision = next(item for item in host.admin("approvals").items if item.scope == "permanent")
        host.admin("revoke", decision.id)
        out["revoked"] = await stage.told(host.media.fetch(other, site.url("/a.png")))

    asyncio.run(story())
    out["asked"] = len(site.asked)
    host.close()
    return out


def test_session_approvals_are_never_kept_and_revoking_ends_what_is_cached(case):
    """For a session: no cache, no-store. Permanently: cached and served from there, until it is revoked."""
    told = case.run(approval_story)
    assert told["locked"].startswith(LOCKED)
    assert told["session"] == [200, False, False, []]
    assert told["no-store"] == "no-store"
    assert told["other session"].startswith(LOCKED)
    assert told["permanent"] == [False, True, 1]
    assert told["kept"] == ["private, no-cache", True]
    assert told["revoked"].startswith(LOCKED)
    assert told["asked"] == 4


def redirect_story(world):
    stage, host = open_stage(world)
    here, there = stage.Site("127.0.0.1"), stage.Site("127.0.0.2")
    there.text("/picture", b"P", etag='"p"', cache_control="max-age=600")
    here.moved("/to", there.url("/picture?x=1"))
    here.moved("/round", here.url("/about"))
    here.moved("/about", here.url("/round"))
    here.moved("/file", "file:///etc/passwd")
    here.moved("/user", f"http://user:secret@{there.host}:{there.port}/picture")
    here.moved("/script", "javascript:alert(1)")
    here.moved("/empty", " ")
    here.moved("/relative", "../b/ü c?q= d")
    here.text("/b/%C3%BC%20c", b"R")
    for number in range(9):
        here.moved(f"/chain{number}", f"/chain{number + 1}", "301 Moved")
    here.moved("/five", "/chain5")
    here.text("/chain9", b"end")
    out = {}

    async def fetch(path, *targets):
        found = await stage.told(
            host.media.fetch(host.asker(*targets), here.url(path), headers={"accept": "image/png"})
        )
        return found if isinstance(found, str) else [found.status, found.body.decode(), found.url]

    async def story():
        out["denied hop"] = await fetch("/to", here.url())
        out["not asked"] = there.paths()
        out["pending"] = host.pending()
        out["allowed hop"] = await fetch("/to", here.url(), there.url("/picture"))
        out["host"] = there.asked[-1][2]["host"]
        out["cached hop"] = await fetch("/to", here.url(), there.url("/picture"))
        out["cached hop denied"] = await fetch("/to", here.url())
        for path in ("/round", "/file", "/user", "/script", "/empty", "/relative", "/chain0", "/five"):
            out[path] = await fetch(path, here.url())

    asyncio.run(story())
    out["asked there"] = len(there.asked)
    out["site"] = [here.url(""), there.url("")]
    host.close()
    return out


def test_every_redirect_is_authorised_by_itself(case):
    """A hop that is not allowed is locked and not contacted; loops, endless chains and invalid URLs are refused."""
    told = case.run(redirect_story)
    here, there = told["site"]
    assert told["denied hop"].startswith(LOCKED)
    assert told["not asked"] == []
    assert told["pending"] == [["module:gallery", f"{there}/picture"]]
    assert told["allowed hop"] == [200, "P", f"{there}/picture?x=1"]
    assert told["host"] == there.removeprefix("http://")
    assert told["cached hop"] == [200, "P", f"{there}/picture?x=1"]
    assert told["asked there"] == 1
    assert told["cached hop denied"].startswith(LOCKED)
    for path in ("/round", "/file", "/user", "/script", "/empty", "/chain0"):
        assert told[path].startswith("MediaRedirectRefused: "), path
        sentence(path, told[path])
    assert "secret" not in told["/user"]
    assert told["/relative"] == [200, "R", f"{here}/b/%C3%BC%20c?q=%20d"]
    assert told["/five"] == [200, "end", f"{here}/chain9"]


def chain_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import entrance
    from democrai_sandbox.sdk import media

    site = stage.Site()
    for path in ("/module", "/tool", "/a%2Fb"):
        site.text(path, path.encode(), cache_control="max-age=60")
    out = {}

    async def fetch(path):
        found = await stage.told(media.fetch(site.url(path)))
        return found.split(" (")[0] if isinstance(found, str) else found.body.decode()

    async def both(name):
        for path in ("/module", "/tool"):
            out[f"{name} {path}"] = await fetch(path)

    async def module():
        await both("module")
        await tool("tool")
        await exact("exact")

    async def odd(name):
        out[f"odd {name}"] = await fetch("/a%2Fb")

    def rules(*paths):
        return [stage.rule(site.url(path)) for path in paths]

    async def serve():
        host.media.open()
        around = process_guard_context(subject="gallery", access=rules("/module"), user_id="uma", session_key="s1")
        await around.run(module)
        await process_guard_context(subject="gallery", access=rules("")).run(odd, "site")
        await process_guard_context(subject="other", access=rules("/a")).run(odd, "path")

    tool = entrance(both, subject="demo.show", subject_kind="tool", access=rules("/tool"))
    exact = entrance(both, exact=True, subject="demo.only", subject_kind="tool", access=rules("/tool"))
    asyncio.run(serve())
    out["pending"] = sorted([*item, list(chain)] for item, chain in zip(host.pending(), host.chains(), strict=True))
    out["site"] = site.url("")
    out["caches"] = sorted(os.listdir(os.path.join(host.data, "modules")))
    host.close()
    return out


def test_nested_subjects_fetch_by_their_own_declarations(case):
    """A tool has the rights of its caller unless it declares its own; requests name the tool and its call chain."""
    told = case.run(chain_story)
    assert told["module /module"] == "/module"
    assert told["module /tool"] == LOCKED
    assert (told["tool /module"], told["tool /tool"]) == ("/module", "/tool")
    assert (told["exact /module"], told["exact /tool"]) == (LOCKED, "/tool")
    assert told["pending"] == [
        ["module:gallery", f"{told['site']}/tool", ["module:gallery"]],
        ["tool:demo.only", f"{told['site']}/module", ["module:gallery", "tool:demo.only"]],
    ]
    assert told["caches"] == ["gallery"]
    assert told["odd site"] == "/a%2Fb"
    assert told["odd path"].startswith(LOCKED)
    sentence("a path that servers read differently", told["odd path"])


def failing_story(world):
    stage, host = open_stage(world, decides=False)
    from democrai_sandbox.runtime.media.service import Media, status_of

    class Broken:
        def decide(self, question):
            raise RuntimeError("the database is away")

    site = stage.Site()
    site.text("/a", b"a")
    media = Media(Broken())
    out = {}

    async def story():
        out["declared"] = (await media.fetch(host.asker(site.url()), site.url("/a"))).status
        try:
            await media.fetch(host.asker(), site.url("/a"))
        except Exception as error:
            out["failed"] = [type(error).__name__, isinstance(error, PermissionError), status_of(error)]
        media.close()
        out["closed"] = await stage.told(media.fetch(host.asker(site.url()), site.url("/a")))

    asyncio.run(story())
    out["asked"] = len(site.asked)
    host.close()
    return out


def test_a_check_that_fails_is_no_denial_and_allows_nothing(case):
    """Declared URLs need no service; the others fail with their own error."""
    told = case.run(failing_story)
    assert told["declared"] == 200
    assert told["failed"] == ["ExternalAccessCheckFailed", False, 503]
    assert told["closed"].startswith("MediaClosed")
    assert told["asked"] == 1


def input_story(world):
    stage, host = open_stage(world, decides=False)
    site = stage.Site()
    site.text("/a", b"a")
    out = {}

    async def story():
        asker = host.asker(site.url())

        async def fetch(url, **more):
            found = await stage.told(host.media.fetch(asker, url, **more))
            return found if isinstance(found, str) else found.status

        for url in (
            "",
            "ftp://example.com/a",
            "file:///etc/passwd",
            "/a",
            f"http://user:pw@{site.host}:{site.port}/a",
            f"http://{site.host}:{site.port}/a\r\nx: y",
            f"http://{site.host}:{site.port}\\a",
            "http://0x7f000001/",
            "http://example.com/" + "a" * 9000,
        ):
            out[url[:60]] = await fetch(url)
        out["type"] = await fetch(7)
        out["post"] = await fetch(site.url("/a"), method="POST")
        for name, value in (
            ("Cookie", "a=b"),
            ("Authorization", "x"),
            ("Referer", "x"),
            ("Accept", "a\r\nX: y"),
            ("Range", "bytes=0-1,3-4"),
            ("Range", "lines=1-2"),
        ):
            out[f"{name}: {value}"] = await fetch(site.url("/a"), headers={name: value})
        out["bytes"] = await fetch(site.url("/a"), max_bytes=-1)
        out["time"] = await fetch(site.url("/a"), timeout="1")
        out["nobody"] = await fetch(
            f"http://127.0.0.1:{stage.socket.create_server(('127.0.0.1', 0)).getsockname()[1]}/"
        )

    asyncio.run(story())
    out["asked"] = site.asked
    host.close()
    return out


def test_bad_input_is_refused_before_anything_is_asked(case):
    """Other schemes, user information, foreign headers, invalid ranges: each has its own error."""
    told = case.run(input_story)
    asked, nobody = told.pop("asked"), told.pop("nobody")
    assert asked == []
    assert nobody.startswith("NetworkDenied")
    for given, came in told.items():
        expected = "NetworkTargetMissingError" if given == "" else "InvalidInputError"
        assert str(came).startswith(expected), (given, came)
