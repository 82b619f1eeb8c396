"""Unguarded code is not affected, also while other code in the process is guarded."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import inspect
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import weakref


def freedoms(world):
    """Return harmless acts that a subject may not do."""
    folder = os.open(world.outside, os.O_RDONLY)

    def traced():
        previous = sys.gettrace()
        sys.settrace(lambda *_: None)
        sys.settrace(previous)

    def forked():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def removed_tree():
        os.makedirs(world.out("tree", "deep"))
        shutil.rmtree(world.out("tree"))

    def environment():
        os.environ["DEMOCRAI_TEST"] = "x"
        del os.environ["DEMOCRAI_TEST"]

    def native():
        import ctypes

        assert ctypes.CDLL(None).getpid() == os.getpid()

    def database():
        connection = sqlite3.connect(world.out("host.db"))
        connection.execute("attach ? as other", (world.out("other.db"),))
        connection.set_authorizer(None)
        connection.close()

    def masked():
        os.umask(os.umask(0o022))

    def copied_link():
        os.symlink(world.secret, world.out("link"))
        shutil.copy2(world.out("link"), world.out("copy"), follow_symlinks=False)
        assert os.readlink(world.out("copy")) == world.secret
        os.unlink(world.out("link"))
        os.unlink(world.out("copy"))

    def capabilities():
        """Return whether sets find builtin functions, which are hashed by their function pointer."""
        for found in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
            assert all(function in found for function in list(found))

    def handled():
        previous = signal.getsignal(signal.SIGUSR2)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGUSR2)
            signal.signal(signal.SIGUSR2, previous)

    def in_context():
        variable = contextvars.ContextVar("host")
        context = contextvars.Context()
        context.run(variable.set, 1)
        assert context[variable] == 1

    def shown_callbacks():
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        future.add_done_callback(in_context)
        assert "in_context()" in repr(future)
        assert [given for given, _ in future._callbacks] == [in_context]
        loop.close()

    def signature_of_import():
        assert list(inspect.signature(__import__).parameters) == ["name", "globals", "locals", "fromlist", "level"]
        assert __import__.__module__ == "builtins"

    def replaced_methods():
        submit = concurrent.futures.ThreadPoolExecutor.submit
        assert list(inspect.signature(submit).parameters) == ["self", "fn", "args", "kwargs"]
        assert inspect.isfunction(submit) and submit.__qualname__ == "ThreadPoolExecutor.submit"
        assert pickle.loads(pickle.dumps(submit)) is submit

    async def child_process():
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0

    freedom = {
        "read": lambda: read(world.secret),
        "read passwd": lambda: read("/etc/passwd"),
        "list home": lambda: os.listdir(world.home),
        "dir_fd": lambda: os.close(os.open("secret.txt", os.O_RDONLY, dir_fd=folder)),
        "stat by number": lambda: os.fstat(folder),
        "rmtree": removed_tree,
        "subprocess": lambda: subprocess.run(["true"], check=True),
        "system": lambda: os.system("true"),
        "asyncio subprocess": lambda: asyncio.run(child_process()),
        "fork": forked,
        "ctypes": native,
        "gc": lambda: (gc.get_objects(), gc.get_referrers(freedoms)),
        "settrace": traced,
        "code": lambda: freedoms.__code__.replace(co_consts=freedoms.__code__.co_consts),
        "environment": environment,
        "sqlite": database,
        "umask": masked,
        "signal": handled,
        "context": in_context,
        "callbacks": shown_callbacks,
        "signature of import": signature_of_import,
        "replaced methods": replaced_methods,
        "weakref": lambda: weakref.finalize(handled, int).detach(),
        "proc": lambda: read("/proc/self/maps"),
        "copy of a link": copied_link,
        "os.supports_...": capabilities,
        "symlink": lambda: (os.symlink(world.secret, world.inside("l")), os.unlink(world.inside("l"))),
    }
    seen = {name: world.verdict(act) for name, act in freedom.items()}
    os.close(folder)
    return {name: verdict for name, verdict in seen.items() if verdict != "ok"}


def beside(world):
    """Do these acts as the host before any guard, beside one in another thread, between its steps, and afterwards."""
    from democrai_sandbox import process_guard_context

    entered, leave = threading.Event(), threading.Event()

    def hold():
        with process_guard_context(subject="demo", allowed_paths=[world.root]):
            entered.set()
            leave.wait(30)

    def steps():
        yield
        yield

    seen = {"before": freedoms(world)}
    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    seen["beside a guarded thread"] = freedoms(world)
    leave.set()
    thread.join()
    running = process_guard_context(subject="demo", allowed_paths=[world.root]).run(steps)
    next(running)
    seen["between the steps of a generator"] = freedoms(world)
    running.close()
    seen["afterwards"] = freedoms(world)
    worker = []
    thread = threading.Thread(target=lambda: worker.append(freedoms(world)))
    thread.start()
    thread.join()
    seen["in a thread of its own"] = worker[0]
    return seen


def forked_child(world):
    """Fork as the host while a thread is guarded: the child is unguarded, and can guard."""
    from democrai_sandbox import current_guard, process_guard_context

    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        inside = process_guard_context(subject="demo", allowed_paths=[world.root]).run(world.can_read)
        os.write(write_end, f"{world.can_read()} {inside} {current_guard()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read_end, 100).decode()


def waiting(world):
    """Await results of guarded tasks in every usual way; the host continues unguarded each time."""
    from democrai_sandbox import current_guard, process_guard_context

    seen = {}

    def who():
        view = current_guard()
        return view and view.subject

    async def work(value=1):
        await asyncio.sleep(0.001)
        return value

    async def fail():
        await asyncio.sleep(0)
        raise KeyError

    async def main():
        loop = asyncio.get_running_loop()
        future, notified = loop.create_future(), []
        future.add_done_callback(lambda _: notified.append(who()))
        event, queue = asyncio.Event(), asyncio.Queue()

        async def set_all():
            await asyncio.sleep(0.001)
            future.set_result(1)
            event.set()
            queue.put_nowait(1)

        async with process_guard_context(subject="demo", allowed_paths=[world.root]):
            tasks = [asyncio.create_task(work(n)) for n in range(8)]
            failing = asyncio.create_task(fail())
            setting = asyncio.create_task(set_all())
        seen["after leaving"] = who()
        await tasks[0]
        seen["await"] = who()
        await asyncio.gather(tasks[1], tasks[2])
        seen["gather"] = who()
        await asyncio.wait_for(tasks[3], 5)
        seen["wait_for"] = who()
        await asyncio.wait([tasks[4]])
        seen["wait"] = who()
        for done in asyncio.as_completed([tasks[5]]):
            await done
        seen["as_completed"] = who()
        await asyncio.shield(tasks[6])
        seen["shield"] = who()
        try:
            await failing
        except KeyError:
            seen["failure"] = who()
        await future
        seen["future"] = who()
        await event.wait()
        seen["event"] = who()
        await queue.get()
        seen["queue"] = who()
        await setting
        seen["done callback"] = notified[0]
        async with asyncio.TaskGroup() as group:
            group.create_task(guarded(work))
        seen["task group"] = who()
        await process_guard_context(subject="demo", allowed_paths=[world.root]).run(work)
        seen["run"] = who()

    async def guarded(function):
        async with process_guard_context(subject="demo", allowed_paths=[world.root]):
            return await function()

    asyncio.run(main())
    return seen


class TestHost:
    def test_the_host_keeps_every_freedom(self, case):
        """The host may do what a subject may not, before, beside, between and after guards."""
        assert set(map(str, case.run(beside).values())) == {"{}"}

    def test_a_forked_child_is_free_and_can_guard(self, case):
        """Patches survive a fork; guard state does not."""
        assert case.run(forked_child) == "ok FilesystemDenied None"

    def test_awaiting_guarded_work_does_not_guard_the_waiter(self, case):
        """Code that waits for a guarded task, future, event or queue continues as itself."""
        seen = case.run(waiting)
        assert {name: subject for name, subject in seen.items() if subject is not None} == {}
        assert len(seen) == 14
