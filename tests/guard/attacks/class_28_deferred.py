"""Class 28, deferred execution: what guarded code sets up runs under its guard, whenever and by whomever it is run."""

from __future__ import annotations

import contextvars
import os
import sys
import time

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def wait(ground: Ground) -> None:
    """Give other threads time; the host does nothing else."""
    end = time.monotonic() + 3
    while time.monotonic() < end and not ground.loot and not ground.errors:
        time.sleep(0.01)


@attack(
    "a function is left for the end of the process",
    expect=FILES,
    after=lambda ground: __import__("atexit")._run_exitfuncs(),
)
def atexit_function(ground: Ground) -> None:
    import atexit

    atexit.register(lambda: ground.steal())


def leave_loot(ground: Ground) -> None:
    """Write what was stolen, or what stopped the theft, where the parent finds it."""
    import json

    ground.steal()
    if ground.loot:
        line = {"verdict": "escaped", "error_type": None, "code": None}
    else:
        error = ground.errors[-1]
        line = {"verdict": "denied", "error_type": type(error).__name__, "code": str(error)}
    with open(f"{ground.inside}/loot", "w") as file:
        file.write(json.dumps(line))


@attack("a function really runs at the end of the process", expect=FILES, at_exit=True)
def atexit_really(ground: Ground) -> None:
    import atexit

    atexit.register(lambda: leave_loot(ground))


@attack("a thread's end function really runs at the end of the process", expect=FILES, at_exit=True)
def thread_atexit_really(ground: Ground) -> None:
    import threading

    threading._register_atexit(lambda: leave_loot(ground))


@attack("a finaliser really runs at the end of the process", expect=FILES, at_exit=True)
def finalizer_really(ground: Ground) -> None:
    import weakref

    ground.held.thing = lambda: None
    weakref.finalize(ground.held.thing, lambda: leave_loot(ground))


def send_signal(ground: Ground) -> None:
    import signal

    signal.raise_signal(signal.SIGUSR1)


@attack("a signal handler waits for the host's signal", expect=FILES, after=send_signal)
def signal_handler(ground: Ground) -> None:
    import signal

    signal.signal(signal.SIGUSR1, lambda *_: ground.steal())


@attack("a timer's signal comes when the guard is left", expect=FILES, after=wait)
def interval_timer(ground: Ground) -> None:
    import signal

    signal.signal(signal.SIGALRM, lambda *_: ground.steal())
    signal.setitimer(signal.ITIMER_REAL, 0.05)


@attack("the C part of the signal module is used", expect=FILES, after=send_signal)
def c_signal_handler(ground: Ground) -> None:
    import _signal

    _signal.signal(_signal.SIGUSR1, lambda *_: ground.steal())


@attack(
    "functions are left for the host's next fork",
    expect=FILES,
    after=lambda ground: os.waitpid(pid, 0) if (pid := os.fork()) else os._exit(0),
)
def at_fork(ground: Ground) -> None:
    os.register_at_fork(before=lambda: ground.steal())


def wait_not() -> None:
    """A function of the host, for tracers to see."""


def start_thread(ground: Ground, act) -> None:
    import threading

    threading.Thread(target=act, daemon=True).start()


def late_theft(ground: Ground) -> None:
    time.sleep(0.15)
    ground.steal()


@attack("a thread outlives the guard", expect=FILES, after=wait)
def late_thread(ground: Ground) -> None:
    start_thread(ground, lambda: late_theft(ground))


@attack("a timer fires after the guard", expect=FILES, after=wait)
def late_timer(ground: Ground) -> None:
    import threading

    threading.Timer(0.15, lambda: ground.steal()).start()


@attack("a raw thread outlives the guard", expect=FILES, after=wait)
def late_raw_thread(ground: Ground) -> None:
    import _thread

    _thread.start_new_thread(lambda: late_theft(ground), ())


@attack("a task in a pool of the subject waits until the guard is left", expect=FILES, after=wait)
def late_pool_task(ground: Ground) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ground.held.pool = ThreadPoolExecutor(1)
    ground.held.pool.submit(lambda: late_theft(ground))
    ground.held.pool.submit(lambda: ground.steal())


@attack("a trace function is set", expect=SANDBOX, after=lambda ground: wait_not())
def trace_function(ground: Ground) -> None:
    sys.settrace(lambda *_: ground.steal())


@attack("a profile function is set", expect=SANDBOX, after=lambda ground: wait_not())
def profile_function(ground: Ground) -> None:
    sys.setprofile(lambda *_: ground.steal() if not ground.loot else None)


@attack("every thread of the host is traced", expect=SANDBOX.quietly, since=(3, 12), after=lambda ground: wait_not())
def trace_all_threads(ground: Ground) -> None:
    sys._settraceallthreads(lambda *_: ground.steal() if not ground.loot else None)


@attack("every thread of the host is profiled", expect=SANDBOX.quietly, since=(3, 12), after=lambda ground: wait_not())
def profile_all_threads(ground: Ground) -> None:
    sys._setprofileallthreads(lambda *_: ground.steal() if not ground.loot else None)


@attack("monitoring calls back in the host", expect=SANDBOX, since=(3, 12), after=lambda ground: wait_not())
def monitoring(ground: Ground) -> None:
    tool = sys.monitoring
    tool.use_tool_id(4, "attack")
    tool.register_callback(4, tool.events.PY_START, lambda *_: ground.steal() if not ground.loot else None)
    tool.set_events(4, tool.events.PY_START)


@attack("an audit hook is added", expect=SANDBOX.quietly, after=lambda ground: open(f"{ground.inside}/own.txt").close())
def audit_hook(ground: Ground) -> None:
    state = {"on": True}

    def hook(event: str, arguments: object) -> None:
        if state["on"] and event == "open" and "own.txt" in str(arguments):
            state["on"] = False
            ground.steal()

    sys.addaudithook(hook)


async def iterate(ground: Ground) -> None:
    """The host uses an asynchronous generator of its own."""

    async def generator():
        yield 1

    async for _ in generator():
        pass


@attack("the hooks of asynchronous generators are set", expect=SANDBOX, after=iterate)
async def asyncgen_hooks(ground: Ground) -> None:
    sys.set_asyncgen_hooks(firstiter=lambda _: ground.steal())


async def settle(ground: Ground) -> None:
    """The host's loop goes on after the guard was left."""
    import asyncio

    for _ in range(30):
        await asyncio.sleep(0.01)
        if ground.loot or ground.errors:
            break


@attack("a task outlives the guard", expect=FILES, after=settle)
async def late_task(ground: Ground) -> None:
    import asyncio

    async def work() -> None:
        await asyncio.sleep(0.05)
        ground.steal()

    ground.held.task = asyncio.create_task(work())


@attack("a call is scheduled on the loop", expect=FILES, after=settle)
async def call_soon(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_soon(lambda: ground.steal())


@attack("a call is scheduled for later", expect=FILES, after=settle)
async def call_later(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_later(0.05, lambda: ground.steal())


@attack("a call is scheduled from the same thread as if from another", expect=FILES, after=settle)
async def call_soon_threadsafe(ground: Ground) -> None:
    import asyncio

    asyncio.get_running_loop().call_soon_threadsafe(lambda: ground.steal())


@attack("a reader is added to the loop", expect=FILES, after=settle)
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
    ground.held.future._callbacks[0][0](Evil(ground))


async def finish_future(ground: Ground) -> None:
    ground.held.future.set_result(1)
    await settle(ground)


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
    after=settle,
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
    after=lambda ground: (send_signal(ground), settle(ground))[1],
)
async def loop_signal_handler(ground: Ground) -> None:
    import asyncio
    import signal

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: ground.steal())


async def fail_on_loop(ground: Ground) -> None:
    """Something of the host's fails on the host's loop."""
    import asyncio

    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await settle(ground)


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
    "the default executor of the host's loop is the subject's", expect=SANDBOX, after=lambda ground: use_executor(ground)
)
async def loop_executor(ground: Ground) -> None:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    class Sly(ThreadPoolExecutor):
        def submit(self, function, /, *args, **named):
            ground.steal()
            return super().submit(function, *args, **named)

    asyncio.get_running_loop().set_default_executor(Sly(1))


async def use_executor(ground: Ground) -> None:
    import asyncio

    await asyncio.get_running_loop().run_in_executor(None, int)


@attack(
    "a task is cancelled by the host and cleans up",
    expect=FILES,
    after=lambda ground: (ground.held.task.cancel(), settle(ground))[1],
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


def take_steps(ground: Ground) -> object:
    return next(iter(ground.held.result))


@attack("a generator is returned to the host, which runs it", expect=FILES, form="run", after=take_steps)
def returned_generator(ground: Ground) -> object:
    def generator():
        yield open(ground.outside).read()

    return generator()


def drive(ground: Ground) -> object:
    try:
        ground.held.result.send(None)
    except StopIteration as end:
        return end.value
    return None


@attack("a coroutine is returned to the host, which runs it", expect=FILES, form="run", after=drive)
def returned_coroutine(ground: Ground) -> object:
    async def coroutine() -> str:
        return open(ground.outside).read()

    return coroutine()


def host_iterates(ground: Ground) -> None:
    """The host, inside its own with block, walks through what a first call of the subject returned, and calls again."""
    with ground.held.make() as guard:
        ground.held.guard = guard
        for _ in ground.held.first():
            pass
        ground.steal()


@attack(
    "an iterator that leaves the guard is walked through by the frame that entered it",
    expect=SANDBOX,
    after=host_iterates,
)
def exit_by_iterator(ground: Ground) -> None:
    def first() -> object:
        return map(ground.held.guard.__exit__, [None])

    ground.held.first = first
