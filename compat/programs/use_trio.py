"""trio: nurseries, cancellation, memory channels, files and worker threads."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import threading

    import trio
    import trio.testing
    from trio._core import _thread_cache

    _thread_cache.IDLE_TIMEOUT = 0.1
    before = threading.enumerate()

    order = []

    async def work(n: int) -> None:
        await trio.sleep(0.01 * n)
        order.append(n)

    async def numbers(send: object) -> None:
        async with send:
            for n in range(4):
                await send.send(n)

    async def run() -> dict:
        async with trio.open_nursery() as nursery:
            for n in (2, 0, 1):
                nursery.start_soon(work, n)
        send, receive = trio.open_memory_channel(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(numbers, send)
            received = [n async for n in receive]
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ValueError("stop")
        except* ValueError as group:
            errors = [str(error) for error in group.exceptions]

        path = trio.Path(folder) / "a.txt"
        await path.write_text("hello")
        async with await trio.open_file(os.path.join(folder, "a.txt")) as file:
            text = await file.read()
        one, two = trio.testing.memory_stream_pair()
        await one.send_all(b"ping")
        data = await two.receive_some(10)
        power = await trio.to_thread.run_sync(pow, 2, 10)
        called = await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(lambda: "from thread"))
        limit = trio.CapacityLimiter(2)
        async with limit:
            used = limit.borrowed_tokens
        return {
            "received": received,
            "cancelled": scope.cancelled_caught,
            "errors": errors,
            "text": text,
            "data": data.decode(),
            "power": power,
            "called": called,
            "used": used,
        }

    result = trio.run(run)
    assert sorted(order) == [0, 1, 2]
    fast = trio.run(trio.sleep, 1000, clock=trio.testing.MockClock(autojump_threshold=0))
    for thread in set(threading.enumerate()) - set(before):
        thread.join(10)
    return {**result, "order": sorted(order), "fast": fast}
