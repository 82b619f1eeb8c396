"""Damage to the host's process: children, exit functions, priorities, signals, limits, crash handlers."""

from __future__ import annotations

import os
import signal
import sys

from tests.guard.attacks.kit import SANDBOX, Denied, Fruitless, Ground, Works, attack, attacks_of

STATUS = 7


def start_child(ground: Ground) -> None:
    """A child of the host that has ended, for whose status the host has not asked yet."""
    import subprocess

    ground.held.child = subprocess.Popen([sys.executable, "-SIc", f"raise SystemExit({STATUS})"])
    os.waitid(os.P_PID, ground.held.child.pid, os.WEXITED | os.WNOWAIT)


def status_is_lost(ground: Ground) -> bool:
    return ground.held.child.wait() != STATUS


class Turning:
    """A number that is another one each time."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def __index__(self) -> int:
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


attacks_of(
    {
        "any": lambda ground: os.waitpid(-1, 0) and None,
        "group": lambda ground: os.waitpid(0, 0) and None,
        "wait": lambda ground: os.wait() and None,
        "wait3": lambda ground: os.wait3(0) and None,
        "wait4": lambda ground: os.wait4(-1, 0) and None,
        "by_number": lambda ground: os.waitpid(ground.held.child.pid, 0) and None,
        "waitid": lambda ground: os.waitid(os.P_ALL, 0, os.WEXITED) and None,
        "waitid_by_number": lambda ground: os.waitid(os.P_PID, ground.held.child.pid, os.WEXITED) and None,
        "without_waiting": lambda ground: os.waitpid(-1, os.WNOHANG) and None,
        "turning": lambda ground: os.waitpid(Turning(-1), 0) and None,
    },
    "the exit status of the host's child is collected: {}",
    expect=SANDBOX,
    group="status_",
    prepare=start_child,
    after=status_is_lost,
)


def hold_exit_function(ground: Ground) -> None:
    import atexit

    ground.held.ran = []
    ground.held.function = ground.held.ran.append
    atexit.register(ground.held.function, True)
    ground.held.before = atexit._ncallbacks()


def exit_functions_changed(ground: Ground) -> bool:
    import atexit

    return bool(ground.held.ran) or atexit._ncallbacks() < ground.held.before


class Everything:
    """Equal to every object."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


attacks_of(
    {
        "clear": lambda ground: __import__("atexit")._clear(),
        "run": lambda ground: __import__("atexit")._run_exitfuncs(),
    },
    "the exit functions of the host are lost or run early: {}",
    expect=SANDBOX,
    group="exit_",
    prepare=hold_exit_function,
    after=exit_functions_changed,
)


def exit_function_lost(ground: Ground) -> bool:
    import atexit

    atexit._run_exitfuncs()
    return not ground.held.ran


attacks_of(
    {
        "one": lambda ground: __import__("atexit").unregister(ground.held.function),
        "all": lambda ground: __import__("atexit").unregister(Everything()),
    },
    "an exit function of the host is removed: {}",
    expect=SANDBOX.quietly,
    group="unregistered_",
    prepare=hold_exit_function,
    after=exit_function_lost,
)


def has_codec(name: str) -> bool:
    import codecs

    try:
        return bool(codecs.lookup(name))
    except LookupError:
        return False


def waking_number() -> int:
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number)
    return number


def settings() -> dict[str, object]:
    """What the host finds of its process."""
    import codecs
    import faulthandler
    import gc
    import socket
    import threading

    return {
        "handlers": [signal.getsignal(number) for number in (*range(1, 32), signal.SIGRTMIN)],
        "wakeup": waking_number(),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()),
        "timeout": socket.getdefaulttimeout(),
        "stack": threading.stack_size(),
        "codecs": (codecs.lookup_error("strict"), has_codec("of-the-host")),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": os.sched_getaffinity(0),
        "scheduler": os.sched_getscheduler(0),
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "recursion": sys.getrecursionlimit(),
        "crashes": faulthandler.is_enabled(),
        "turns": sys.getswitchinterval(),
        "digits": sys.get_int_max_str_digits(),
        "streams": [
            os.path.exists(f"/proc/self/fd/{number}") and os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)
        ],
    }


def hold_settings(ground: Ground) -> None:
    import codecs
    import faulthandler

    def find(name: str) -> object:
        return codecs.lookup("ascii") if name == "of_the_host" else None

    signal.signal(signal.SIGUSR1, lambda *_: None)
    ground.held.pair = os.pipe()
    os.set_blocking(ground.held.pair[1], False)
    signal.set_wakeup_fd(ground.held.pair[1])
    codecs.register(find)
    ground.held.find = find
    faulthandler.enable(open(os.devnull, "w"))
    ground.held.before = settings()


attacks_of(
    {
        "setpriority": lambda ground: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + 1),
        "nice": lambda ground: os.nice(1) and None,
        "processors": lambda ground: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        "scheduler": lambda ground: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
        "blocked": lambda ground: __import__("_signal").pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) and None,
        "recursion": lambda ground: sys.setrecursionlimit(sys.getrecursionlimit() + 100_000),
        "crashes": lambda ground: __import__("faulthandler").disable() and None,
        "turns": lambda ground: sys.setswitchinterval(5),
        "digits": lambda ground: sys.set_int_max_str_digits(0),
        "children_ignored": lambda ground: signal.signal(signal.SIGCHLD, signal.SIG_IGN) and None,
        "children_ignored_natively": lambda ground: __import__("_signal").signal(signal.SIGCHLD, 1) and None,
        "end_ignored": lambda ground: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
        "end_handled": lambda ground: signal.signal(signal.SIGTERM, lambda *_: None) and None,
        "handler_replaced": lambda ground: signal.signal(signal.SIGUSR1, lambda *_: None) and None,
        "timeout": lambda ground: __import__("socket").setdefaulttimeout(0.001),
        "stack": lambda ground: __import__("threading").stack_size(1 << 18) and None,
        "collector_keeps": lambda ground: __import__("gc").set_debug(__import__("gc").DEBUG_SAVEALL),
        "codec_removed": lambda ground: __import__("codecs").unregister(ground.held.find),
        "codec_error": lambda ground: __import__("codecs").register_error("strict", lambda error: ("", error.end)),
        "stream_closed": lambda ground: os.close(0),
        "stream_closed_as_file": lambda ground: open(0).close(),
        "stream_closed_as_object": lambda ground: __import__("_io").FileIO(0).close(),
        "stream_closed_as_socket": lambda ground: __import__("_socket").close(0),
        "stream_replaced": lambda ground: os.dup2(os.open(f"{ground.inside}/own.txt", os.O_RDONLY), 0) and None,
    },
    "a setting of the host's process is changed: {}",
    expect=SANDBOX,
    group="setting_",
    prepare=hold_settings,
    after=lambda ground: settings() != ground.held.before,
)

attacks_of(
    {
        "off": lambda ground: __import__("gc").disable(),
        "often": lambda ground: __import__("gc").set_threshold(1, 1, 1),
        "frozen": lambda ground: __import__("gc").freeze(),
    },
    "the collector is set for the whole process, which has no effect: {}",
    expect=Fruitless("ordinary code tunes the collector, so it is not refused"),
    group="collector_",
    prepare=hold_settings,
    after=lambda ground: settings() != ground.held.before,
)


def loop_sets_wakeup(ground: Ground) -> None:
    """An event loop of the subject's sets its own number, and none when it closes."""
    import asyncio

    events = asyncio.new_event_loop()
    events.call_soon(events.add_signal_handler, signal.SIGUSR2, int)
    events.call_soon(events.stop)
    events.run_forever()
    events.close()


def wakeup_left(ground: Ground) -> None:
    """The subject leaves the guard with a number of its own set."""
    import socket

    ground.held.left = socket.socketpair()
    ground.held.left[1].setblocking(False)
    signal.set_wakeup_fd(ground.held.left[1].fileno())


attacks_of(
    {
        "removed": lambda ground: signal.set_wakeup_fd(-1) and None,
        "exchanged_by_loop": loop_sets_wakeup,
        "left": wakeup_left,
    },
    "the number by which signals wake the host is taken from it: {}",
    expect=Fruitless("event loops set one, so it is not refused; the host's comes back"),
    group="wakeup_",
    prepare=hold_settings,
    after=lambda ground: settings() != ground.held.before,
)

attack(
    "signals are blocked through the library, which goes on, and none is",
    expect=SANDBOX.quietly,
    name="setting_blocked_by_library",
    prepare=hold_settings,
    after=lambda ground: settings() != ground.held.before,
)(lambda ground: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) and None)

attacks_of(
    {
        name: lambda ground, name=name: getattr(__import__("faulthandler"), name)()
        for name in ("_sigsegv", "_sigabrt", "_sigfpe", "_read_null", "_stack_overflow", "_fatal_error_c_thread")
    },
    "the process is ended by a function for tests of crashes: {}",
    expect=SANDBOX,
    group="crash",
    unguarded="it ends the process",
)


def semaphore_is_left(ground: Ground) -> bool:
    name = f"/dev/shm/sem.{os.path.basename(ground.base)}-{os.getpid()}"
    is_left = os.path.exists(name)
    if is_left:
        os.unlink(name)
    return is_left


def semaphore_name(ground: Ground) -> str:
    return f"/{os.path.basename(ground.base)}-{os.getpid()}"


def own_semaphore_type(ground: Ground) -> None:
    from _multiprocessing import SemLock

    class Own(SemLock):
        pass

    Own(0, 1, 1, semaphore_name(ground), False)


attacks_of(
    {
        "made": lambda g: __import__("_multiprocessing").SemLock(0, 1, 1, semaphore_name(g), False) and None,
        "made_by_name": lambda g: (
            __import__("_multiprocessing").SemLock(0, 1, 1, name=semaphore_name(g), unlink=False) and None
        ),
        "made_by_type": own_semaphore_type,
    },
    "a named semaphore is left, which every process sees: {}",
    expect=SANDBOX,
    group="semaphore_",
    after=semaphore_is_left,
)


def hold_semaphore(ground: Ground) -> None:
    from _multiprocessing import SemLock

    ground.held.name = f"/attack-{os.getpid()}"
    ground.held.lock = SemLock(0, 1, 1, ground.held.name, False)


def remove_semaphore(ground: Ground) -> bool:
    from _multiprocessing import sem_unlink

    try:
        sem_unlink(ground.held.name)
    except FileNotFoundError:
        return True
    return False


attack(
    "a named semaphore of the host is removed",
    expect=SANDBOX,
    needs=("_multiprocessing",),
    name="semaphore_removed",
    prepare=hold_semaphore,
    after=remove_semaphore,
)(lambda ground: __import__("_multiprocessing").sem_unlink(ground.held.name))


def hold_epoll(ground: Ground) -> None:
    import select

    ground.held.epoll = select.epoll()
    ground.held.reader, ground.held.writer = os.pipe()
    ground.held.epoll.register(ground.held.reader, select.EPOLLIN)


def epoll_lost(ground: Ground) -> bool:
    os.write(ground.held.writer, b"x")
    try:
        return ground.held.epoll.poll(0) == []
    except OSError:  # the copy has closed it
        return True


def take_epoll(ground: Ground) -> None:
    import select

    select.epoll.fromfd(ground.held.epoll.fileno()).unregister(ground.held.reader)


attack("the host's epoll is taken over by its number", expect=SANDBOX, prepare=hold_epoll, after=epoll_lost)(take_epoll)


@attack(
    "a subject that may start programs waits for its own",
    expect=Works(),
    policy=lambda ground: {"allow_subprocess": True},
)
def own_children(ground: Ground) -> bool:
    import subprocess

    program = [sys.executable, "-SIc", "raise SystemExit(3)"]
    first = subprocess.run(program, check=False).returncode
    second = subprocess.Popen(program)
    return (first, second.wait(), os.waitstatus_to_exitcode(os.system("exit 4"))) == (3, 3, 4)


@attack("a library asks for the priority and for the blocked signals", expect=Works())
def asked_settings(ground: Ground) -> bool:
    return os.nice(0) == os.getpriority(os.PRIO_PROCESS, 0) and isinstance(
        signal.pthread_sigmask(signal.SIG_BLOCK, []), set
    )


attacks_of(
    {
        "clock": lambda ground: __import__("time").clock_settime(0, 0),
        "clock_in_nanoseconds": lambda ground: __import__("time").clock_settime_ns(0, 0),
        "signals_taken": lambda ground: __import__("_signal").sigwaitinfo([signal.SIGUSR1]) and None,
        "signals_awaited": lambda ground: __import__("_signal").sigwait([signal.SIGUSR1]) and None,
        "screen": lambda ground: __import__("_curses").initscr() and None,
        "thread_clock": lambda ground: __import__("time").pthread_getcpuclockid(12345) and None,
    },
    "the machine's clock, the host's signals or its screen are taken, or it crashes: {}",
    expect=SANDBOX,
    group="taken_",
    unguarded="it changes the machine, waits for ever, or ends the process",
)


def make_pipe(ground: Ground) -> str:
    os.mkfifo(f"{ground.inside}/pipe")
    return f"{ground.inside}/pipe"


attacks_of(
    {
        "certificate": lambda ground: __import__("_ssl")._test_decode_cert(make_pipe(ground)) and None,
        "history": lambda ground: __import__("readline").read_history_file(make_pipe(ground)),
        "history_written": lambda ground: __import__("readline").write_history_file(make_pipe(ground)),
        "start_file": lambda ground: __import__("readline").read_init_file(make_pipe(ground)),
    },
    "a library waits at a pipe and lets no other thread run: {}",
    expect=Denied(("sandbox_",), or_errors=("OSError",)),
    group="freeze_",
    needs=("readline",),
    unguarded="it waits for ever",
)


class Equal:
    """An object that says it equals every name."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def local_name(change):
    """Whether a thread-local object refuses a name of another type; the interpreter alone crashes on it."""

    def act(ground: Ground) -> bool:
        import _thread

        try:
            change(_thread._local())
        except TypeError:
            return True
        return False

    return act


attacks_of(
    {
        "set": local_name(lambda local: local.__setattr__(Equal(), 1)),
        "deleted": local_name(lambda local: local.__delattr__(Equal())),
    },
    "a name of another type than text crashes nothing: {}",
    expect=Works(),
    group="local_name_",
    unguarded="the interpreter crashes",
)


def internal_type(name: str):
    """Whether a type that only the interpreter makes instances of refuses to make one."""

    def act(ground: Ground) -> bool:
        import asyncio  # noqa: F401  the owner of one of them

        kind = next(kind for kind in type.__subclasses__(object) if kind.__name__ == name)
        for make in (kind, lambda: kind.__new__(kind), lambda: object.__new__(kind)):
            try:
                make()
            except TypeError:
                continue
            return False
        return True

    return act


for name, since in (("TaskStepMethWrapper", (3, 11)), ("InstructionSequence", (3, 13))):
    attack(
        f"an instance of a type of the interpreter's own crashes when it is used: {name}",
        expect=Works(),
        name=f"internal_{name}",
        since=since,
        unguarded="instances can be made",
    )(internal_type(name))


@attack("certificates of other types than paths are refused, and nothing is released twice", expect=Works())
def certificate_numbers(ground: Ground) -> bool:
    import ssl

    context, numbers = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), [int("9" * 20)]
    before = sys.getrefcount(numbers[0])
    for load in (context.load_cert_chain, context.load_verify_locations):
        for first in ([], [f"{ground.inside}/own.txt"]):
            try:
                load(*first, *numbers)
            except (TypeError, OSError):
                pass
    return sys.getrefcount(numbers[0]) == before


def hold_terminal(ground: Ground) -> None:
    ground.held.terminal = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)


attacks_of(
    {
        "grantpt": lambda ground: os.grantpt(ground.held.terminal) or True,
        "ptsname": lambda ground: bool(os.ptsname(ground.held.terminal)),
        "unlockpt": lambda ground: os.unlockpt(ground.held.terminal) or True,
    },
    "the host's terminal is asked for its name, and unlocked: {}",
    expect=SANDBOX,
    group="terminal_",
    since=(3, 13),
    prepare=hold_terminal,
)


@attack("a terminal of one's own is unlocked", expect=Works(), since=(3, 13))
def own_terminal(ground: Ground) -> bool:
    number = os.posix_openpt(os.O_RDWR | os.O_NOCTTY)
    os.grantpt(number)
    os.unlockpt(number)
    return os.ptsname(number).startswith("/dev/pts/")


def handle_signals(ground: Ground) -> None:
    """The host ends in order by a signal, and has set a timer."""
    ground.held.got = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, lambda number, _: ground.held.got.append(number))
    signal.setitimer(signal.ITIMER_REAL, 1000)


attacks_of(
    {
        "end": lambda ground: signal.raise_signal(signal.SIGTERM),
        "own_meaning": lambda ground: signal.raise_signal(signal.SIGUSR1),
        "alarm": lambda ground: signal.raise_signal(signal.SIGALRM),
        "timer_stopped": lambda ground: signal.alarm(0) and None,
        "timer_stopped_exactly": lambda ground: signal.setitimer(signal.ITIMER_REAL, 0) and None,
        "timer_set": lambda ground: signal.setitimer(signal.ITIMER_REAL, 5000) and None,
    },
    "the host gets a signal that it handles, or its timer is changed: {}",
    expect=SANDBOX,
    group="sent_",
    prepare=handle_signals,
    after=lambda ground: bool(ground.held.got) or not 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000,
)


def end_by_timer(ground: Ground) -> None:
    import time

    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    time.sleep(0.3)


def end_by_signal(ground: Ground) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.raise_signal(signal.SIGUSR1)


attacks_of(
    {"timer": end_by_timer, "signal": end_by_signal},
    "a handler is removed, and its signal would end the host: {}",
    expect=SANDBOX.quietly,
    group="unhandled_",
    unguarded="it ends the process",
)
