"""Entering and leaving guards: the forms, their return values, and the state afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading


def guard_of(world, subject="demo", **more):
    """Return a guard over the root, unless the caller wants another."""
    from democrai_sandbox import process_guard_context

    more.setdefault("allowed_paths", [world.root])
    return process_guard_context(subject=subject, **more)


def subject_now():
    """Return the subject of the active guard, or None."""
    from democrai_sandbox import current_guard

    view = current_guard()
    return view and view.subject


def forms(world):
    """Each form guards its body, passes results on, and leaves nothing behind."""
    seen = {}

    def look():
        return [world.can_read(), world.can_read(world.inside("f")), subject_now()]

    async def look_async():
        first = look()
        await asyncio.sleep(0)
        return first + look()

    async def async_forms():
        async with guard_of(world) as entered:
            seen["async with"] = await look_async()
        seen["after async with"] = look()
        with guard_of(world):
            seen["with in coroutine"] = await look_async()
        seen["after with in coroutine"] = look()
        seen["run coroutine function"] = await guard_of(world).run(look_async)
        seen["after run coroutine"] = look()

    write(world.inside("f"))
    with guard_of(world):
        seen["with"] = look()
    seen["after with"] = look()
    seen["run"] = guard_of(world).run(look)
    seen["after run"] = look()
    asyncio.run(async_forms())
    seen["after asyncio.run"] = look()
    seen["arguments"] = guard_of(world).run(lambda *args, **kwargs: [args, kwargs], 1, two=2)
    return seen


def hints(world):
    """Return the hints of denials in a guard that a host opened directly, and the repr of guards."""
    import http.client
    import os

    from democrai_sandbox import network_policy_context, process_guard_bypass_context, process_guard_context_from_env

    def subject():
        denials = {
            "file": caught(read, world.secret),
            "network": caught(http.client.HTTPConnection("127.0.0.1", 9).request, "GET", "/"),
            "import": caught(__import__, "ctypes"),
            "process": caught(os.system, "true"),
        }
        return {name: denial.hint for name, denial in denials.items()}

    def ask_network():
        return caught(http.client.HTTPConnection("127.0.0.1", 9).request, "GET", "/").hint

    child = {"DEMOCRAI_NETWORK_SUBJECT": "demo", "DEMOCRAI_NETWORK_SUBJECT_KIND": "module", "DEMOCRAI_ACCESS": "[]"}
    told = guard_of(world).run(subject)
    told["network only"] = network_policy_context(subject="demo").run(ask_network)
    told["in a child"] = process_guard_context_from_env(child).run(subject)["file"]
    shown = {
        "guard": repr(guard_of(world)),
        "network": repr(network_policy_context(subject="whisper", subject_kind="engine")),
        "bypass": repr(process_guard_bypass_context()),
    }
    return told, shown


def generators(world):
    """A generator or coroutine that run() returns is guarded at each step, its consumer never."""
    seen = {}

    def produce():
        sent = yield world.can_read()
        seen["sent"] = sent
        try:
            yield world.can_read()
        except KeyError:
            seen["thrown"] = world.can_read()
            yield "caught"
        finally:
            seen["finally"] = world.can_read()
        return "end"

    def delegating():
        seen["result"] = yield from guard_of(world).run(produce)

    async def produce_async():
        yield world.can_read()
        await asyncio.sleep(0)
        yield world.can_read()

    async def consume():
        return [step async for step in produce_async()]

    running = guard_of(world).run(produce)
    seen["step 1"] = [next(running), world.can_read()]
    seen["step 2"] = [running.send("hello"), world.can_read()]
    seen["step 3"] = [running.throw(KeyError()), world.can_read()]
    running.close()
    seen["after close"] = world.can_read()
    for _ in delegating():
        pass
    seen["async generator"] = asyncio.run(run_async(world, consume))
    seen["bare async generator"] = describe(caught(guard_of(world).run, produce_async))
    return seen


def exceptions(world):
    """An exception of the body arrives unchanged, and the guard is left."""
    seen = {}

    class Own(BaseException):
        pass

    def fail(error):
        raise error

    async def fail_async(error):
        await asyncio.sleep(0)
        raise error

    def passes(form, error):
        try:
            form(error)
        except BaseException as arrived:
            return [arrived is error, world.can_read()]
        return ["swallowed"]

    def with_form(error):
        with guard_of(world):
            raise error

    async def async_with_form(error):
        async with guard_of(world):
            await fail_async(error)

    for kind in (ValueError, KeyboardInterrupt, Own, PermissionError, GeneratorExit, StopIteration):
        seen[kind.__name__] = [
            *passes(with_form, kind("x")),
            *passes(lambda error: guard_of(world).run(fail, error), kind("x")),
        ]
    seen["async with"] = passes(lambda error: asyncio.run(async_with_form(error)), ValueError("x"))
    seen["coroutine"] = passes(lambda error: asyncio.run(run_async(world, fail_async, error)), ValueError("x"))
    return seen


async def run_async(world, function, *args):
    return await guard_of(world).run(function, *args)


def cancelled(world):
    """A cancelled guarded coroutine runs its cleanup under the guard and leaves it."""
    seen = {}

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            seen["cleanup"] = world.can_read()

    async def main():
        task = asyncio.create_task(guarded())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        seen["host"] = world.can_read()

    async def guarded():
        async with guard_of(world):
            await work()

    asyncio.run(main())
    return seen


def outliving(world):
    """A task that was started under a guard keeps it after the guard was left, and the host does not."""
    seen = {}

    async def background(gate):
        await gate.wait()
        return [world.can_read(), subject_now()]

    async def main():
        gate = asyncio.Event()
        async with guard_of(world):
            task = asyncio.create_task(background(gate))
            grandchild = asyncio.create_task(spawning(gate))
            await asyncio.sleep(0)
        seen["host"] = [world.can_read(), subject_now()]
        gate.set()
        seen["task"] = await task
        seen["grandchild"] = await (await grandchild)
        seen["host at the end"] = [world.can_read(), subject_now()]

    async def spawning(gate):
        await gate.wait()
        return asyncio.create_task(background(gate))

    asyncio.run(main())
    return seen


def interleaved(world):
    """Interleave two guards and unguarded code on one loop, each with separate results."""
    import os

    for name in ("a", "b"):
        os.mkdir(world.inside(name))
        write(world.inside(name, "f"))
    wrong = []

    async def subject(name, other, rounds):
        async with guard_of(world, name, allowed_paths=[world.inside(name)]):
            for _ in range(rounds):
                seen = [
                    world.can_read(world.inside(name, "f")),
                    world.can_read(world.inside(other, "f")),
                    subject_now(),
                ]
                if seen != ["ok", "FilesystemDenied", name]:
                    wrong.append([name, seen])
                await asyncio.sleep(0)

    async def free(rounds):
        for _ in range(rounds):
            seen = [world.can_read(), subject_now()]
            if seen != ["ok", None]:
                wrong.append(["free", seen])
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(subject("a", "b", 300), free(300), subject("b", "a", 200), free(100))

    asyncio.run(main())
    return wrong[:5]


def reuse(world):
    """Use one Guard object for many activations in sequence; concurrently only through run()."""
    guard = guard_of(world)
    seen = []
    for _ in range(3):
        with guard:
            seen.append(world.can_read())
        seen.append(world.can_read())
    with guard:
        seen.append(world.verdict(nested_again, world, guard))
        seen.append(guard.run(world.can_read))
        seen.append(world.can_read())
    seen.append(world.can_read())
    return seen, together(world, guard)


def nested_again(world, guard):
    with guard:
        world.can_read()


def together(world, guard):
    """Use the same object in four threads and twenty tasks at the same time."""
    wrong = []
    start = threading.Barrier(4)

    def thread():
        start.wait()
        for _ in range(200):
            if guard.run(world.can_read) != "FilesystemDenied":
                wrong.append("thread inside")
            if world.can_read() != "ok":
                wrong.append("thread outside")

    async def step():
        await asyncio.sleep(0)
        return world.can_read()

    async def task():
        for _ in range(20):
            if await guard.run(step) != "FilesystemDenied":
                wrong.append("task inside")
            if await step() != "ok":
                wrong.append("task outside")

    async def tasks():
        await asyncio.gather(*(task() for _ in range(20)))

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    asyncio.run(tasks())
    for each in threads:
        each.join()
    return wrong[:5]


def views(world):
    """Return the values of current_guard(), and whether they are read-only."""
    from democrai_sandbox import current_guard

    def look():
        view = current_guard()
        changed = {
            name: describe(caught(setattr, view, name, "x"))
            for name in ("subject", "user_id", "new", "allow_subprocess")
        }
        return {
            "subject": view.subject, "kind": str(view.subject_kind), "user": view.user_id,
            "organization": view.organization_id, "session": view.session_key, "process": view.allow_subprocess,
            "imports": sorted(view.allowed_imports), "changed": [text.partition(":")[0] for text in changed.values()],
            "after": [current_guard().subject, current_guard().user_id],
        }  # fmt: skip

    guard = guard_of(
        world, subject_kind="engine", user_id="u", organization_id="o", session_key="s", allowed_imports=["ctypes"]
    )
    return [current_guard(), guard.run(look), current_guard()]


INSIDE = ["FilesystemDenied", "ok", "demo"]


FREE = ["ok", "ok", None]


class TestForms:
    def test_every_form_guards_its_body_and_restores(self, case):
        """with, async with and run guard plain calls and coroutines; afterwards no guard is active."""
        seen = case.run(forms)
        assert seen.pop("arguments") == [[1], {"two": 2}]
        for name in ("with", "run"):
            assert seen.pop(name) == INSIDE, name
        for name in ("async with", "with in coroutine", "run coroutine function"):
            assert seen.pop(name) == INSIDE * 2, name
        assert all(name.startswith("after") and result == FREE for name, result in seen.items()), seen

    def test_generators_are_guarded_step_by_step(self, case):
        """Each step of a generator runs under the guard; between the steps its consumer is unguarded."""
        denied_then_free = ["FilesystemDenied", "ok"]
        assert case.run(generators) == {
            "step 1": denied_then_free,
            "sent": None,  # the last run of produce() is the delegated one
            "step 2": denied_then_free,
            "thrown": "FilesystemDenied",
            "step 3": ["caught", "ok"],
            "finally": "FilesystemDenied",
            "after close": "ok",
            "result": "end",
            "async generator": ["FilesystemDenied"] * 2,
            "bare async generator": "GuardUsageError",
        }

    def test_exceptions_pass_through_unchanged(self, case):
        """The same exception object arrives, of any class, and the guard is left."""
        seen = case.run(exceptions)
        # PEP 479: a StopIteration cannot leave a coroutine, but plain calls pass it on.
        assert all(result in ([True, "ok"], [True, "ok"] * 2) for result in seen.values()), seen

    def test_cancellation_cleans_up_under_the_guard(self, case):
        """A cancelled task's finally block is guarded; the canceller is not."""
        assert case.run(cancelled) == {"cleanup": "FilesystemDenied", "host": "ok"}

    def test_one_guard_object_can_be_used_again_and_at_once(self, case):
        """Activations of one object are independent; entering an entered one is refused."""
        seen, wrong = case.run(reuse)
        assert seen == ["FilesystemDenied", "ok"] * 3 + [
            "GuardUsageError",
            "FilesystemDenied",
            "FilesystemDenied",
            "ok",
        ]
        assert wrong == []

    def test_the_view_tells_and_cannot_be_changed(self, case):
        """current_guard() has the values of the activation, read-only, and is None outside."""
        before, view, after = case.run(views)
        assert (before, after) == (None, None)
        assert set(view.pop("changed")) <= {"FrozenInstanceError", "AttributeError", "TypeError"}
        assert view == {
            "subject": "demo", "kind": "engine", "user": "u", "organization": "o", "session": "s", "process": False,
            "imports": ["ctypes"], "after": ["demo", "u"],
        }  # fmt: skip

    def test_hints_name_the_arguments_of_a_guard_that_the_host_opened(self, case):
        """Such a guard has no manifest. A guard that the runtime opened, and its child processes, have one."""
        told, _ = case.run(hints)
        assert "manifest.json" in told.pop("in a child")
        assert not [name for name, hint in told.items() if "manifest.json" in hint]
        assert "network_policy_context" in told.pop("network only")
        assert not [name for name, hint in told.items() if "process_guard_context" not in hint]
        for name, argument in {"file": "access", "network": "access", "import": "allowed_imports"}.items():
            assert f"{argument}=[" in told[name]
        assert "allow_subprocess=True" in told["process"]

    def test_a_guard_shows_its_subject(self, case):
        """The ``repr`` distinguishes guards in a log or debugger."""
        _, shown = case.run(hints)
        assert shown == {
            "guard": "<Guard module:demo>",
            "network": "<Guard engine:whisper, network only>",
            "bypass": "<Guard bypass>",
        }


class TestLoops:
    def test_a_task_outlives_the_guard_it_was_started_in(self, case):
        """It stays guarded, and so do its children; the code that started it is unguarded again."""
        guarded, free = ["FilesystemDenied", "demo"], ["ok", None]
        assert case.run(outliving) == {"host": free, "task": guarded, "grandchild": guarded, "host at the end": free}

    def test_two_guards_on_one_loop_never_see_each_other(self, case):
        """Interleaved at every step, each task has its own policy and unguarded code has none."""
        assert case.run(interleaved) == []
