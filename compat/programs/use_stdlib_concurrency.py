"""Standard library: thread pools, futures, asyncio, queues and context variables."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import contextvars
    import os
    import queue
    import threading
    from concurrent.futures import ThreadPoolExecutor, as_completed
    from multiprocessing.pool import ThreadPool

    with ThreadPool(3) as pool:
        mapped = pool.map(lambda x: x * x, range(6))
        applied = pool.apply_async(pow, (2, 10)).get(timeout=10)
        ordered = list(pool.imap(str, range(3)))
        starred = pool.starmap(max, [(1, 2), (4, 3)])
        pool.close()
        pool.join()

    def write(n: int) -> int:
        with open(os.path.join(folder, f"{n}.txt"), "w", encoding="utf-8") as file:
            return file.write("x" * n)

    with ThreadPoolExecutor(max_workers=3, thread_name_prefix="use") as executor:
        futures = [executor.submit(write, n) for n in range(5)]
        sizes = sorted(future.result() for future in as_completed(futures, timeout=10))
        failed = executor.submit(lambda: 1 / 0).exception(timeout=10)
        results = list(executor.map(len, ["a", "bb"]))

    name = contextvars.ContextVar("name", default="none")

    async def worker(tasks: asyncio.Queue, done: list) -> None:
        while True:
            done.append(await tasks.get() * 2)
            tasks.task_done()

    async def run() -> dict:
        tasks, done = asyncio.Queue(), []
        for n in range(5):
            tasks.put_nowait(n)
        workers = [asyncio.create_task(worker(tasks, done)) for _ in range(2)]
        await tasks.join()
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        name.set("inside")
        threaded = await asyncio.to_thread(name.get)
        try:
            await asyncio.wait_for(asyncio.sleep(5), 0.02)
            timeout = ""
        except asyncio.TimeoutError:
            timeout = "timeout"
        async with asyncio.TaskGroup() as group:
            grouped = [group.create_task(asyncio.sleep(0.01, n)) for n in range(3)]
        lock, event = asyncio.Lock(), asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, event.set)
        async with lock:
            await event.wait()
        executed = await asyncio.get_running_loop().run_in_executor(None, sum, [1, 2, 3])
        return {
            "done": sorted(done),
            "threaded": threaded,
            "timeout": timeout,
            "grouped": [task.result() for task in grouped],
            "executed": executed,
        }

    result = asyncio.run(run())
    assert name.get() == "none"
    context = contextvars.copy_context()
    context.run(name.set, "copied")

    items: queue.PriorityQueue = queue.PriorityQueue()
    barrier, total, lock = threading.Barrier(3), [0], threading.Lock()
    local = threading.local()

    def count(n: int) -> None:
        barrier.wait(10)
        local.value = n
        for _ in range(100):
            with lock:
                total[0] += 1
        items.put(local.value)

    threads = [threading.Thread(target=count, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    timer = threading.Timer(0.01, items.put, [9])
    timer.start()
    timer.join(10)
    return {
        **result,
        "pool": [mapped, applied, ordered, starred],
        "futures": [sizes, type(failed).__name__, results],
        "context": [context[name], name.get()],
        "threads": [total[0], [items.get() for _ in range(4)]],
        "left": len([thread for thread in threading.enumerate() if thread.name.startswith("use")]),
    }
