"""anyio: task groups, streams, threads, files and locks on asyncio and on trio."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import threading

    import anyio
    from anyio.from_thread import start_blocking_portal
    from anyio.streams.buffered import BufferedByteReceiveStream
    from anyio.streams.text import TextReceiveStream
    from trio._core import _thread_cache

    _thread_cache.IDLE_TIMEOUT = 0.1
    before = threading.enumerate()

    async def run(name: str) -> dict:
        order, received = [], []

        async def work(n: int) -> None:
            await anyio.sleep(0.01 * n)
            order.append(n)

        async def start(task_status: object = anyio.TASK_STATUS_IGNORED) -> None:
            task_status.started("ready")

        async with anyio.create_task_group() as group:
            for n in (2, 0, 1):
                group.start_soon(work, n)
            ready = await group.start(start)
        send, receive = anyio.create_memory_object_stream(5)
        async with send, receive:
            for n in range(3):
                await send.send(n)
            await send.aclose()
            async for n in receive:
                received.append(n)
        bytes_send, bytes_receive = anyio.create_memory_object_stream(5)
        async with bytes_send, bytes_receive:
            await bytes_send.send("caf\u00e9\nx".encode())
            line = await BufferedByteReceiveStream(bytes_receive).receive_until(b"\n", 100)
        text_send, text_receive = anyio.create_memory_object_stream(5)
        async with text_send, text_receive:
            await text_send.send(b"text")
            text = await TextReceiveStream(text_receive).receive()
        with anyio.move_on_after(0.01) as scope:
            await anyio.sleep(5)
        path = anyio.Path(os.path.join(folder, name))
        await path.write_text("content")
        async with await anyio.open_file(path) as file:
            content = await file.read()
        threaded = await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(anyio.sleep, 0) or pow(2, 5))
        lock = anyio.Lock()
        async with lock:
            locked = lock.locked()
        assert sorted(order) == [0, 1, 2] and received == [0, 1, 2]
        return {
            "ready": ready,
            "line": line.decode(),
            "text": text,
            "cancelled": scope.cancelled_caught,
            "content": content,
            "threaded": threaded,
            "locked": locked,
        }

    result = {name: anyio.run(run, name, backend=name) for name in ("asyncio", "trio")}
    assert result["asyncio"] == result["trio"]
    with start_blocking_portal() as portal:
        result["portal"] = portal.call(anyio.sleep, 0) or portal.start_task_soon(lambda: 7).result(5)
    for thread in set(threading.enumerate()) - set(before):
        thread.join(10)
    return result
