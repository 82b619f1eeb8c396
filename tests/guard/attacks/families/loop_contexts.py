"""Tasks, callbacks and event loops that could lose the policy."""

from __future__ import annotations

import contextvars
import threading

from tests.guard.attacks.families.contexts_and_threads import hold_contexts, hold_pools, read, set_all
from tests.guard.attacks.kit import FILES, SANDBOX, TIMEOUT, Ground, attack, attacks_of, settle, settle_on_loop

LOADED = ("asyncio", "concurrent.futures.thread", "multiprocessing.pool")
"""What the host has loaded since it installed the guard; see runner.py."""


def hold_loop(ground: Ground) -> None:
    """A loop of the host that runs in a thread of its own."""
    import asyncio

    ground.held.loop = asyncio.new_event_loop()
    threading.Thread(target=ground.held.loop.run_forever, daemon=True).start()
    hold_contexts(ground)


async def reading(ground: Ground) -> object:
    return read(ground)


def coroutine_threadsafe(ground: Ground) -> object:
    import asyncio

    return asyncio.run_coroutine_threadsafe(reading(ground), ground.held.loop).result(TIMEOUT)


def call_threadsafe(ground: Ground, **options: object) -> None:
    ground.held.loop.call_soon_threadsafe(lambda: ground.steal(), **options)
    settle(ground)


def task_on_host_loop(ground: Ground) -> None:
    async def work() -> None:
        ground.steal()

    ground.held.loop.call_soon_threadsafe(ground.held.loop.create_task, work())
    settle(ground)


attacks_of(
    {
        "coroutine": coroutine_threadsafe,
        "call": call_threadsafe,
        "call_in_empty_context": lambda ground: call_threadsafe(ground, context=contextvars.Context()),
        "call_in_host_context": lambda ground: call_threadsafe(ground, context=ground.held.copy),
        "call_in_host_empty_context": lambda ground: call_threadsafe(ground, context=ground.held.empty),
        "called_from_empty_context": lambda ground: contextvars.Context().run(call_threadsafe, ground),
        "task": task_on_host_loop,
    },
    "work is given to a loop of the host in another thread: {}",
    expect=FILES | SANDBOX,
    group="loop_",
    prepare=hold_loop,
)


@attack("a new loop is made and run", expect=FILES)
def own_loop(ground: Ground) -> object:
    import asyncio

    return asyncio.run(reading(ground))


@attack("a runner with an empty context is used", expect=FILES)
def own_runner(ground: Ground) -> object:
    import asyncio

    with asyncio.Runner() as runner:
        return runner.run(reading(ground), context=contextvars.Context())


def in_task(**options: object):
    async def act(ground: Ground) -> object:
        import asyncio

        chosen = {key: value(ground) for key, value in options.items()}
        return await asyncio.get_running_loop().create_task(reading(ground), **chosen)

    return act


def empty(ground: Ground) -> contextvars.Context:
    return contextvars.Context()


async def c_task(ground: Ground) -> object:
    import _asyncio
    import asyncio

    return await _asyncio.Task(reading(ground), loop=asyncio.get_running_loop(), context=ground.held.empty)


async def python_task(ground: Ground) -> object:
    import asyncio

    return await asyncio.tasks._PyTask(reading(ground), loop=asyncio.get_running_loop(), context=ground.held.empty)


async def handle(ground: Ground, context: contextvars.Context | None = None) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: ground.steal(), context=context)
    await asyncio.sleep(0.02)


async def to_thread(ground: Ground) -> object:
    import asyncio

    return await asyncio.to_thread(read, ground)


async def default_executor(ground: Ground) -> object:
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, read, ground)


async def host_executor(ground: Ground) -> object:
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(ground.held.pool, read, ground)


async def group(ground: Ground) -> object:
    import asyncio

    async with asyncio.TaskGroup() as tasks:
        return await tasks.create_task(reading(ground), context=contextvars.Context())


async def task_factory(ground: Ground) -> object:
    import asyncio

    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine, **_: asyncio.Task(coroutine, loop=loop, context=ground.held.copy))
    try:
        return await asyncio.create_task(reading(ground))
    finally:
        loop.set_task_factory(None)


async def future_callback(ground: Ground) -> None:
    import asyncio

    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda _: ground.steal(), context=ground.held.empty)
    future.set_result(1)
    await asyncio.sleep(0.02)


async def sleep_between(ground: Ground) -> object:
    import asyncio

    await asyncio.sleep(0.02)
    return read(ground)


async def throw_into(ground: Ground) -> object:
    """The guarded step is resumed by an exception instead of a value."""
    import asyncio

    async def work() -> object:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return read(ground)
        return None

    task = asyncio.create_task(work(), context=ground.held.copy)
    await asyncio.sleep(0)
    task.cancel()
    return await task


async def second_step(ground: Ground) -> object:
    """A task in a context of the host reads in its second step."""
    import asyncio

    async def work() -> object:
        await asyncio.sleep(0.01)
        return read(ground)

    return await asyncio.get_running_loop().create_task(work(), context=ground.held.empty)


async def in_empty_context(ground: Ground) -> object:
    return contextvars.Context().run(read, ground)


async def in_host_context(ground: Ground) -> object:
    return ground.held.empty.run(read, ground)


async def with_variables_cleared(ground: Ground) -> object:
    set_all(None)
    return read(ground)


async def after_variables_cleared(ground: Ground) -> object:
    import asyncio

    set_all(None)
    await asyncio.sleep(0.01)
    return read(ground)


async def by_generator(ground: Ground) -> object:
    async def generator():
        yield read(ground)

    return await anext(generator())


async def by_own_thread(ground: Ground) -> object:
    import _thread

    _thread.start_new_thread(lambda: ground.steal(), ())
    await settle_on_loop(ground)
    return None


async def by_send(ground: Ground) -> object:
    """The coroutine is driven by hand in a context of the host."""
    coroutine = reading(ground)
    try:
        ground.held.empty.run(coroutine.send, None)
    except StopIteration as end:
        return end.value
    return None


ASYNC = {
    "second_step": second_step,
    "empty_context": in_empty_context,
    "host_context": in_host_context,
    "cleared": with_variables_cleared,
    "cleared_before_sleep": after_variables_cleared,
    "generator": by_generator,
    "raw_thread": by_own_thread,
    "sent": by_send,
    "await": reading,
    "after_sleep": sleep_between,
    "task": in_task(),
    "task_in_empty_context": in_task(context=empty),
    "task_in_host_context": in_task(context=lambda ground: ground.held.copy),
    "task_in_host_empty_context": in_task(context=lambda ground: ground.held.empty),
    "c_task": c_task,
    "python_task": python_task,
    "task_factory": task_factory,
    "task_group": group,
    "thrown": throw_into,
    "call": handle,
    "call_in_empty_context": lambda ground: handle(ground, contextvars.Context()),
    "call_in_host_context": lambda ground: handle(ground, ground.held.copy),
    "call_in_host_empty_context": lambda ground: handle(ground, ground.held.empty),
    "future_callback": future_callback,
    "to_thread": to_thread,
    "default_executor": default_executor,
    "host_executor": host_executor,
}
for name, act in ASYNC.items():

    async def play(ground: Ground, act=act) -> object:
        return await act(ground)

    for form in ("with", "run"):
        attack(
            f"asynchronous work leaves the guard ({form}): {name}",
            expect=FILES | SANDBOX,
            name=f"async_{form}_{name}",
            form=form,
            prepare=lambda ground: (hold_contexts(ground), hold_pools(ground))[0],
        )(play)


@attack("a task starts eagerly in a context of the host", expect=FILES | SANDBOX, since=(3, 12), prepare=hold_contexts)
async def eager_task(ground: Ground) -> object:
    import asyncio

    loop = asyncio.get_running_loop()
    return await asyncio.Task(reading(ground), loop=loop, context=ground.held.empty, eager_start=True)


@attack("eager tasks are switched on for the host's loop", expect=FILES | SANDBOX, since=(3, 12))
async def eager_factory(ground: Ground) -> object:
    import asyncio

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        return await asyncio.create_task(reading(ground), context=contextvars.Context())
    finally:
        loop.set_task_factory(None)
