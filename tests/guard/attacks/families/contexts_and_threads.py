"""Contexts, threads and pools that could lose the policy."""

from __future__ import annotations

import contextvars
import threading
import time

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of, settle


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


class Evil:
    """Looks like a finished future to whoever is given it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def result(self) -> None:
        self.ground.steal()


def hold_callback(ground: Ground) -> None:
    from concurrent.futures import Future

    ground.held.future = Future()
    ground.held.future.add_done_callback(lambda future: future.result())


@attack(
    "a callback that the host registered is called by the subject with an object of its own",
    expect=FILES,
    prepare=hold_callback,
)
def callback_of_the_host(ground: Ground) -> None:
    ground.held.future._done_callbacks[0](Evil(ground))


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
        "host_in_empty_context": lambda ground: (
            contextvars.Context().run(ground.held.pool.submit, read, ground).result()
        ),
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
