"""uvloop: tasks, timers, executors, queues and pipes inside the process."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os
    from concurrent.futures import ThreadPoolExecutor

    import uvloop

    order = []

    async def work(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        order.append(n)
        return n * n

    def write(text: str) -> int:
        with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
            return file.write(text)

    async def run() -> dict:
        loop = asyncio.get_running_loop()
        squares = await asyncio.gather(*[work(n) for n in range(3)])
        fired = []
        loop.call_later(0.02, fired.append, "late")
        loop.call_soon(fired.append, "soon")
        handle = loop.call_later(0.01, fired.append, "never")
        handle.cancel()
        await asyncio.sleep(0.05)
        with ThreadPoolExecutor(2) as pool:
            written = await loop.run_in_executor(pool, write, "hello")
        queue = asyncio.Queue()
        await asyncio.gather(*[queue.put(n) for n in range(3)])
        queued = [queue.get_nowait() for _ in range(3)]
        try:
            await asyncio.wait_for(asyncio.sleep(5), 0.02)
            timeout = ""
        except asyncio.TimeoutError:
            timeout = "timeout"
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
        )
        os.write(writing, b"line\n")
        line = await asyncio.wait_for(reader.readline(), 5)
        transport.close()
        os.close(writing)
        threaded = await asyncio.to_thread(pow, 2, 8)
        return {
            "loop": type(loop).__module__.split(".")[0],
            "squares": squares,
            "fired": fired,
            "written": written,
            "queued": queued,
            "timeout": timeout,
            "cancelled": task.cancelled(),
            "line": line.decode(),
            "threaded": threaded,
        }

    result = uvloop.run(run())
    assert result["loop"] == "uvloop" and sorted(order) == [0, 1, 2]
    return result
