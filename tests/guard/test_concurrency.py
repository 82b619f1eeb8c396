"""The guard follows deferred work of guarded code, and affects no other code."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import gc
import os
import queue
import signal
import sys
import threading
import time
import weakref

DENIED, FREE = ["FilesystemDenied", "demo"], ["ok", None]


def guard_of(world, subject="demo", **more):
    from democrai_sandbox import process_guard_context

    more.setdefault("allowed_paths", [world.root])
    return process_guard_context(subject=subject, **more)


def look(world):
    """Return whether the secret can be read here, and by which subject."""
    from democrai_sandbox import current_guard

    view = current_guard()
    return [world.can_read(), view and view.subject]


def threads(world):
    """Start threads in every way under a guard, and one by the host meanwhile."""
    found = queue.SimpleQueue()

    class Own(threading.Thread):
        def run(self):
            found.put(look(world))

    class Bare(threading.Thread):
        def _bootstrap_inner(self):
            found.put(look(world))

    def begin():
        threading.Thread(target=lambda: found.put(look(world))).start()
        Own().start()
        _thread.start_new_thread(lambda: found.put(look(world)), ())
        _thread.start_new(lambda: found.put(look(world)), ())
        if hasattr(_thread, "start_joinable_thread"):
            _thread.start_joinable_thread(lambda: found.put(look(world)))
        threading.Timer(0, lambda: found.put(look(world))).start()
        context = contextvars.Context()
        _thread.start_new_thread(lambda: context.run(lambda: found.put(look(world))), ())
        made = threading.Thread(target=lambda: found.put(look(world)))
        return made

    expected = 6 + hasattr(_thread, "start_joinable_thread")
    made = guard_of(world).run(begin)
    guarded = [found.get(timeout=10) for _ in range(expected)]
    made.start()  # created by the subject, started by the host
    late = found.get(timeout=10)
    with guard_of(world):
        inner = threading.Thread(target=lambda: found.put(look(world)))
        inner.start()
        inside = found.get(timeout=10)
    threading.Thread(target=lambda: found.put(look(world))).start()
    return {"guarded": guarded, "inside": inside, "host": found.get(timeout=10), "late": late}


def pools(world):
    """Use pools of the host by subjects and the host in turn, and pools created under a guard."""
    host_pool = concurrent.futures.ThreadPoolExecutor(2)
    list(host_pool.map(lambda _: time.sleep(0.01), range(4)))
    seen = {}

    def subject():
        seen["submit"] = host_pool.submit(look, world).result()
        seen["map"] = list(host_pool.map(look, [world] * 3))
        inner = []
        host_pool.submit(lambda: inner.append(host_pool.submit(look, world).result())).result()
        seen["submitted from a worker"] = inner[0]
        with concurrent.futures.ThreadPoolExecutor(1) as own:
            seen["own pool"] = own.submit(look, world).result()
        called = threading.Event()

        def callback(_):
            seen["callback"] = look(world)
            called.set()

        host_pool.submit(look, world).add_done_callback(callback)
        called.wait(10)  # the result is available before the callbacks have run
        fresh.submit(look, world).result()

    fresh = concurrent.futures.ThreadPoolExecutor(1)  # the subject will start its only worker
    guard_of(world).run(subject)
    seen["host after"] = [host_pool.submit(look, world).result() for _ in range(4)]
    seen["host in a worker the subject started"] = fresh.submit(look, world).result()
    other = guard_of(world, "other", allowed_paths=[world.outside]).run(lambda: fresh.submit(look, world).result())
    seen["other subject there"] = other
    seen["initializer"] = initializers(world)
    return seen


def initializers(world):
    box = []
    pool = guard_of(world).run(
        lambda: concurrent.futures.ThreadPoolExecutor(1, initializer=lambda: box.append(look(world)))
    )
    guard_of(world).run(lambda: pool.submit(int).result())
    return box[0]


def loop_executor(world):
    """Use the loop's default executor first under a guard, then as the host, then as another subject."""
    seen = {}

    async def main():
        loop = asyncio.get_running_loop()
        async with guard_of(world):
            seen["subject"] = await loop.run_in_executor(None, look, world)
            seen["to_thread"] = await asyncio.to_thread(look, world)
        seen["host"] = [await loop.run_in_executor(None, look, world) for _ in range(3)]
        seen["host to_thread"] = await asyncio.to_thread(look, world)
        async with guard_of(world, "other", allowed_paths=[world.outside]):
            seen["other"] = await asyncio.to_thread(look, world)
        pool = concurrent.futures.ThreadPoolExecutor(1)
        await loop.run_in_executor(pool, look, world)
        async with guard_of(world):
            seen["host's pool"] = await loop.run_in_executor(pool, look, world)
        seen["host's pool after"] = await loop.run_in_executor(pool, look, world)

    asyncio.run(main())
    return seen


def callbacks(world):
    """Schedule callbacks on a loop in every way."""
    seen = {}

    async def main():
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        future = loop.create_future()
        kept = contextvars.copy_context()
        left, right = os.pipe()

        def note(name):
            seen[name] = look(world)

        async with guard_of(world):
            loop.call_soon(note, "call_soon")
            loop.call_later(0.01, note, "call_later")
            loop.call_at(loop.time() + 0.01, note, "call_at")
            loop.call_soon_threadsafe(note, "call_soon_threadsafe")
            future.add_done_callback(lambda _: note("done callback"))
            seen["host's context"] = (
                world.verdict(lambda: loop.call_soon(note, "call_soon host context", context=kept)) != "" and "tried"
            )
            seen["empty context"] = (
                world.verdict(lambda: loop.call_soon(note, "call_soon empty context", context=contextvars.Context()))
                != ""
                and "tried"
            )
            threading.Thread(target=lambda: loop.call_soon_threadsafe(note, "from a guarded thread")).start()
            task = asyncio.create_task(nothing())
            task.add_done_callback(lambda _: note("task callback"))
            own_left, own_right = os.pipe()
            loop.add_reader(own_left, lambda: (note("reader"), loop.remove_reader(own_left)))
            os.write(own_right, b"x")
            asyncio.get_running_loop().create_task(naming(note, "task in empty context"), context=contextvars.Context())
        future.set_result(None)
        loop.call_soon(note, "host call_soon")
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if {"call_later", "call_at", "from a guarded thread", "reader"} <= set(seen):
                break
        note("host")

    asyncio.run(main())
    seen.pop("host's context")
    seen.pop("empty context")
    return seen


async def nothing():
    await asyncio.sleep(0)


async def naming(note, name):
    note(name)


def deferred(world):
    """Set up signals, finalizers, weak references and __del__ under a guard that run later without one."""
    seen = {}

    class Thing:
        pass

    things = {name: Thing() for name in ("ref", "finalize", "proxy")}

    def subject():
        class Dying:
            def __del__(self):
                seen["__del__"] = look(world)

        signal.signal(signal.SIGUSR1, lambda *_: seen.__setitem__("signal", look(world)))
        seen["references"] = [
            weakref.ref(things["ref"], lambda _: seen.__setitem__("weakref", look(world))),
            weakref.finalize(things["finalize"], lambda: seen.__setitem__("finalize", look(world))),
            weakref.proxy(things["proxy"], lambda _: seen.__setitem__("proxy", look(world))),
        ]
        return Dying()

    dying = guard_of(world).run(subject)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0)
    references = seen.pop("references")
    for name in list(things):
        del things[name]
    gc.collect()
    del dying
    gc.collect()
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    seen["host"] = look(world)
    return seen


def host_deferred(world):
    """Run handlers of the host while code is guarded: they run unguarded, and so does the host afterwards."""
    seen = {}
    signal.signal(signal.SIGUSR1, lambda *_: seen.__setitem__("signal outside", look(world)[1]))
    os.kill(os.getpid(), signal.SIGUSR1)
    with guard_of(world):
        seen["get"] = callable(signal.getsignal(signal.SIGUSR1))
        previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, previous)
    os.kill(os.getpid(), signal.SIGUSR1)
    return seen


def at_exit(world):
    """Register atexit functions of the subject and the host in a separate process."""
    import subprocess

    script = """
import atexit, sys
from democrai_sandbox import process_guard_context
secret, root = sys.argv[1:]
def attempt(name):
    try:
        open(secret).close()
    except PermissionError as error:
        print(name, type(error).__name__)
    else:
        print(name, "ok")
atexit.register(attempt, "host before")
process_guard_context(subject="demo", allowed_paths=[root]).run(lambda: atexit.register(attempt, "subject"))
atexit.register(attempt, "host after")
process_guard_context(subject="demo", allowed_paths=[root]).run(lambda: atexit.unregister(attempt))
if len(sys.argv) > 9: pass
"""
    run = lambda text: subprocess.run(
        [sys.executable, "-P", "-c", text, world.secret, world.root], capture_output=True, text=True
    )
    done = run(
        script.replace(
            'process_guard_context(subject="demo", allowed_paths=[root]).run(lambda: atexit.unregister(attempt))\n', ""
        )
    )
    return [sorted(done.stdout.split("\n")), done.stderr]


def unaffected(world):
    """Use the file system in host threads and tasks while subjects come and go: no denial ever reaches them."""
    stop = threading.Event()
    wrong = []
    counts = {"host": 0, "subject": 0}

    def host():
        while not stop.is_set():
            seen = look(world)
            counts["host"] += 1
            if seen != ["ok", None]:
                wrong.append(seen)

    def subject():
        while not stop.is_set():
            with guard_of(world):
                seen = look(world)
                counts["subject"] += 1
                if seen != ["FilesystemDenied", "demo"]:
                    wrong.append(seen)

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    workers = [threading.Thread(target=target) for target in (host, host, subject, subject)]
    for worker in workers:
        worker.start()
    time.sleep(1)
    stop.set()
    for worker in workers:
        worker.join()
    sys.setswitchinterval(old)
    return [wrong[:3], counts["host"] > 100, counts["subject"] > 100]


def imports(world):
    """Import, or fail to, as a subject; afterwards the host imports the same without trouble."""
    os.makedirs(world.out("lib", "hidden_package"))
    os.makedirs(world.inside("lib"))
    write(world.out("lib", "hidden.py"), "value = 1")
    write(world.out("lib", "hidden_package", "__init__.py"), "value = 2")
    write(world.inside("lib", "shown.py"), "value = 3")
    write(world.out("lib", "hidden_two.py"), "value = 4")
    sys.path.append(world.inside("lib"))

    def attempt(name):
        return describe(error) if (error := caught(__import__, name)) else sys.modules[name].value

    seen = {}

    def subject():
        sys.path.append(world.out("lib"))
        seen["subject"] = [attempt(name) for name in ("shown", "hidden", "hidden_package", "absent")]

    guard_of(world).run(subject)
    write(world.inside("lib", "shown_two.py"), "value = 5")
    seen["host"] = [attempt(name) for name in ("hidden", "hidden_package", "hidden_two", "shown")]
    import importlib

    importlib.invalidate_caches()
    seen["host later"] = [attempt("shown_two")]
    return seen


def late_path(world):
    """Import from a folder that the host added to sys.path, under the guard and afterwards."""
    os.makedirs(world.out("lib"))
    write(world.out("lib", "hosted.py"), "value = 1")
    write(world.out("lib", "hosted_two.py"), "value = 2")
    sys.path.append(world.out("lib"))

    def attempt(name):
        return describe(error) if (error := caught(__import__, name)) else sys.modules[name].value

    under = guard_of(world, include_runtime_paths=False, allowed_paths=[]).run(attempt, "hosted")
    return [
        under,
        attempt("hosted_two"),
        sorted(key for key, value in sys.path_importer_cache.items() if key == world.out("lib") and value is None),
    ]


def two_loops(world):
    """Run a separate loop with a separate guard in each thread."""
    found = {}

    def serve(name, root):
        async def main():
            async with guard_of(world, name, allowed_paths=[root]):
                seen = []
                for _ in range(50):
                    seen.append(look(world))
                    await asyncio.sleep(0)
                return seen

        found[name] = asyncio.run(main())

    workers = [threading.Thread(target=serve, args=pair) for pair in (("in", world.root), ("out", world.outside))]
    for worker in workers:
        worker.start()
    host = [look(world) for _ in range(50)]
    for worker in workers:
        worker.join()
    kinds = {name: sorted({tuple(map(str, one)) for one in seen}) for name, seen in found.items()}
    return kinds, all(one == ["ok", None] for one in host)


def anyio_threads(world):
    """Start a worker thread of anyio as a subject, then use it as the host and as another subject."""
    import anyio.to_thread

    seen = {}

    async def main():
        async with guard_of(world):
            seen["subject"] = await anyio.to_thread.run_sync(look, world)
        seen["host"] = [await anyio.to_thread.run_sync(look, world) for _ in range(2)]
        async with guard_of(world, "other", allowed_paths=[world.outside]):
            seen["other"] = await anyio.to_thread.run_sync(look, world)
        async with guard_of(world):
            seen["subject again"] = await anyio.to_thread.run_sync(look, world)

    asyncio.run(main())
    return seen


class TestThreads:
    def test_threads_started_under_a_guard_are_guarded(self, case):
        """In every way of starting, a thread runs as its starter; the host's threads are unguarded."""
        seen = case.run(threads)
        assert seen["inside"] == DENIED
        assert seen["host"] == FREE
        assert all(one == DENIED for one in seen["guarded"]), seen["guarded"]

    def test_pools_serve_each_submission_in_its_own_name(self, case):
        """Neither a worker started by a subject nor one started by the host keeps a guard for the next submission."""
        seen = case.run(pools)
        for name in ("submit", "submitted from a worker", "own pool", "callback"):
            assert seen[name] == DENIED, name
        assert seen["map"] == [DENIED] * 3
        assert seen["initializer"] == DENIED
        assert seen["host after"] == [FREE] * 4
        assert seen["host in a worker the subject started"] == FREE
        assert seen["other subject there"] == ["ok", "other"]

    def test_the_default_executor_belongs_to_nobody(self, case):
        """First used under a guard, it still serves the host unguarded, and another subject as that subject."""
        assert case.run(loop_executor) == {
            "subject": DENIED,
            "to_thread": DENIED,
            "host": [FREE] * 3,
            "host to_thread": FREE,
            "other": ["ok", "other"],
            "host's pool": DENIED,
            "host's pool after": FREE,
        }

    def test_threads_that_anyio_keeps_belong_to_nobody(self, case):
        """Each job runs as its submitter, whichever code started the thread."""
        assert case.run(anyio_threads) == {
            "subject": DENIED,
            "host": [FREE] * 2,
            "other": ["ok", "other"],
            "subject again": DENIED,
        }

    def test_host_threads_are_never_denied(self, case):
        """Subjects that enter and leave in parallel do not affect the host's threads."""
        assert case.run(unaffected) == [[], True, True]

    def test_loops_in_threads_keep_their_guards_apart(self, case):
        """Two loops in two threads and the main thread have separate guards."""
        assert case.run(two_loops) == [{"in": [["FilesystemDenied", "in"]], "out": [["ok", "out"]]}, True]


class TestLater:
    def test_loop_callbacks_run_in_the_name_of_who_gave_them(self, case):
        """Soon, later, from a thread, a reader, a future: the subject's callbacks are guarded, the host's are not."""
        seen = case.run(callbacks)
        host = {name: seen.pop(name) for name in ("host", "host call_soon")}
        assert all(one == FREE for one in host.values())
        assert all(one == DENIED for one in seen.values()), seen
        assert {
            "call_soon",
            "call_later",
            "call_at",
            "call_soon_threadsafe",
            "done callback",
            "from a guarded thread",  # wording: a name in the test's own table
            "reader",
        } <= set(seen)

    def test_signals_and_finalisers_run_in_the_name_of_who_set_them_up(self, case):
        """They run when no guard is active, and are guarded all the same."""
        seen = case.run(deferred)
        assert seen.pop("host") == FREE
        assert {"signal", "weakref", "finalize", "proxy", "__del__"} == set(seen)
        assert {name: one for name, one in seen.items() if one != DENIED} == {}

    def test_handlers_of_the_host_stay_the_hosts(self, case):
        """A subject may set and restore a handler; the host's handler keeps running unguarded."""
        assert case.run(host_deferred) == {"get": True, "signal outside": None}

    def test_atexit_functions_run_in_the_name_of_who_registered_them(self, case):
        """At the end of the process the subject's function is guarded and the host's are not."""
        lines, errors = case.run(at_exit)
        assert [line for line in lines if line] == ["host after ok", "host before ok", "subject FilesystemDenied"], (
            errors
        )


class TestImports:
    def test_a_subjects_imports_poison_nothing(self, case):
        """Folders that a subject may not list stay importable for the host."""
        assert case.run(imports) == {
            "subject": [
                3,
                *(f"ModuleNotFoundError:No module named '{name}'" for name in ("hidden", "hidden_package", "absent")),
            ],
            "host": [1, 2, 4, 3],
            "host later": [5],
        }

    def test_the_import_path_works_without_runtime_paths(self, case):
        """A guard without runtime paths can import from sys.path, and the host's caches stay correct."""
        assert case.run(late_path) == [1, 2, []]
