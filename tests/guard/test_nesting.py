"""Nested guards: merging, narrowing, refused forms, and the bypass."""

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


def enter_inner(world, probe):
    """Enter a tool's guard as runtime code."""
    with guard_of(world, "inner", subject_kind="tool", allowed_paths=[world.out("given")], allowed_imports=["ctypes"]):
        return probe()


def merge(world):
    """Nest guards as the runtime: entries add up, the chain grows, leaving restores."""
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
    """Enter a tool with its own access list as runtime code."""
    from democrai_sandbox.guard import exact_guard_context

    access = [{"resource_type": "filesystem", "operation": "read", "target": world.out("given")}]
    with exact_guard_context(subject="inner", subject_kind="tool", access=access):
        return probe()


def exact(world):
    """A tool with its own access list has none of the module's rights."""
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
    """A guard that guarded code opens removes rights and never adds any."""
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
    """Forms that could leak a guard to another frame are refused at entry, and nothing remains."""
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


def runtime_bypass(world):
    from democrai_sandbox import process_guard_bypass_context

    with process_guard_bypass_context():
        return [world.can_read(), subject_now()]


def bypass(world):
    """Only registered code may bypass a guard, and only within the block."""
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


class TestNesting:
    def test_contexts_of_the_runtime_merge(self, case):
        """Inside, both subjects' paths are open; the chain and the allow chain contain both; the identity stays."""
        outer, inner, after = case.run(merge)
        assert [outer[name] for name in ("root", "given", "secret")] == ["ok", "FilesystemDenied", "FilesystemDenied"]
        assert [inner[name] for name in ("root", "given", "secret")] == ["ok", "ok", "FilesystemDenied"]
        assert outer["chain"] == ["module:outer"]
        assert inner["chain"] == ["module:outer", "tool:inner"]
        assert inner["subject"] == ["inner", "tool"]
        assert inner["identity"] == outer["identity"] == ["u1", "o1", "s1"]
        assert after == outer

    def test_every_entry_stays_attributed_to_its_subject(self, case):
        """The allow chain names the subject of each entry."""
        outer, inner, _ = case.run(merge)
        assert len(outer["allow chain"]) == 1
        first, second = inner["allow chain"]
        assert "outer" in first and str(case.root) in first and "given" not in first
        assert "inner" in second and str(case.outside / "given") in second and str(case.root) not in second

    def test_an_exact_context_takes_nothing_from_around_it(self, case):
        """A tool has exactly its declaration; chain and identity continue, and leaving restores."""
        inner, after = case.run(exact)
        assert inner == [["FilesystemDenied", "ok", "FilesystemDenied"], ["module:outer", "tool:inner"], "u", 1]
        assert after == [["ok", "FilesystemDenied", "FilesystemDenied"], ["module:outer"], "u", 1]

    def test_guarded_code_can_only_narrow(self, case):
        """A guard opened by the subject adds no path, process, import or identity; it can remove paths."""
        seen = case.run(narrow)
        full = {
            "f": "ok", "sub": "ok", "secret": "FilesystemDenied", "identity": ["u1", "s1"],
            "process": "SubprocessDenied", "import": "ModuleDenied",
        }  # fmt: skip
        less = {**full, "f": "FilesystemDenied"}
        for name, result in seen.items():
            assert result == (less if name.startswith("sub") else full), name

    def test_forms_that_would_leak_are_refused(self, case):
        """Generator frames and exit stacks are refused with a RuntimeError, and the caller stays unguarded."""
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
        """configure_guard works only before the first guard."""
        assert case.run(sealing) == ["ok", "GuardSealedError", "GuardSealedError"]
