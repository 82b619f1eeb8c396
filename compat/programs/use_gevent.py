"""gevent: greenlets, queues, pools, events and the thread pool, without monkey-patching."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import gevent
    from gevent.event import AsyncResult, Event
    from gevent.fileobject import FileObject
    from gevent.lock import BoundedSemaphore
    from gevent.pool import Pool
    from gevent.queue import Queue

    order = []

    def work(n: int) -> int:
        gevent.sleep(0.01 * (3 - n))
        order.append(n)
        return n * n

    jobs = [gevent.spawn(work, n) for n in range(3)]
    gevent.joinall(jobs, timeout=5)
    assert [job.value for job in jobs] == [0, 1, 4]

    queue, received = Queue(maxsize=1), []

    def produce() -> None:
        for n in range(4):
            queue.put(n)
        queue.put(StopIteration)

    gevent.joinall([gevent.spawn(produce), gevent.spawn(lambda: received.extend(queue))])
    event, answer = Event(), AsyncResult()
    gevent.spawn_later(0.01, event.set)
    gevent.spawn(lambda: answer.set(event.wait(5)))
    lock = BoundedSemaphore(1)
    with lock:
        locked = lock.locked()
    try:
        with gevent.Timeout(0.02):
            gevent.sleep(5)
        timeout = ""
    except gevent.Timeout:
        timeout = "timeout"
    killed = gevent.spawn(gevent.sleep, 60)
    gevent.sleep(0)
    killed.kill()
    path = os.path.join(folder, "a.txt")
    with FileObject(path, "w") as file:
        file.write("hello")
    pool = gevent.get_hub().threadpool
    threaded = [pool.spawn(pow, 2, n) for n in range(3)]
    result = {
        "order": sorted(order),
        "received": received,
        "event": answer.get(timeout=5),
        "locked": locked,
        "timeout": timeout,
        "killed": killed.dead,
        "pool": Pool(2).map(lambda x: x + 1, range(4)),
        "unordered": sorted(Pool(2).imap_unordered(lambda x: x * 10, range(3))),
        "threads": [job.get(timeout=5) for job in threaded],
        "size": os.path.getsize(path),
    }
    pool.kill()
    return result
