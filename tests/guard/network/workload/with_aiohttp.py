"""Ordinary work with aiohttp."""

from __future__ import annotations

import hashlib

BLOB = bytes(range(256)) * 4096  # a megabyte, which no socket accepts in one piece
DIGEST = hashlib.sha256(BLOB).hexdigest()


async def aiohttp_session(world):
    import aiohttp

    home = world.url("http", "/work")
    async with aiohttp.ClientSession() as session:
        peers = set()
        for number in range(4):
            async with session.get(f"{home}/{number}") as response:
                peers.add((await response.json())["peer"])
        for expected in ({}, {"flavour": "oat"}):
            async with session.get(f"{home.replace('127.0.0.1', 'localhost')}/cookies") as response:
                assert await response.json() == expected
        async with session.get(f"{home}/gzip") as response:
            assert await response.text() == "squeezed " * 100
        async with session.post(f"{home}/upload", data=BLOB) as response:
            assert (await response.json())["sha256"] == DIGEST
        async with session.get(f"{home}/redirect?to=/work/there") as response:
            assert (await response.json())["path"] == "/work/there"
        async with session.get(f"{home}/chunked?count=30") as response:
            assert len([line async for line in response.content]) == 30
    assert len(peers) == 1


async def aiohttp_websocket(world):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(world.url("http", "/work/socket?greet=1")) as socket:
            assert await socket.receive_str() == "hello"
            await socket.send_str("stressed")
            assert await socket.receive_str() == "desserts"
            await socket.send_bytes(b"\x00\xff")
            assert await socket.receive_bytes() == b"\x00\xff"
        async with session.ws_connect(world.url("https", "/work/socket"), ssl=world.tls()) as socket:
            await socket.send_json({"a": 1})
            assert (await socket.receive_str())[::-1] == '{"a": 1}'


async def aiohttp_many(world):
    import asyncio

    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def status(number):
            async with session.get(world.url("http", f"/work/{number}")) as response:
                return response.status

        assert set(await asyncio.gather(*map(status, range(30)))) == {200}


async def aiohttp_timeout(world):
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(0.2)) as session:
        try:
            async with session.get(world.url("http", "/work/slow?seconds=2")):
                raise AssertionError("no timeout")
        except TimeoutError:
            pass


async def aiohttp_as_coroutine(world):
    """A request is also a coroutine: it is awaited, made a task, cancelled, stepped manually, and dropped."""
    import asyncio

    import aiohttp

    url = world.url("http", "/work/x")
    async with aiohttp.ClientSession() as session:
        (await session.get(url)).release()
        (await asyncio.create_task(session.get(url))).release()
        slow = asyncio.create_task(session.get(world.url("http", "/work/slow?seconds=2")))
        await asyncio.sleep(0.05)
        slow.cancel()
        assert isinstance((await asyncio.gather(slow, return_exceptions=True))[0], asyncio.CancelledError)
        session.get(url).close()
        for error in (KeyError("key"), OSError(5, "five")):
            try:
                session.get(url).throw(error)
            except type(error) as raised:
                assert raised is error
        stepped = session.get(world.url("http", "/work/slow?seconds=2"))
        assert asyncio.isfuture(stepped.send(None))
        stepped.close()
        try:
            stepped.send(None)
        except RuntimeError as error:
            assert "already awaited" in str(error)


async def aiohttp_proxy(world):
    import aiohttp

    proxy = f"http://{world.at('proxy')}"
    async with aiohttp.ClientSession() as session:
        async with session.get(world.url("http", "/work/x"), proxy=proxy) as response:
            assert (await response.json())["path"] == "/work/x"
        async with session.get(world.url("https", "/work/y"), proxy=proxy, ssl=world.tls()) as response:
            assert (await response.json())["path"] == "/work/y"
