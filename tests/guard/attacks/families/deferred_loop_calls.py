"""Deferred execution on the host's event loop."""

from __future__ import annotations

import contextvars
import os
import sys

from tests.guard.attacks.families.deferred_calls import send_signal
from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, settle_on_loop

LOADED = ("asyncio",)
"""What the host has loaded since it installed the guard; see runner.py."""


async def iterate(ground: Ground) -> None:
    """The host uses an asynchronous generator of its own."""

    async def generator():
        yield 1

    async for _ in generator():
        pass


@attack("the hooks of asynchronous generators are set", expect=SANDBOX, after=iterate)
async def asyncgen_hooks(ground: Ground) -> None:
    sys.set_asyncgen_hooks(firstiter=lambda _: ground.steal())


@attack("a task outlives the guard", expect=FILES, after=settle_on_loop)
async def late_task(ground: Ground) -> None:
    import asyncio

    async def work() -> None:
        await asyncio.sleep(0.05)
        ground.steal()

    ground.held.task = asyncio.create_task(work())


@attack("a call is scheduled on the loop", expect=FILES, after=settle_on_loop)
async def call_soon(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_soon(lambda: ground.steal())


@attack("a call is scheduled for later", expect=FILES, after=settle_on_loop)
async def call_later(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_later(0.05, lambda: ground.steal())


@attack("a call is scheduled from the same thread as if from another", expect=FILES, after=settle_on_loop)
async def call_soon_threadsafe(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_soon_threadsafe(lambda: ground.steal())


@attack("a reader is added to the loop", expect=FILES, after=settle_on_loop)
async def add_reader(ground: Ground) -> None:
    import asyncio

    read, write = os.pipe()
    loop = asyncio.get_running_loop()
    loop.add_reader(read, lambda: (loop.remove_reader(read), ground.steal()))
    os.write(write, b"x")


def hold_future(ground: Ground) -> None:
    import asyncio

    ground.held.future = asyncio.get_running_loop().create_future()


class Evil:
    """Looks like a finished future to whoever is given it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def result(self) -> None:
        self.ground.steal()


@attack(
    "a callback on the host's loop is called by the subject with an object of its own",
    expect=FILES,
    prepare=lambda ground: (hold_future(ground), ground.held.future.add_done_callback(lambda it: it.result())),
)
async def callback_of_the_host(ground: Ground) -> None:
    callbacks = ground.held.future._callbacks
    callbacks[0][0](Evil(ground)) if callbacks else ground.steal()


async def finish_future(ground: Ground) -> None:
    ground.held.future.set_result(1)
    await settle_on_loop(ground)


@attack("the host's future gets a callback of the subject", expect=FILES, prepare=hold_future, after=finish_future)
async def done_callback(ground: Ground) -> None:
    ground.held.future.add_done_callback(lambda _: ground.steal())


@attack(
    "the host's future gets a callback of the subject in a context of the host",
    expect=FILES,
    prepare=lambda ground: (hold_future(ground), setattr(ground.held, "empty", contextvars.Context())),
    after=finish_future,
)
async def done_callback_in_host_context(ground: Ground) -> None:
    ground.held.future.add_done_callback(lambda _: ground.steal(), context=ground.held.empty)


@attack(
    "a task in a context of the host takes its second step after the guard was left",
    expect=FILES,
    prepare=lambda ground: setattr(ground.held, "empty", contextvars.Context()),
    after=settle_on_loop,
)
async def late_task_in_host_context(ground: Ground) -> None:
    import asyncio

    async def work() -> None:
        await asyncio.sleep(0.05)
        ground.steal()

    ground.held.task = asyncio.get_running_loop().create_task(work(), context=ground.held.empty)
    await asyncio.sleep(0)


@attack(
    "the loop's signal handler is the subject's",
    expect=FILES,
    after=lambda ground: (send_signal(ground), settle_on_loop(ground))[1],
)
async def loop_signal_handler(ground: Ground) -> None:
    import asyncio
    import signal

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: ground.steal())


async def fail_on_loop(ground: Ground) -> None:
    """Something of the host's fails on the host's loop."""
    import asyncio

    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await settle_on_loop(ground)


@attack("the exception handler of the host's loop is the subject's", expect=FILES, after=fail_on_loop)
async def loop_exception_handler(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().set_exception_handler(lambda *_: ground.steal())


async def start_on_loop(ground: Ground) -> None:
    """The host starts a task of its own."""
    import asyncio

    async def work() -> None:
        pass

    await asyncio.create_task(work())


@attack("the task factory of the host's loop is the subject's", expect=FILES, after=start_on_loop)
async def loop_task_factory(ground: Ground) -> None:
    import asyncio

    def factory(loop: object, coroutine: object, **named: object) -> object:
        ground.steal()
        return asyncio.Task(coroutine, loop=loop, **named)

    asyncio.get_running_loop().set_task_factory(factory)


@attack(
    "the default executor of the host's loop is the subject's",
    expect=SANDBOX,
    after=lambda ground: use_executor(ground),
)
async def loop_executor(ground: Ground) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    class Sly(ThreadPoolExecutor):
        def submit(self, function, /, *args, **named):
            ground.steal()
            return super().submit(function, *args, **named)

    asyncio.get_running_loop().set_default_executor(Sly(1))


@attack(
    "the default executor of the host's loop is of a class that looks like the library's",
    expect=SANDBOX,
    after=lambda ground: use_executor(ground),
)
async def loop_executor_forged(ground: Ground) -> None:
    import asyncio
    from concurrent.futures.thread import ThreadPoolExecutor
    from types import SimpleNamespace

    class Sly(ThreadPoolExecutor):
        submit = ThreadPoolExecutor.submit

        def _adjust_thread_count(self) -> None:
            ground.steal()
            super()._adjust_thread_count()

    name = "concurrent.futures.thread"
    library, sys.modules[name] = sys.modules[name], SimpleNamespace(ThreadPoolExecutor=Sly)
    try:
        asyncio.get_running_loop().set_default_executor(Sly(1))
    finally:
        sys.modules[name] = library


async def use_executor(ground: Ground) -> None:
    import asyncio

    await asyncio.get_running_loop().run_in_executor(None, int)


@attack(
    "a task is cancelled by the host and cleans up",
    expect=FILES,
    after=lambda ground: (ground.held.task.cancel(), settle_on_loop(ground))[1],
)
async def cancelled_task(ground: Ground) -> None:
    import asyncio

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ground.steal()

    ground.held.task = asyncio.create_task(work())
    await asyncio.sleep(0)
