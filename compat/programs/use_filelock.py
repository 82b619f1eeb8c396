"""filelock: locks on files, with a timeout, from threads and from asyncio."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os
    import threading

    from filelock import AsyncFileLock, FileLock, SoftFileLock, Timeout

    path = os.path.join(folder, "a.lock")
    lock = FileLock(path)
    with lock:
        with lock:
            inside = lock.is_locked
        try:
            FileLock(path, timeout=0.05).acquire()
            second = "acquired"
        except Timeout:
            second = "timeout"
    outside = lock.is_locked

    counter = os.path.join(folder, "counter.txt")
    with open(counter, "w", encoding="utf-8") as file:
        file.write("0")

    def add() -> None:
        for _ in range(10):
            with FileLock(path):
                with open(counter, encoding="utf-8") as file:
                    value = int(file.read())
                with open(counter, "w", encoding="utf-8") as file:
                    file.write(str(value + 1))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(counter, encoding="utf-8") as file:
        count = int(file.read())
    assert count == 30

    soft_path = os.path.join(folder, "soft.lock")
    with SoftFileLock(soft_path):
        present = os.path.exists(soft_path)

    async def later() -> bool:
        async with AsyncFileLock(os.path.join(folder, "async.lock")) as held:
            return held.is_locked

    return {
        "inside": inside,
        "second": second,
        "outside": outside,
        "count": count,
        "soft": [present, os.path.exists(soft_path)],
        "async": asyncio.run(later()),
    }
