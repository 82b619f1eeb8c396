"""Reloaded modules of pools: each job still runs as the subject that submitted it."""

from __future__ import annotations

import sys

from tests.guard.attacks.kit import FILES, Ground, attacks_of

THREADS = "concurrent.futures.thread"


def await_wish(ground: Ground) -> None:
    """Have the host make its first pool while the subject is active."""
    import threading

    ground.held.wish, ground.held.fulfilled = threading.Event(), threading.Event()

    def host() -> None:
        ground.held.wish.wait(20)
        from concurrent.futures import ThreadPoolExecutor

        ground.held.pool = ThreadPoolExecutor(1)
        ground.held.pool.submit(int).result()  # starts the thread, which is the host's
        ground.held.fulfilled.set()

    threading.Thread(target=host, daemon=True).start()


def steal_with(trick):
    """Play a trick, have the host make its pool, and give that a job without any code of the subject's."""

    def act(ground: Ground) -> object:
        trick()
        ground.held.wish.set()
        if not ground.held.fulfilled.wait(20):
            raise TimeoutError("the host has no pool")
        return ground.held.pool.submit(open, ground.outside).result().read()

    return act


def remove_one() -> None:
    """Have as many modules afterwards as before the host loads the next."""
    import colorsys  # noqa: F401
    import concurrent.futures
    import queue  # noqa: F401

    del sys.modules["colorsys"]


def load_unnoticed() -> None:
    remove_one()
    __import__(THREADS)


def load_again() -> None:
    __import__(THREADS)
    del sys.modules[THREADS]
    __import__(THREADS)


def load_all_again() -> None:
    __import__(THREADS)
    for name in [name for name in sys.modules if name.startswith("concurrent.")]:
        del sys.modules[name]
    __import__(THREADS)


def forge_first() -> None:
    from types import ModuleType

    sys.modules[THREADS] = forged = ModuleType(THREADS)
    forged.ThreadPoolExecutor = type("ThreadPoolExecutor", (), {"submit": lambda *_: None})
    import colorsys  # noqa: F401

    del sys.modules[THREADS]


def forge_unchangeable() -> None:
    from types import SimpleNamespace

    sys.modules[THREADS] = SimpleNamespace(ThreadPoolExecutor=int)
    import colorsys  # noqa: F401

    del sys.modules[THREADS]


def replace_table() -> None:
    sys.modules = dict(sys.modules)


def replace_table_type() -> None:
    class Table(dict):
        """A table of a kind that the interpreter does not make."""

    sys.modules = Table(sys.modules)


TRICKS = {
    function.__name__: steal_with(function)
    for function in (
        *(remove_one, load_unnoticed, load_again, load_all_again, forge_first, forge_unchangeable),
        *(replace_table, replace_table_type),
    )
}
attacks_of(TRICKS, "the host's pool is of a module that was loaded after {}", expect=FILES, prepare=await_wish)
