"""Ordinary work with httpx and httpx2, which have the same interface."""

from __future__ import annotations

import hashlib

BLOB = bytes(range(256)) * 4096  # a megabyte, which no socket accepts in one piece
DIGEST = hashlib.sha256(BLOB).hexdigest()


def httpx_client(world, library="httpx"):
    module = __import__(library)
    with module.Client(base_url=world.url("http", "/work")) as client:
        peers = {client.get("/x").json()["peer"] for _ in range(4)}
        assert client.get("/gzip").text == "squeezed " * 100
        client.get("/cookies")
        assert client.get("/cookies").json() == {"flavour": "oat"}
        assert client.post("/upload", content=BLOB).json()["sha256"] == DIGEST
        assert client.post("/upload", files={"f": BLOB}).json()["type"] == "multipart/form-data"
        assert client.get("/redirect?to=/work/there", follow_redirects=True).json()["path"] == "/work/there"
        with client.stream("GET", "/chunked?count=30") as response:
            assert len(list(response.iter_lines())) == 30
    assert len(peers) == 1


def httpx2_client(world):
    httpx_client(world, "httpx2")


def httpx_timeout(world, library="httpx"):
    module = __import__(library)
    try:
        module.get(world.url("http", "/work/slow?seconds=2"), timeout=0.2)
    except module.ReadTimeout:
        return
    raise AssertionError("no timeout")


def httpx2_timeout(world):
    httpx_timeout(world, "httpx2")


def httpx_no_target(world, library="httpx"):
    """The client rejects anything that is not a web URL, with its own error."""
    module = __import__(library)
    for url in ("nothing", "unknown://example.com"):
        try:
            module.get(url)
        except module.UnsupportedProtocol:
            continue
        raise AssertionError(url)


def httpx2_no_target(world):
    httpx_no_target(world, "httpx2")


def httpx_proxy(world, library="httpx"):
    module = __import__(library)
    context = world.tls()
    with module.Client(proxy=f"http://{world.at('proxy')}", verify=context) as client:
        assert client.get(world.url("http", "/work/x")).json()["path"] == "/work/x"
        assert client.get(world.url("https", "/work/y")).json()["path"] == "/work/y"


def httpx2_proxy(world):
    httpx_proxy(world, "httpx2")


def httpx_http2(world, library="httpx"):
    module = __import__(library)
    with module.Client(http2=True, verify=world.tls()) as client:
        answers = [client.get(world.url("http2", f"/work/{number}")) for number in range(3)]
        assert {answer.http_version for answer in answers} == {"HTTP/2"}
        assert client.post(world.url("http2", "/work/x"), content=b"body").json()["body"] == "body"


def httpx2_http2(world):
    httpx_http2(world, "httpx2")


async def httpx_async(world, library="httpx"):
    import asyncio

    module = __import__(library)
    async with module.AsyncClient(base_url=world.url("http", "/work"), verify=world.tls()) as client:
        answers = await asyncio.gather(*(client.get(f"/{number}") for number in range(10)))
        assert [answer.json()["path"] for answer in answers] == [f"/work/{number}" for number in range(10)]
        assert (await client.post("/upload", content=BLOB)).json()["sha256"] == DIGEST
        async with client.stream("GET", "/chunked?count=30") as response:
            assert len([line async for line in response.aiter_lines()]) == 30
        assert (await client.get(world.url("https", "/work/x"))).status_code == 200


async def httpx2_async(world):
    await httpx_async(world, "httpx2")


async def httpx2_async_http2(world):
    import asyncio

    import httpx2

    async with httpx2.AsyncClient(http2=True, verify=world.tls()) as client:
        urls = [world.url("http2", f"/work/{number}") for number in range(10)]
        answers = await asyncio.gather(*map(client.get, urls))
    assert {answer.http_version for answer in answers} == {"HTTP/2"}


def httpx2_http2_large(world):
    """Headers longer than a frame, a body longer than the window, repeated and indexed header fields."""
    import httpx2

    with httpx2.Client(http2=True, verify=world.tls(), headers={"X-Long": "long " * 5000}) as client:
        for _ in range(3):
            answer = client.post(world.url("http2", "/work/upload"), content=BLOB, cookies={"a": "1", "b": "2"})
            assert answer.http_version == "HTTP/2"
            assert answer.json()["size"] == len(BLOB)


async def httpx2_http2_at_once(world):
    """Parallel uploads and downloads on one connection."""
    import asyncio

    import httpx2

    async with httpx2.AsyncClient(http2=True, verify=world.tls()) as client:

        async def one(number):
            url = world.url("http2", f"/work/{number}")
            answer = await (client.post(url, content=BLOB[:50000]) if number % 2 else client.get(url))
            return answer.json()["path"]

        paths = await asyncio.gather(*map(one, range(20)))
    assert paths == [f"/work/{number}" for number in range(20)]


def httpx_mock_transport(world, library="httpx"):
    """Without a network: a custom transport for a declared URL."""
    module = __import__(library)
    transport = module.MockTransport(lambda request: module.Response(200, text="made up"))
    with module.Client(transport=transport) as client:
        assert client.get(world.url("http", "/work/x")).text == "made up"


def httpx2_mock_transport(world):
    httpx_mock_transport(world, "httpx2")
