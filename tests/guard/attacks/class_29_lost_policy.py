"""Class 29, the policy is lost on the way: contexts, threads, pools, loops and interpreters all keep it."""

from __future__ import annotations

import contextvars
import threading
import time

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def read(ground: Ground) -> object:
    return open(ground.outside).read()


def hold_contexts(ground: Ground) -> None:
    ground.held.empty, ground.held.copy = contextvars.Context(), contextvars.copy_context()
    ground.held.run = contextvars.Context().run
    ground.held.type = contextvars.Context


def set_all(value: object) -> None:
    for variable in contextvars.copy_context():
        try:
            variable.set(value)
        except Exception:  # noqa: S110 - refusals are fine
            pass


def reset_all(ground: Ground) -> object:
    for variable in contextvars.copy_context():
        try:
            variable.reset(variable.set(None))
        except Exception:  # noqa: S110 - same reason
            pass
    return read(ground)


def cleared(ground: Ground) -> object:
    set_all(None)
    return read(ground)


def cleared_in_copy(ground: Ground) -> object:
    def work() -> object:
        set_all(None)
        return read(ground)

    return contextvars.copy_context().run(work)


def set_by_type(ground: Ground) -> object:
    for variable in contextvars.copy_context():
        try:
            contextvars.ContextVar.set(variable, None)
        except Exception:  # noqa: S110 - same reason
            pass
    return read(ground)


def nested_contexts(ground: Ground) -> object:
    return contextvars.Context().run(contextvars.Context().run, contextvars.copy_context().run, read, ground)


def in_generator(ground: Ground) -> object:
    def generator():
        yield contextvars.Context().run(read, ground)

    return next(generator())


attacks_of(
    {
        "empty": lambda ground: contextvars.Context().run(read, ground),
        "empty_by_type": lambda ground: type(contextvars.copy_context())().run(read, ground),
        "nested": nested_contexts,
        "captured_run": lambda ground: ground.held.run(read, ground),
        "host_empty": lambda ground: ground.held.empty.run(read, ground),
        "host_copy": lambda ground: ground.held.copy.run(read, ground),
        "host_copy_of_copy": lambda ground: ground.held.copy.copy().run(read, ground),
        "host_type": lambda ground: ground.held.type().run(read, ground),
        "cleared": cleared,
        "cleared_in_copy": cleared_in_copy,
        "reset": reset_all,
        "set_by_type": set_by_type,
        "open_itself": lambda ground: contextvars.Context().run(open, ground.outside).read(),
        "in_generator": in_generator,
        "unbound_run": lambda ground: contextvars.Context.run(contextvars.Context(), read, ground),
    },
    "the context is changed or left: {}",
    expect=FILES,
    group="context_",
    prepare=hold_contexts,
)


def joined(ground: Ground, thread) -> None:
    thread.start()
    thread.join()


class NoBootstrap(threading.Thread):
    """A thread that skips what `threading` sets up."""

    ground: Ground

    def _bootstrap_inner(self) -> None:
        self._started.set()
        self.ground.steal()

    def _bootstrap(self) -> None:
        self._bootstrap_inner()


def without_bootstrap(ground: Ground) -> None:
    thread = NoBootstrap(daemon=True)
    thread.ground = ground
    thread.start()
    settle(ground)


def settle(ground: Ground) -> None:
    end = time.monotonic() + 3
    while time.monotonic() < end and not ground.loot and not ground.errors:
        time.sleep(0.01)


def raw_thread(ground: Ground, start: str = "start_new_thread") -> None:
    import _thread

    getattr(_thread, start)(lambda: ground.steal(), ())
    settle(ground)


def raw_in_empty(ground: Ground) -> None:
    import _thread

    contextvars.Context().run(_thread.start_new_thread, lambda: ground.steal(), ())
    settle(ground)


def raw_with_run(ground: Ground) -> None:
    import _thread

    _thread.start_new_thread(ground.held.empty.run, (lambda: ground.steal(),))
    settle(ground)


def subclass(ground: Ground) -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            ground.steal()

    joined(ground, Worker())


def captured_start(ground: Ground) -> None:
    ground.held.start(lambda: ground.steal(), ())
    settle(ground)


def thread_in_thread(ground: Ground) -> None:
    joined(ground, threading.Thread(target=lambda: joined(ground, threading.Thread(target=lambda: ground.steal()))))


def empty_in_thread(ground: Ground) -> None:
    joined(ground, threading.Thread(target=lambda: contextvars.Context().run(lambda: ground.steal())))


def hold_start(ground: Ground) -> None:
    import _thread

    ground.held.start = _thread.start_new_thread


attacks_of(
    {
        "thread": lambda ground: joined(ground, threading.Thread(target=lambda: ground.steal())),
        "subclass": subclass,
        "without_bootstrap": without_bootstrap,
        "timer": lambda ground: joined(ground, threading.Timer(0, lambda: ground.steal())),
        "raw": raw_thread,
        "raw_old_name": lambda ground: raw_thread(ground, "start_new"),
        "raw_in_empty_context": raw_in_empty,
        "raw_with_context_run": raw_with_run,
        "captured_start": captured_start,
        "thread_in_thread": thread_in_thread,
        "empty_context_in_thread": empty_in_thread,
    },
    "a thread is started: {}",
    expect=FILES,
    group="thread_",
    early=hold_start,
    prepare=hold_contexts,
)


@attack("a joinable raw thread is started", expect=FILES, since=(3, 13))
def thread_joinable(ground: Ground) -> None:
    import _thread

    _thread.start_joinable_thread(lambda: ground.steal(), daemon=True)
    settle(ground)


def hold_pools(ground: Ground) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    ground.held.pool, ground.held.fresh = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    ground.held.pool.submit(int).result()
    ground.held.submit = ground.held.pool.submit
    ground.held.old_pool = ThreadPool(1)
    ground.held.old_pool.apply(int)


def own_pool(ground: Ground) -> object:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read, ground).result()


def pool_initializer(ground: Ground) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, initializer=lambda: ground.steal()) as pool:
        pool.submit(int)


def own_old_pool(ground: Ground) -> object:
    from multiprocessing.pool import ThreadPool

    return ThreadPool(1).apply(read, (ground,))


def submit_by_class(ground: Ground) -> object:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor.submit(ground.held.pool, read, ground).result()


def callback_of_future(ground: Ground) -> None:
    future = ground.held.pool.submit(time.sleep, 0.05)
    future.add_done_callback(lambda _: ground.steal())
    settle(ground)


attacks_of(
    {
        "own": own_pool,
        "own_initializer": pool_initializer,
        "own_multiprocessing": own_old_pool,
        "host": lambda ground: ground.held.pool.submit(read, ground).result(),
        "host_fresh": lambda ground: ground.held.fresh.submit(read, ground).result(),
        "host_map": lambda ground: next(ground.held.pool.map(read, [ground])),
        "host_captured_submit": lambda ground: ground.held.submit(read, ground).result(),
        "host_submit_by_class": submit_by_class,
        "host_in_empty_context": lambda ground: contextvars.Context().run(ground.held.pool.submit, read, ground).result(),
        "host_context_run": lambda ground: ground.held.pool.submit(contextvars.Context().run, read, ground).result(),
        "host_multiprocessing": lambda ground: ground.held.old_pool.apply(read, (ground,)),
        "host_multiprocessing_map": lambda ground: ground.held.old_pool.map(read, [ground])[0],
        "host_future_callback": callback_of_future,
    },
    "work is given to a pool: {}",
    expect=FILES,
    group="pool_",
    prepare=hold_pools,
)


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

    return asyncio.run_coroutine_threadsafe(reading(ground), ground.held.loop).result(3)


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


ASYNC = {
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


SCRIPT = "open({inside!r} + '/loot.txt', 'w').write(open({outside!r}).read())"


def script(ground: Ground) -> str:
    return SCRIPT.format(inside=ground.inside, outside=ground.outside)


def taken(ground: Ground) -> object:
    return open(f"{ground.inside}/loot.txt").read()


@attack("another interpreter is made and used", expect=SANDBOX, until=(3, 12))
def interpreter_old(ground: Ground) -> object:
    import _xxsubinterpreters as interpreters

    interpreters.run_string(interpreters.create(), script(ground))
    return taken(ground)


def hold_interpreter_old(ground: Ground) -> None:
    import _xxsubinterpreters as interpreters

    ground.held.interpreter = interpreters.create()


@attack("an interpreter that the host made is used", expect=SANDBOX, until=(3, 12), prepare=hold_interpreter_old)
def interpreter_of_the_host_old(ground: Ground) -> object:
    import _xxsubinterpreters as interpreters

    interpreters.run_string(ground.held.interpreter, script(ground))
    return taken(ground)


@attack("another interpreter is made and used", expect=SANDBOX, since=(3, 13))
def interpreter_new(ground: Ground) -> object:
    import _interpreters

    _interpreters.exec(_interpreters.create(), script(ground))
    return taken(ground)


def hold_interpreter_new(ground: Ground) -> None:
    import _interpreters

    ground.held.interpreter = _interpreters.create()


@attack("an interpreter that the host made is used", expect=SANDBOX, since=(3, 13), prepare=hold_interpreter_new)
def interpreter_of_the_host_new(ground: Ground) -> object:
    import _interpreters

    _interpreters.run_string(ground.held.interpreter, script(ground))
    return taken(ground)
