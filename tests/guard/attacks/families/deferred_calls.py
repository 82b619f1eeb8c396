"""Deferred execution: code that a subject leaves behind runs under the subject's guard."""

from __future__ import annotations

import contextvars
import os
import sys
import time

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of, settle


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


@attack("a timer's signal comes when the guard is left", expect=FILES, after=settle)
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


@attack("a thread outlives the guard", expect=FILES, after=settle)
def late_thread(ground: Ground) -> None:
    start_thread(ground, lambda: late_theft(ground))


@attack("a timer fires after the guard", expect=FILES, after=settle)
def late_timer(ground: Ground) -> None:
    import threading

    threading.Timer(0.15, lambda: ground.steal()).start()


@attack("a raw thread outlives the guard", expect=FILES, after=settle)
def late_raw_thread(ground: Ground) -> None:
    import _thread

    _thread.start_new_thread(lambda: late_theft(ground), ())


@attack("a task in a pool of the subject waits until the guard is left", expect=FILES, after=settle)
def late_pool_task(ground: Ground) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ground.held.pool = ThreadPoolExecutor(1)
    ground.held.pool.submit(lambda: late_theft(ground))
    ground.held.pool.submit(lambda: ground.steal())


@attack("a trace function is set", expect=FILES.quietly, after=lambda ground: wait_not())
def trace_function(ground: Ground) -> None:
    sys.settrace(lambda *_: ground.steal())


@attack("a profile function is set", expect=FILES.quietly, after=lambda ground: wait_not())
def profile_function(ground: Ground) -> None:
    sys.setprofile(lambda *_: ground.steal() if not ground.loot else None)


@attack("every thread of the host is traced", expect=SANDBOX.quietly, since=(3, 12), after=lambda ground: wait_not())
def trace_all_threads(ground: Ground) -> None:
    sys._settraceallthreads(lambda *_: ground.steal() if not ground.loot else None)


@attack("every thread of the host is profiled", expect=SANDBOX.quietly, since=(3, 12), after=lambda ground: wait_not())
def profile_all_threads(ground: Ground) -> None:
    sys._setprofileallthreads(lambda *_: ground.steal() if not ground.loot else None)


@attack("monitoring calls back in the host", expect=FILES.quietly, since=(3, 12), after=lambda ground: wait_not())
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
