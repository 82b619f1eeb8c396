"""Permits of connections that are kept, copied, forged or used elsewhere."""

from __future__ import annotations

import contextvars
import socket
import threading

from tests.guard.attacks.kit import FD, SANDBOX, USAGE, Ground, settle
from tests.guard.attacks.network import LIMIT, NETWORK, REFUSED, ask, dial, network_attacks_of, url, web

STOPPED = REFUSED | FD | USAGE | SANDBOX


def core():
    """The module that gives permits; without a guard there is none, and none is needed."""
    try:
        from democrai_sandbox.guard import _core
    except ImportError:
        return None
    return _core


class Nothing:
    """Stands for a permit where there is no guard."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def permit(ground: Ground, path: str = "/allowed"):
    module = core()
    return (module.request("GET", url(ground, path)) if module is not None else None) or Nothing()


def during(ground: Ground, act):
    """Run something while a permitted request is under way: the client asks the subject for a connection."""
    import http.client

    kept = []
    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection._create_connection = lambda *_, **__: (kept.append(act()), socket.create_connection(web(ground)))[1]
    connection.request("GET", "/allowed")
    connection.getresponse().read()
    ground.held.connection = connection
    return kept[0]


def secret_of(ground: Ground) -> bytes:
    return ask(dial(web(ground)))


def raw_of(ground: Ground) -> bytes:
    """A raw socket to the permitted server: only a request that is under way may have one."""
    sock = dial(web(ground))
    return sock.getpeername() and ground.SECRET.encode()


def after_request(ground: Ground) -> object:
    during(ground, lambda: None)
    return raw_of(ground)


def in_copied_context(ground: Ground) -> object:
    return during(ground, contextvars.copy_context).run(raw_of, ground)


def in_copy_of_copy(ground: Ground) -> object:
    return during(ground, contextvars.copy_context).copy().run(raw_of, ground)


def in_later_thread(ground: Ground) -> None:
    """A thread is started while the request is under way, and dials when it is over."""
    go = threading.Event()

    def work() -> None:
        go.wait()
        ground.attempt(lambda: raw_of(ground))

    during(ground, lambda: threading.Thread(target=work, daemon=True).start())
    go.set()
    settle(ground)


def in_raw_thread(ground: Ground) -> None:
    import _thread

    go = threading.Event()

    def work() -> None:
        go.wait()
        ground.attempt(lambda: raw_of(ground))

    during(ground, lambda: _thread.start_new_thread(work, ()))
    go.set()
    settle(ground)


def in_pool(ground: Ground) -> object:
    from concurrent.futures import ThreadPoolExecutor

    go = threading.Event()
    pool = ThreadPoolExecutor(1)
    future = during(ground, lambda: pool.submit(lambda: (go.wait(), raw_of(ground))[1]))
    go.set()
    return future.result()


def in_callback(ground: Ground) -> None:
    """An object made inside dies outside."""

    class Bomb:
        def __del__(self) -> None:
            ground.attempt(lambda: raw_of(ground))

    bomb = during(ground, Bomb)
    del bomb, ground.held.connection
    settle(ground)


def in_generator(ground: Ground) -> object:
    def generator():
        yield
        yield raw_of(ground)

    suspended = during(ground, lambda: (made := generator(), next(made))[0])
    return next(suspended)


async def in_task(ground: Ground) -> object:
    import asyncio

    go = asyncio.Event()

    async def work() -> object:
        await go.wait()
        return raw_of(ground)

    task = during(ground, lambda: asyncio.get_running_loop().create_task(work()))
    go.set()
    return await task


async def in_loop_callback(ground: Ground) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    during(ground, lambda: loop.call_later(0.02, lambda: ground.attempt(lambda: raw_of(ground))))
    await asyncio.sleep(0.1)


network_attacks_of(
    {
        "dialled": after_request,
        "copied_context": in_copied_context,
        "copy_of_copy": in_copy_of_copy,
        "thread": in_later_thread,
        "raw_thread": in_raw_thread,
        "pool": in_pool,
        "finaliser": in_callback,
        "generator": in_generator,
        "task": in_task,
        "loop_callback": in_loop_callback,
    },
    "a permitted request is over, and what was set up during it goes on: {}",
    expect=NETWORK,
    group="over_",
)
