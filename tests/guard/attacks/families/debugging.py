"""Debugging functions: tracebacks, tracers and profilers."""

from __future__ import annotations

import os
import sys
import threading

from tests.guard.attacks.kit import FILES, FILES_OR_FD, SANDBOX, Ground, attack, attacks_of, wait_until


def hold(ground: Ground) -> None:
    ground.held.fd = os.open(ground.outside, os.O_RDWR)
    ground.held.file = os.fdopen(os.dup(ground.held.fd), "r+")


attacks_of(
    {
        "dump": lambda ground: __import__("faulthandler").dump_traceback(ground.held.fd),
        "dump_later": lambda ground: (
            (
                __import__("faulthandler").dump_traceback_later(0.05, file=ground.held.fd),
                wait_until(lambda: os.lseek(ground.held.fd, 0, os.SEEK_CUR) > 0),
            )
            and None
        ),
        "register": lambda ground: (
            (
                __import__("faulthandler").register(10, file=ground.held.fd),
                __import__("signal").raise_signal(10),
            )
            and None
        ),
    },
    "the fault handler writes into the host's file: {}",
    expect=SANDBOX,
    group="faulthandler_",
    prepare=hold,
)


@attack("the fault handler is given a file outside", expect=FILES)
def faulthandler_path(ground: Ground) -> None:
    import faulthandler

    faulthandler.dump_traceback(open(f"{ground.outside_dir}/new", "w"))


def hold_thread(ground: Ground) -> None:
    """A thread of the host with a secret among its variables."""
    started, end = threading.Event(), threading.Event()

    def work() -> None:
        password = ground.SECRET
        started.set()
        end.wait()
        del password

    ground.held.thread = threading.Thread(target=work, daemon=True)
    ground.held.thread.start()
    started.wait()


@attack("the frames of the host's other threads are looked into", expect=SANDBOX, prepare=hold_thread)
def current_frames(ground: Ground) -> object:
    frame = sys._current_frames()[ground.held.thread.ident]
    while frame is not None:
        if "password" in frame.f_locals:
            return frame.f_locals["password"]
        frame = frame.f_back
    return None


@attack("exceptions of the host's other threads are looked into", expect=SANDBOX)
def current_exceptions(ground: Ground) -> bool:
    return sys._current_exceptions() is not None


@attack(
    "an exception is thrown into the host's thread", expect=SANDBOX, prepare=hold_thread, unguarded="needs native code"
)
def thrown_into_thread(ground: Ground) -> object:
    import ctypes

    return ctypes.pythonapi.PyThreadState_SetAsyncExc(ground.held.thread.ident, None)


@attack(
    "perf support writes its map of the process",
    expect=SANDBOX.quietly,
    since=(3, 12),
    after=lambda ground: (
        os.path.exists(f"/tmp/perf-{os.getpid()}.map") and os.remove(f"/tmp/perf-{os.getpid()}.map") is None
    ),
)
def perf_map(ground: Ground) -> None:
    sys.activate_stack_trampoline("perf")


@attack("a breakpoint hook from the environment is imported", expect=SANDBOX)
def breakpoint_hook(ground: Ground) -> object:
    os.environ["PYTHONBREAKPOINT"] = "os.system"
    breakpoint(f"cat {ground.outside} > {ground.inside}/loot.txt")  # noqa: T100 - the hook is the attack
    return open(f"{ground.inside}/loot.txt").read()


@attack("the trace module writes its results outside", expect=FILES)
def trace_results(ground: Ground) -> None:
    import trace

    trace.CoverageResults(counts={}, outfile=f"{ground.outside_dir}/new").write_results(summary=False)
    open(f"{ground.outside_dir}/new", "wb").close()


@attack("tracemalloc dumps its snapshot outside", expect=FILES)
def memory_snapshot(ground: Ground) -> None:
    import tracemalloc

    tracemalloc.start()
    tracemalloc.take_snapshot().dump(f"{ground.outside_dir}/new")


@attack(
    "the debugger is told to read its commands outside",
    expect=FILES.quietly,
    prepare=lambda ground: ground.write(f"{ground.outside_dir}/.pdbrc", ground.SECRET),
)
def debugger_commands(ground: Ground) -> object:
    import io
    import pdb  # noqa: T100 - its start file is the attack

    return "".join(pdb.Pdb(stdin=io.StringIO(), stdout=io.StringIO(), readrc=True).rcLines)


@attack(
    "the interpreter's exit is asked to stay interactive",
    expect=SANDBOX.quietly,
    unguarded="the variable is read only when the process ends",
)
def inspect_at_exit(ground: Ground) -> None:
    os.environ["PYTHONINSPECT"] = ""


@attack("the wake-up descriptor of signals is set to the host's file", expect=FILES_OR_FD | SANDBOX, prepare=hold)
def wakeup_descriptor(ground: Ground) -> None:
    import signal

    os.set_blocking(ground.held.fd, False)
    signal.set_wakeup_fd(ground.held.fd)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.raise_signal(signal.SIGUSR1)
    signal.set_wakeup_fd(-1)
