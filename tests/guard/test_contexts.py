"""Entering and leaving guards: the forms, nesting, identity, what is refused, and what remains afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest


def guard_of(world, subject="demo", **more):
    """A guard over the root, unless the caller wants another."""
    from democrai_sandbox import process_guard_context

    more.setdefault("allowed_paths", [world.root])
    return process_guard_context(subject=subject, **more)


def subject_now():
    """The subject of the active guard, or None."""
    from democrai_sandbox import current_guard

    view = current_guard()
    return view and view.subject


def forms(world):
    """Each form guards its body, hands results on, and leaves nothing behind."""
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


def generators(world):
    """A generator or coroutine that run() returns is guarded at each step, and its consumer never is."""
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
    """What the body raises arrives unchanged, and the guard is left."""
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


def enter_inner(world, probe):
    """Runtime code: it enters a tool's guard on behalf of the runtime."""
    with guard_of(world, "inner", subject_kind="tool", allowed_paths=[world.out("given")], allowed_imports=["ctypes"]):
        return probe()


def merge(world):
    """The runtime nests guards: entries add up, the chain grows, leaving restores."""
    import os

    from democrai_sandbox import configure_guard, current_guard

    os.mkdir(world.out("given"))
    write(world.out("given", "f"))
    write(world.inside("f"))
    configure_guard(runtime_code=[enter_inner])
    places = {"root": world.inside("f"), "given": world.out("given", "f"), "secret": world.secret}

    def probe():
        view = current_guard()
        return {
            **{name: world.can_read(path) for name, path in places.items()},
            "chain": [str(subject) for subject in view.subject_chain],
            "subject": [view.subject, str(view.subject_kind)],
            "identity": [view.user_id, view.organization_id, view.session_key],
            "allow chain": [str(entry) for entry in view.subject_allow_chain],
        }

    def outer():
        return [probe(), enter_inner(world, probe), probe()]

    return guard_of(world, "outer", user_id="u1", organization_id="o1", session_key="s1").run(outer)


def enter_tool(world, probe):
    """Runtime code: it enters a tool that declares its own access, which is then all it has."""
    from democrai_sandbox.guard import exact_guard_context

    access = [{"resource_type": "filesystem", "operation": "read", "target": world.out("given")}]
    with exact_guard_context(subject="inner", subject_kind="tool", access=access):
        return probe()


def exact(world):
    """A tool with a declaration of its own takes nothing from the module around it."""
    import os

    from democrai_sandbox import configure_guard, current_guard

    os.mkdir(world.out("given"))
    write(world.out("given", "f"))
    write(world.inside("f"))
    configure_guard(runtime_code=[enter_tool])

    def probe():
        view = current_guard()
        reads = [world.can_read(path) for path in (world.inside("f"), world.out("given", "f"), world.secret)]
        return reads, [str(subject) for subject in view.subject_chain], view.user_id, len(view.subject_allow_chain)

    def outer():
        return [enter_tool(world, probe), probe()]

    return guard_of(world, "outer", user_id="u").run(outer)


def narrow(world):
    """A guard that guarded code opens by itself takes away and never adds."""
    import os
    import subprocess

    from democrai_sandbox import current_guard, process_guard_context

    os.mkdir(world.inside("sub"))
    for path in (world.inside("f"), world.inside("sub", "f")):
        write(path)
    places = {"f": world.inside("f"), "sub": world.inside("sub", "f"), "secret": world.secret}

    def probe():
        view = current_guard()
        return {
            **{name: world.can_read(path) for name, path in places.items()},
            "identity": [view.user_id, view.session_key],
            "process": world.verdict(subprocess.run, ["true"]),
            "import": world.verdict(__import__, "ctypes"),
        }

    def subject():
        seen = {"before": probe()}
        wide = {
            "allowed_paths": ["/"],
            "allow_subprocess": True,
            "allowed_imports": ["ctypes"],
            "user_id": "admin",
            "session_key": "x",
        }
        for name, arguments in {
            "wide": wide,
            "sub": {"allowed_paths": [world.inside("sub")]},
            "other kind": {**wide, "subject_kind": "core"},
        }.items():
            with process_guard_context(subject="me", **arguments):
                seen[name] = probe()
            with process_guard_context(subject="me", **arguments), process_guard_context(subject="again", **wide):
                seen[name + " twice"] = probe()
            seen[name + " run"] = process_guard_context(subject="me", **arguments).run(probe)
        seen["after"] = probe()
        return seen

    return guard_of(world, user_id="u1", session_key="s1").run(subject)


def refused(world):
    """Forms that could leak a guard to somebody else's frame are refused at entry, and nothing stays behind."""
    seen = {}

    def generator():
        with guard_of(world):
            yield world.can_read()

    async def async_generator():
        async with guard_of(world):
            yield world.can_read()

    async def async_generator_sync_with():
        with guard_of(world):
            yield world.can_read()

    @contextlib.contextmanager
    def manager():
        with guard_of(world):
            yield

    def managed():
        with manager():
            return world.can_read()

    def exit_stack():
        with contextlib.ExitStack() as stack:
            stack.enter_context(guard_of(world))
            return world.can_read()

    async def async_exit_stack():
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(guard_of(world))
            return world.can_read()

    async def anext_of(function):
        return await anext(function())

    def expression():
        return next(world.can_read() for _ in [0] if guard_of(world).__enter__())

    for name, attempt in {
        "generator": lambda: next(generator()),
        "contextmanager": managed,
        "ExitStack": exit_stack,
        "generator expression": expression,
        "async generator": lambda: asyncio.run(anext_of(async_generator)),
        "with in async generator": lambda: asyncio.run(anext_of(async_generator_sync_with)),
        "AsyncExitStack": lambda: asyncio.run(async_exit_stack()),
    }.items():
        error = caught(attempt)
        seen[name] = [describe(error) if error else "passed", isinstance(error, RuntimeError), world.can_read()]
    return seen


def misuse(world):
    """Leaving from another frame or thread, or without having entered, is refused and changes nothing."""
    seen = {}

    def leave(guard):
        return world.verdict(guard.__exit__, None, None, None)

    with guard_of(world) as entered:
        guard = guard_of(world)
        seen["never entered"] = leave(guard)
        seen["still guarded"] = world.can_read()
    outer = guard_of(world)
    with outer:
        seen["from another frame"] = leave(outer)
        seen["guarded after that"] = world.can_read()
        box = []
        thread = threading.Thread(target=lambda: box.append(leave(outer)))
        thread.start()
        thread.join()
        seen["from another thread"] = box[0]
        seen["guarded after thread"] = world.can_read()
    seen["left"] = world.can_read()
    seen["left twice"] = leave(outer)
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
    """Two guards and free code on one loop, step by step, each with its own verdicts only."""
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
    """One Guard object serves many activations, one after another; at once only through run()."""
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
    """The same object in four threads and twenty tasks at the same time."""
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


def runtime_bypass(world):
    from democrai_sandbox import process_guard_bypass_context

    with process_guard_bypass_context():
        return [world.can_read(), subject_now()]


def bypass(world):
    """Only code the host registered may step out of a guard, and only until it steps back."""
    from democrai_sandbox import configure_guard, process_guard_bypass_context

    configure_guard(runtime_code=[runtime_bypass])

    def by_subject():
        with process_guard_bypass_context():
            return world.can_read()

    def by_copy():
        import types

        same = types.FunctionType(runtime_bypass.__code__, {**runtime_bypass.__globals__})
        return same(world)

    seen = {"host": runtime_bypass(world)}
    with guard_of(world):
        error = caught(by_subject)
        seen["subject"] = [isinstance(error, (RuntimeError, PermissionError)), world.can_read()]
        seen["registered"] = runtime_bypass(world)
        seen["afterwards"] = world.can_read()
        seen["copy"] = world.verdict(by_copy) != "ok"
    seen["left"] = world.can_read()
    return seen


def sealing(world):
    """After the first guard the host's settings are fixed."""
    from democrai_sandbox import configure_guard

    first = world.verdict(configure_guard, protected_paths=[world.out("private")])
    inside = guard_of(world).run(world.verdict, configure_guard)
    return first, inside, world.verdict(configure_guard, protected_paths=[])


def views(world):
    """What current_guard() tells, and that it can only be read."""
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
        """with, async with and run guard plain calls and coroutines; afterwards nothing is guarded."""
        seen = case.run(forms)
        assert seen.pop("arguments") == [[1], {"two": 2}]
        for name in ("with", "run"):
            assert seen.pop(name) == INSIDE, name
        for name in ("async with", "with in coroutine", "run coroutine function"):
            assert seen.pop(name) == INSIDE * 2, name
        assert all(name.startswith("after") and result == FREE for name, result in seen.items()), seen

    def test_generators_are_guarded_step_by_step(self, case):
        """Each step of a generator runs under the guard; between the steps its consumer is free."""
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
        """The very exception object arrives, of whatever class, and the guard is left."""
        seen = case.run(exceptions)
        # PEP 479: a StopIteration cannot leave a coroutine, but plain calls hand it on.
        assert all(result in ([True, "ok"], [True, "ok"] * 2) for result in seen.values()), seen

    def test_cancellation_cleans_up_under_the_guard(self, case):
        """A cancelled task's finally block is guarded; whoever cancelled it is not."""
        assert case.run(cancelled) == {"cleanup": "FilesystemDenied", "host": "ok"}

    def test_one_guard_object_can_be_used_again_and_at_once(self, case):
        """Activations of one object do not disturb each other; entering one that is entered is refused."""
        seen, wrong = case.run(reuse)
        assert seen == ["FilesystemDenied", "ok"] * 3 + [
            "GuardUsageError",
            "FilesystemDenied",
            "FilesystemDenied",
            "ok",
        ]
        assert wrong == []

    def test_the_view_tells_and_cannot_be_changed(self, case):
        """current_guard() has the facts of the activation, read-only, and is None outside."""
        before, view, after = case.run(views)
        assert (before, after) == (None, None)
        assert set(view.pop("changed")) <= {"FrozenInstanceError", "AttributeError", "TypeError"}
        assert view == {
            "subject": "demo", "kind": "engine", "user": "u", "organization": "o", "session": "s", "process": False,
            "imports": ["ctypes"], "after": ["demo", "u"],
        }  # fmt: skip


class TestNesting:
    def test_contexts_of_the_runtime_merge(self, case):
        """Inside, both subjects' paths are open; the chain and the allow chain name both; identity carries over."""
        outer, inner, after = case.run(merge)
        assert [outer[name] for name in ("root", "given", "secret")] == ["ok", "FilesystemDenied", "FilesystemDenied"]
        assert [inner[name] for name in ("root", "given", "secret")] == ["ok", "ok", "FilesystemDenied"]
        assert outer["chain"] == ["module:outer"]
        assert inner["chain"] == ["module:outer", "tool:inner"]
        assert inner["subject"] == ["inner", "tool"]
        assert inner["identity"] == outer["identity"] == ["u1", "o1", "s1"]
        assert after == outer

    def test_every_entry_stays_attributed_to_its_subject(self, case):
        """The allow chain says which subject contributed which entry."""
        outer, inner, _ = case.run(merge)
        assert len(outer["allow chain"]) == 1
        first, second = inner["allow chain"]
        assert "outer" in first and str(case.root) in first and "given" not in first
        assert "inner" in second and str(case.outside / "given") in second and str(case.root) not in second

    def test_an_exact_context_takes_nothing_from_around_it(self, case):
        """A tool's own declaration is all it has; chain and identity still carry on, and leaving restores."""
        inner, after = case.run(exact)
        assert inner == [["FilesystemDenied", "ok", "FilesystemDenied"], ["module:outer", "tool:inner"], "u", 1]
        assert after == [["ok", "FilesystemDenied", "FilesystemDenied"], ["module:outer"], "u", 1]

    def test_guarded_code_can_only_narrow(self, case):
        """A guard opened by the subject adds no path, process, import or identity; it can take paths away."""
        seen = case.run(narrow)
        full = {
            "f": "ok", "sub": "ok", "secret": "FilesystemDenied", "identity": ["u1", "s1"],
            "process": "SubprocessDenied", "import": "ModuleDenied",
        }  # fmt: skip
        less = {**full, "f": "FilesystemDenied"}
        for name, result in seen.items():
            assert result == (less if name.startswith("sub") else full), name

    def test_forms_that_would_leak_are_refused(self, case):
        """Generator frames and exit stacks are refused with a RuntimeError, and the caller stays free."""
        for name, result in case.run(refused).items():
            assert result == ["GuardUsageError", True, "ok"], name

    def test_leaving_from_elsewhere_is_refused(self, case):
        """Only the frame that entered can leave."""
        seen = case.run(misuse)
        for name in ("never entered", "from another frame", "from another thread", "left twice"):
            assert seen[name] != "ok", name
        assert [seen[name] for name in ("still guarded", "guarded after that", "guarded after thread")] == [
            "FilesystemDenied"
        ] * 3
        assert seen["left"] == "ok"

    def test_registered_code_may_bypass_and_nobody_else(self, case):
        """The bypass works for registered runtime code, ends with its block, and is refused to the subject."""
        assert case.run(bypass) == {
            "host": ["ok", None],
            "subject": [True, "FilesystemDenied"],
            "registered": ["ok", None],
            "afterwards": "FilesystemDenied",
            "copy": True,
            "left": "ok",
        }

    def test_settings_are_sealed_by_the_first_guard(self, case):
        """configure_guard works before the first guard and never again."""
        assert case.run(sealing) == ["ok", "GuardSealedError", "GuardSealedError"]


class TestLoops:
    def test_a_task_outlives_the_guard_it_was_started_in(self, case):
        """It stays guarded, so do its children; the code that started it is free again."""
        guarded, free = ["FilesystemDenied", "demo"], ["ok", None]
        assert case.run(outliving) == {"host": free, "task": guarded, "grandchild": guarded, "host at the end": free}

    def test_two_guards_on_one_loop_never_see_each_other(self, case):
        """Interleaved at every step, each task meets its own policy and free code meets none."""
        assert case.run(interleaved) == []
