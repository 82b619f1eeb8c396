"""Attacks that the guard alone does not stop: the subject changes something that trusted host code uses later.

The process, its modules and its objects are shared; the guard binds what is handed over through the doors it knows
(threads, pools, loops, signals, `atexit`, finalisers), but it cannot know that a function the host calls by itself came
from a subject. Each attack here succeeds today; a row that no longer does fails the test, and is then to be moved. Many
do so only because the attack is a plain function of the host's: code that a loader gave to its subject is known
wherever it runs (`loaded`; see test_provenance.py).
"""

from __future__ import annotations

import os
import sys
import threading

from tests.guard.attacks.kit import SANDBOX, TIMEOUT, Ground, Residual, attack, settle_on_loop

REPLACED = Residual(
    why="the host calls a function that the subject put in place of a trusted one",
    closes="code provenance: code objects that a subject's loader made are guarded wherever they run",
    loaded=SANDBOX.quietly,
)
REGISTERED = Residual(
    why="the host consults a registry of the interpreter or of a library in which the subject left a function",
    closes="code provenance",
    loaded=SANDBOX.quietly,
)
RETURNED = Residual(
    why="the host uses an object that the subject made or changed, and its methods run in the host",
    closes="code provenance; runtimes that take only plain data from subjects",
    loaded=SANDBOX.quietly,
)
BUILTIN = Residual(
    why="the host uses an object that the subject made of builtin functions alone: no code of the subject's runs",
    closes="runtimes that take only plain data from subjects",
)
QUEUED = Residual(
    why="the subject puts work into a private queue of a host object, past the methods that bind it",
    closes="code provenance, or workers that run under a base state which denies everything",
    loaded=SANDBOX.quietly,
)
SHARED = Residual(
    why="state of the process that the host's later work depends on is shared with the subject",
    closes="the kernel layer: the spawn server builds a child's environment itself, and Landlock bounds the process",
)


FINALISED = Residual(
    why="the interpreter offers no moment at which a generator could be bound to the guard it was made in",
    closes="code provenance",
    loaded=SANDBOX.quietly,
)
REUSED = Residual(
    why="an object of the subject keeps a number that another of its objects gave back, and the host got it meanwhile",
    closes="nothing yet; needs a host thread that opens a file in that very moment",
)
LEFT = Residual(
    why="the host names its guard and, inside the with block, iterates over what the subject returned",
    closes="run(), which hands out no guard; runtimes use nothing else",
)
NATIVE = Residual(
    why="a native library, or bytecode that no compiler made, reads and writes the memory of the process",
    closes="no in-process layer; the kernel layer bounds what the process itself can reach",
)


@attack("numpy is given an address in the place of an array", expect=NATIVE, needs=("numpy",))
def memory_by_numpy(ground: Ground) -> bool:
    import numpy as np

    text = b"some text of the host"

    class Interface:
        __array_interface__ = {"data": (id(text), True), "shape": (64,), "typestr": "|u1", "version": 3}

    return text in bytes(np.asarray(Interface()))


@attack("marshal brings bytecode that no compiler made", expect=NATIVE)
def bytecode_by_marshal(ground: Ground) -> bool:
    import marshal
    import types

    changed = marshal.dumps(compile("'harmless text'.upper()", "x", "eval")).replace(b"harmless text", b"another  text")
    return eval(types.FunctionType(marshal.loads(changed), {}).__code__) == "ANOTHER  TEXT"


@attack(
    "a function of the standard library is replaced",
    expect=REPLACED,
    after=lambda ground: __import__("textwrap").dedent("x") and None,
)
def library_function_replaced(ground: Ground) -> None:
    import textwrap

    textwrap.dedent = lambda text: ground.steal()


@attack(
    "a module in sys.modules is replaced",
    expect=REPLACED,
    after=lambda ground: __import__("colorsys").rgb_to_hsv(0, 0, 0),
)
def module_replaced(ground: Ground) -> None:
    class Module:
        @staticmethod
        def rgb_to_hsv(*_: object) -> None:
            ground.steal()

    sys.modules["colorsys"] = Module


def raise_in_thread(ground: Ground) -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


@attack("the hook for exceptions in threads is replaced", expect=REGISTERED, after=raise_in_thread)
def exception_hook(ground: Ground) -> None:
    threading.excepthook = lambda _: ground.steal()


@attack(
    "a finder is put into the import system", expect=REGISTERED, after=lambda ground: __import__("colorsys") and None
)
def import_finder(ground: Ground) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            sys.meta_path.remove(Finder)
            ground.steal()

    sys.meta_path.insert(0, Finder)


@attack(
    "a folder of the subject is put in front of the import path",
    expect=SHARED,
    after=lambda ground: __import__("colorsys").steal(ground),
)
def import_path(ground: Ground) -> None:
    with open(f"{ground.inside}/colorsys.py", "w") as file:
        file.write("def steal(ground):\n    ground.steal()\n")
    sys.path.insert(0, ground.inside)


@attack("the garbage collector calls back", expect=REGISTERED, after=lambda ground: __import__("gc").collect() and None)
def collector_callback(ground: Ground) -> None:
    import gc

    def callback(*_: object) -> None:
        gc.callbacks.remove(callback)
        ground.steal()

    gc.callbacks.append(callback)


@attack("threads started later are profiled", expect=REGISTERED, after=raise_in_thread)
def thread_profile(ground: Ground) -> None:
    threading.setprofile(lambda *_: ground.steal() if not ground.loot else None)


@attack(
    "an error handler of the codecs is registered",
    expect=REGISTERED,
    after=lambda ground: b"\xff".decode("ascii", "attack") and None,
)
def codec_error_handler(ground: Ground) -> None:
    import codecs

    codecs.register_error("attack", lambda error: (ground.steal() or "", error.end))


@attack("a log handler is added", expect=REGISTERED, after=lambda ground: __import__("logging").error("x"))
def log_handler(ground: Ground) -> None:
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ground.steal()

    logging.getLogger().addHandler(Handler())


@attack(
    "an object whose text is the secret is returned",
    expect=RETURNED,
    after=lambda ground: repr(ground.held.result) and None,
)
def returned_object(ground: Ground) -> object:
    class Thing:
        def __repr__(self) -> str:
            ground.steal()
            return ""

    return Thing()


@attack(
    "a lazy iterator over a builtin is returned",
    expect=BUILTIN,
    form="run",
    after=lambda ground: next(ground.held.result).read(),
)
def returned_iterator(ground: Ground) -> object:
    return map(open, [ground.outside])


def hold_future(ground: Ground) -> None:
    from concurrent.futures import Future

    ground.held.future = Future()
    ground.held.future.add_done_callback(lambda future: future.result())


@attack(
    "a method of the host's future is replaced before the future is completed", expect=RETURNED, prepare=hold_future
)
def future_method(ground: Ground) -> None:
    ground.held.future.result = lambda: ground.steal()
    ground.held.future.set_result(1)


def hold_pool(ground: Ground) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ground.held.pool = ThreadPoolExecutor(1)
    ground.held.pool.submit(int).result()


@attack("a work item is put into the queue of the host's pool", expect=QUEUED, prepare=hold_pool)
def pool_queue(ground: Ground) -> None:
    done = threading.Event()

    class Item:
        def run(self) -> None:
            ground.steal()
            done.set()

    ground.held.pool._work_queue.put(Item())
    done.wait(TIMEOUT)


@attack("a handle of the subject's own making is put into the queue of the host's loop", expect=QUEUED)
async def loop_queue(ground: Ground) -> None:
    import asyncio

    class Handle:
        _cancelled = False

        def _run(self) -> None:
            ground.steal()

    asyncio.get_running_loop()._ready.append(Handle())
    await asyncio.sleep(0)


@attack(
    "a local variable of a frame of the host is replaced", expect=REPLACED, since=(3, 13), after=lambda ground: None
)
def frame_variable(ground: Ground) -> None:
    frame = sys._getframe()
    while frame is not None and "attack" not in frame.f_locals:
        frame = frame.f_back
    original = frame.f_locals["attack"]

    class Forged:
        after = staticmethod(lambda _: ground.steal())

        def __getattr__(self, name: str) -> object:
            return getattr(original, name)

    while frame is not None:
        if "attack" in frame.f_locals:
            frame.f_locals["attack"] = Forged()
        frame = frame.f_back


@attack(
    "the environment of the process makes the host's next child run the subject's code",
    expect=SHARED,
    after=lambda ground: (
        __import__("subprocess").run([sys.executable, "-c", ""], check=False)
        and open(f"{ground.inside}/loot.txt").read()
    ),
)
def children_environment(ground: Ground) -> None:
    with open(f"{ground.inside}/sitecustomize.py", "w") as file:
        file.write(f"open('{ground.inside}/loot.txt', 'w').write(open({ground.outside!r}).read())\n")
    os.environ["PYTHONPATH"] = ground.inside


def drop(ground: Ground) -> None:
    import gc

    ground.held.bomb = None
    del ground.held.bomb
    gc.collect()


def set_generator(ground: Ground) -> None:
    def generator():
        try:
            yield
        finally:
            ground.steal()

    ground.held.bomb = generator()
    next(ground.held.bomb)


def set_coroutine(ground: Ground) -> None:
    async def coroutine() -> None:
        try:
            await Never()
        finally:
            ground.steal()

    ground.held.bomb = coroutine()
    ground.held.bomb.send(None)


class Never:
    """Awaiting it never ends."""

    def __await__(self):
        yield


attack("a generator that the host drops runs its last block", expect=FINALISED, name="generator_dropped", after=drop)(
    set_generator
)
attack("a coroutine that the host drops runs its last block", expect=FINALISED, name="coroutine_dropped", after=drop)(
    set_coroutine
)


@attack(
    "an asynchronous generator is finalised by the host's loop",
    expect=FINALISED,
    after=lambda ground: (drop(ground), settle_on_loop(ground))[1],
)
async def async_generator(ground: Ground) -> None:
    async def generator():
        try:
            yield
        finally:
            ground.steal()

    ground.held.bomb = generator()
    await anext(ground.held.bomb)


def host_iterates(ground: Ground) -> None:
    """The host, inside its own with block, walks through what a first call of the subject returned, and calls again."""
    with ground.held.make() as guard:
        ground.held.guard = guard
        for _ in ground.held.first():
            pass
        ground.steal()


@attack(
    "an iterator that leaves the guard is walked through by the frame that entered it",
    expect=LEFT,
    after=host_iterates,
)
def exit_by_iterator(ground: Ground) -> None:
    def first() -> object:
        return map(ground.held.guard.__exit__, [None])

    ground.held.first = first


def hold_reopen(ground: Ground) -> None:
    """A host thread that opens the secret when it is asked to."""
    import queue

    orders, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def serve() -> None:
        orders.get()
        answers.put(os.open(ground.outside, os.O_RDONLY))

    threading.Thread(target=serve, daemon=True).start()
    ground.held.reopen = lambda number: (orders.put(number), answers.get())[1]


@attack("two objects share a number, and one of them gives it back", expect=REUSED, prepare=hold_reopen)
def recycled_second_object(ground: Ground) -> object:
    """Two objects share a number; one of them closes it."""
    number = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    first, second = open(number, "rb", 0), open(number, "rb", 0, closefd=False)
    first.close()
    if ground.held.reopen(number) != number:
        raise RuntimeError("the host got another number")
    return second.read(99)
