"""Ordinary concurrent work: threads, pools, loops and synchronization. It does not leave the machine."""

from __future__ import annotations

import os


def thread_pool(w):
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda x: x * x, range(20))) == [x * x for x in range(20)]
        futures = [pool.submit(pow, 2, n) for n in range(5)]
        assert {future.result() for future in concurrent.futures.as_completed(futures)} == {1, 2, 4, 8, 16}
        failing = pool.submit(lambda: 1 / 0)
        assert isinstance(failing.exception(), ZeroDivisionError)


def threads(w):
    import threading

    local = threading.local()
    results = []
    lock = threading.RLock()

    def work(n):
        local.value = n
        with lock:
            results.append(local.value)

    workers = [threading.Thread(target=work, args=(n,), name=f"w{n}", daemon=True) for n in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results) == [0, 1, 2, 3, 4]
    assert threading.current_thread().name
    timer = threading.Timer(0, lambda: results.append("timer"))
    timer.start()
    timer.join()
    assert results[-1] == "timer"


def primitives(w):
    import queue
    import threading

    event, condition, barrier = threading.Event(), threading.Condition(), threading.Barrier(2)
    lines = queue.Queue(maxsize=1)

    def other():
        barrier.wait()
        lines.put("x")
        with condition:
            condition.notify()
        event.set()

    thread = threading.Thread(target=other)
    thread.start()
    barrier.wait()
    assert lines.get(timeout=5) == "x"
    assert event.wait(5)
    thread.join()
    assert threading.Semaphore(1).acquire()


def thread_failures(w):
    import threading

    caught = []
    previous = threading.excepthook
    threading.excepthook = lambda args: caught.append(args.exc_type)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    threading.excepthook = previous
    assert caught == [ZeroDivisionError]


def event_loop(w):
    import asyncio

    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, sum, [1, 2]) == 3
        assert await asyncio.to_thread(os.path.basename, "/a/b") == "b"
        done = []
        loop.call_soon(done.append, 1)
        loop.call_later(0.001, done.append, 2)
        await asyncio.sleep(0.02)
        assert done == [1, 2]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
        assert [task.result() for task in tasks] == [0, 1, 2]
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            pass
        queue = asyncio.Queue()
        await queue.put(1)
        assert await queue.get() == 1
        with open(os.path.join(w.root, "f"), "w") as file:
            file.write("x")
        await asyncio.gather(*(asyncio.to_thread(os.stat, file.name) for _ in range(5)))
        async with asyncio.Lock(), asyncio.Semaphore(1):
            pass
        assert await asyncio.wait_for(asyncio.shield(asyncio.sleep(0, "shielded")), 1) == "shielded"

    asyncio.run(main())


def loop_runner(w):
    import asyncio
    import contextvars

    variable = contextvars.ContextVar("w", default=0)

    async def bump():
        variable.set(variable.get() + 1)
        return variable.get()

    with asyncio.Runner() as runner:
        assert runner.run(bump()) == 1
        assert runner.run(bump(), context=contextvars.copy_context()) >= 1
    loop = asyncio.new_event_loop()
    loop.run_until_complete(bump())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def async_generators(w):
    import asyncio
    import contextlib

    async def numbers():
        for n in range(3):
            yield n
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def manager():
        yield "m"

    async def main():
        assert [n async for n in numbers()] == [0, 1, 2]
        async with manager() as value, contextlib.AsyncExitStack() as stack:
            assert value == "m"
            await stack.enter_async_context(manager())

    asyncio.run(main())


def eager_tasks(w):
    import asyncio

    if not hasattr(asyncio, "eager_task_factory"):
        return

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        assert await asyncio.create_task(asyncio.sleep(0, 1)) == 1

    asyncio.run(main())


def loop_descriptors(w):
    import asyncio

    async def main():
        loop = asyncio.get_running_loop()
        read_end, write_end = os.pipe()
        seen = loop.create_future()
        loop.add_reader(read_end, lambda: seen.done() or seen.set_result(os.read(read_end, 1)))
        os.write(write_end, b"x")
        assert await seen == b"x"
        loop.remove_reader(read_end)
        os.close(read_end)
        os.close(write_end)

    asyncio.run(main())


def loop_signals(w):
    import asyncio
    import signal

    async def main():
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, seen.set)
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.wait_for(seen.wait(), 5)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())


def selectors_and_poll(w):
    import select
    import selectors

    read_end, write_end = os.pipe()
    with selectors.DefaultSelector() as selector:
        selector.register(read_end, selectors.EVENT_READ, "data")
        os.write(write_end, b"x")
        ((key, _),) = selector.select(1)
        assert key.data == "data"
    assert select.select([read_end], [], [], 0)[0] == [read_end]
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    assert poll.poll(0)
    os.close(read_end)
    os.close(write_end)


def multiprocessing_primitives(w):
    """Use locks, queues, values and shared memory without a process."""
    import multiprocessing
    import multiprocessing.connection
    import multiprocessing.dummy

    assert multiprocessing.cpu_count()
    left, right = multiprocessing.Pipe()
    left.send({"a": 1})
    assert right.recv() == {"a": 1}
    left.close()
    right.close()
    with multiprocessing.dummy.Pool(2) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]


def schedulers(w):
    import sched
    import time

    seen = []
    scheduler = sched.scheduler(time.monotonic, time.sleep)
    scheduler.enter(0, 1, seen.append, ("x",))
    scheduler.run()
    assert seen == ["x"]


def local_sockets(w):
    """Use a pair of connected sockets and a loop over them, without an address."""
    import asyncio
    import socket

    async def main():
        left, right = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=left)
        other_reader, other_writer = await asyncio.open_connection(sock=right)
        writer.write(b"line\n")
        assert await other_reader.readline() == b"line\n"
        for each in (writer, other_writer):
            each.close()
            await each.wait_closed()

    asyncio.run(main())


def files_in_many_threads(w):
    import concurrent.futures

    def work(n):
        path = os.path.join(w.root, f"f{n}")
        with open(path, "w") as file:
            file.write(str(n))
        with open(path) as file:
            value = file.read()
        os.unlink(path)
        return value

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(100))) == [str(n) for n in range(100)]


def asyncio_debug_mode(w):
    import asyncio

    asyncio.run(asyncio.sleep(0), debug=True)


def what_was_handed_over(w):
    """Callbacks and handlers are shown as they were passed."""
    import asyncio
    import traceback

    def callback(*args):
        return None

    async def look():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        future.add_done_callback(callback)
        assert "callback()" in repr(future)
        assert [given for given, _ in future._callbacks] == [callback]
        loop.set_exception_handler(callback)
        assert loop.get_exception_handler() is callback
        factory = lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options)
        loop.set_task_factory(factory)
        assert loop.get_task_factory() is factory
        loop.set_task_factory(None)
        try:
            await loop.create_connection(asyncio.Protocol, "localhost", 1, sock=object())
        except ValueError as error:
            traceback.clear_frames(error.__traceback__)
        assert future.remove_done_callback(callback) == 1

    asyncio.run(look())
