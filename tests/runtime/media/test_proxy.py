"""Proxy: ranges and conditions are forwarded to the server, and its responses are safe for the application's site."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "media_host.py")
FILM = bytes(range(256)) * 4


def open_stage(world, **more):
    from types import SimpleNamespace

    stage = SimpleNamespace(**world.load(STAGE))
    return stage, stage.Host(world, decides=False, **more)


def film(stage, asked):
    """Answer like a server that supports ranges and tags."""
    common = {"content_type": "video/mp4", "etag": '"f"', "accept_ranges": "bytes", "set_cookie": "id=1"}
    if asked.get("if-none-match") == '"f"':
        return stage.answer(b"", "304 Not Modified", etag='"f"', length="")
    if "range" not in asked:
        return stage.answer(FILM, **common)
    begin, _, end = asked["range"].removeprefix("bytes=").partition("-")
    first, last = int(begin), min(int(end or len(FILM) - 1), len(FILM) - 1)
    if first >= len(FILM):
        return stage.answer(b"", "416 Range Not Satisfiable", content_range=f"bytes */{len(FILM)}", **common)
    part = FILM[first : last + 1]
    return stage.answer(part, "206 Partial Content", content_range=f"bytes {first}-{last}/{len(FILM)}", **common)


def range_story(world):
    stage, host = open_stage(world)
    site = stage.Site()
    site.routes["/film"] = lambda method, asked: film(stage, asked)
    out = {}

    async def ask(name, headers, method="GET"):
        answer = await host.media.proxy(host.asker(site.url()), site.url("/film"), headers, method=method)
        body = b"".join([part async for part in answer.body])
        out[name] = [answer.status, answer.headers, len(body), body == FILM]
        out[f"{name} sent"] = site.asked[-1][2]

    async def story():
        browser = {
            "Cookie": "session=1",
            "Authorization": "Bearer x",
            "Referer": "https://app/",
            "Origin": "https://app",
        }
        await ask("whole", {**browser, "Accept": "video/*", "User-Agent": "Browser"})
        await ask("part", {**browser, "Range": "bytes=10-19", "If-Range": '"f"'})
        await ask("rest", {"range": "bytes=1000-"})
        await ask("beyond", {"Range": "bytes=99999-"})
        await ask("several", {"Range": "bytes=0-1,5-6", "If-Range": '"f"'})
        await ask("unchanged", {"If-None-Match": '"f"'})
        await ask("head", {}, "HEAD")

    asyncio.run(story())
    host.close()
    return out


def test_ranges_and_conditions_pass_and_nothing_about_the_user_does(case):
    """206, 416, 304 and HEAD are passed on; cookies and credentials are dropped in both directions."""
    told = case.run(range_story)
    status, headers, length, same = told["whole"]
    assert (status, length, same) == (200, 1024, True)
    assert headers == {
        "content-type": "video/mp4",
        "content-length": "1024",
        "etag": '"f"',
        "accept-ranges": "bytes",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "cache-control": "private, no-cache",
    }
    sent = told["whole sent"]
    assert sorted(sent) == ["accept", "accept-encoding", "connection", "host", "user-agent"]
    assert (sent["accept"], sent["user-agent"]) == ("video/*", "democrai-sandbox")
    assert told["part"][0] == 206
    assert told["part"][1]["content-range"] == "bytes 10-19/1024"
    assert told["part"][2] == 10
    assert told["part sent"]["if-range"] == '"f"'
    assert (told["rest"][0], told["rest"][2]) == (206, 24)
    assert (told["beyond"][0], told["beyond"][1]["content-range"]) == (416, "bytes */1024")
    assert told["several"][0] == 200
    assert not {"range", "if-range"} & told["several sent"].keys()
    assert (told["unchanged"][0], told["unchanged"][2]) == (304, 0)
    assert (told["head"][0], told["head"][1]["content-length"], told["head"][2]) == (200, "1024", 0)


def foreign_story(world):
    stage, host = open_stage(world)
    from democrai_sandbox.runtime.media.service import status_of

    site = stage.Site()
    kinds = {
        "/page": "text/html; charset=utf-8",
        "/svg": "image/svg+xml",
        "/SVG": "IMAGE/SVG+XML; charset=x",
        "/odd": "image/png, text/html",
        "/none": "",
        "/png": "image/png",
        "/sound": 'audio/ogg; codecs="opus"',
    }
    for path, kind in kinds.items():
        site.text(path, b"<script>", content_type=kind)
    site.text("/hard", b"x", content_type="image/png", cache_control="no-store", location="/elsewhere", connection="x")
    site.text("/packed", b"\x1f\x8b" + b"x" * 20, content_type="image/png", content_encoding="gzip")
    site.text("/key", b"", "401 Unauthorized", www_authenticate="Basic realm=x")
    out = {}

    async def story():
        for path in (*kinds, "/hard", "/packed", "/key"):
            answer = await host.media.proxy(host.asker(site.url()), site.url(path), {})
            body = b"".join([part async for part in answer.body])
            out[path] = [answer.status, answer.headers, len(body)]
        for name, url in (("locked", "http://127.0.0.2:1/x"), ("bad", "ftp://x/"), ("gone", site.url("/x"))):
            try:
                asker = host.asker(site.url())
                site.routes["/x"] = lambda *_: b""
                await host.media.proxy(asker, url, {})
            except Exception as error:
                out[name] = [status_of(error), type(error).__name__]

    asyncio.run(story())
    host.close()
    return out


def test_foreign_content_runs_nothing_on_the_applications_site(case):
    """Only images, audio and video are displayed; invalid types and images with scripts are downloads."""
    told = case.run(foreign_story)
    for path in ("/page", "/svg", "/SVG", "/odd", "/none"):
        assert told[path][1]["content-disposition"] == "attachment", path
    for path in ("/png", "/sound", "/packed", "/hard"):
        assert "content-disposition" not in told[path][1], path
    assert told["/odd"][1]["content-type"] == told["/none"][1]["content-type"] == "application/octet-stream"
    assert told["/hard"][1]["cache-control"] == "no-store"
    assert not {"location", "connection"} & told["/hard"][1].keys()
    assert (told["/packed"][1]["content-encoding"], told["/packed"][2]) == ("gzip", 22)
    assert told["/key"][0] == 401
    assert "www-authenticate" not in told["/key"][1]
    assert told["locked"] == [403, "NetworkDenied"]
    assert told["bad"] == [400, "InvalidInputError"]
    assert told["gone"] == [502, "MediaBroken"]


def tls_story(world):
    import ssl

    from democrai_sandbox.runtime.media.service import Media
    from democrai_sandbox.runtime.media.values import MediaLimits

    trust, chain = world.args
    client, server = ssl.create_default_context(cafile=trust), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    stage, host = open_stage(world, tls=client, connect_seconds=60.0)
    hasty = Media(stage.Nobody(), data_dir=host.data, limits=MediaLimits(connect_seconds=1.0), tls=client)
    site, plain, stranger = stage.Site(tls=server), stage.Site(), stage.Site("127.0.0.2", tls=server)
    site.text("/a", b"safe")
    site.moved("/down", plain.url("/a"))
    plain.text("/a", b"plain")
    plain.moved("/up", site.url("/a"))
    stranger.text("/a", b"x")
    mute = stage.socket.create_server(("127.0.0.1", 0))
    out = {}

    async def fetch(url, media=host.media):
        found = await stage.told(media.fetch(host.asker(site.url(), plain.url(), stranger.url(), url), url))
        return found if isinstance(found, str) else found.body.decode()

    async def story():
        out["tls"] = await fetch(site.url("/a"))
        out["down"] = await fetch(site.url("/down"))
        out["up"] = await fetch(plain.url("/up"))
        out["wrong name"] = await fetch(stranger.url("/a"))
        out["no tls"] = await fetch(plain.url("/a").replace("http:", "https:"), hasty)
        out["mute"] = await fetch(f"https://127.0.0.1:{mute.getsockname()[1]}/", hasty)

    asyncio.run(story())
    out["plain asked"] = plain.paths()
    hasty.close()
    host.close()
    return out


def test_https_is_verified_and_never_given_up_for_http(case):
    """A certificate for another name is refused; a redirect from https to http is refused before it is requested."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    trust, chain = case.base / "ca.pem", case.base / "site.pem"
    authority.cert_pem.write_to_path(str(trust))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(chain))
    told = case.run(tls_story, str(trust), str(chain))
    assert told["tls"] == "safe"
    assert told["down"].startswith("MediaRedirectRefused: ")
    sentence("from https to http", told["down"])
    assert told["up"] == "safe"
    assert told["wrong name"].startswith("MediaUnreachable")
    assert told["no tls"].startswith(("MediaUnreachable", "MediaTimeout"))
    assert told["mute"].startswith("MediaTimeout")
    assert told["plain asked"] == ["/up"]
