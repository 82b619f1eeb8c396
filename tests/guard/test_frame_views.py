"""Frames: guarded code sees its own variables, and not those of the runtime that called it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.guard.harness import Case


@pytest.fixture
def case(tmp_path):
    """Private world in which a body runs in a separate process."""
    return Case(tmp_path)


def walking(world):
    from democrai_sandbox.guard import current_guard, own_code, process_guard_context
    from democrai_sandbox.runtime.calls.outcome import capture, capture_async

    source = """
import asyncio, sys, traceback

def sync(world):
    mine = 1
    frame, found = sys._getframe(), {}
    while frame is not None:
        try:
            found[frame.f_code.co_name] = sorted(frame.f_locals)[:1]
        except PermissionError as denial:
            found[frame.f_code.co_name] = str(denial)
        frame = frame.f_back
    return found

async def later(world):
    frame = asyncio.current_task().get_coro().cr_frame
    try:
        return sorted(frame.f_locals)
    except PermissionError as denial:
        return str(denial)

def ordinary(world):
    def inner():
        value = 3
        return locals(), sys._getframe().f_locals["value"], sys._getframe(1).f_code.co_name
    return [inner()[1], inner()[2], len(traceback.format_stack()) > 2]

def clears(world):
    frame = asyncio.current_task().get_coro().cr_frame
    try:
        frame.clear()
    except PermissionError as denial:
        return str(denial)
    except RuntimeError:
        return "running"
"""
    names = {}

    def define():
        code = compile(source, "/srv/modules/demo/module.py", "exec")
        own_code(code)
        exec(code, names)

    guard = lambda: process_guard_context(subject="demo")
    guard().run(define)

    async def host(secret):
        return await guard().run(capture_async, names["later"], world)

    async def clearing(secret):
        async def run():
            return names["clears"](world)

        return await guard().run(run)

    secret = "of the host"
    sync = guard().run(capture, names["sync"], world)[1]
    return [
        sync,
        asyncio.run(host(secret))[1],
        guard().run(names["ordinary"], world),
        sys._getframe().f_locals["secret"],
        asyncio.run(clearing(secret)),
    ]


def test_the_variables_of_the_runtime_and_of_the_host_are_not_for_guarded_code(case):
    found, coroutine, ordinary, own, cleared = case.run(walking)
    denied = "sandbox_guard_denied:f_locals"
    assert found == {
        "sync": ["found"],
        "capture": denied,
        "walking": denied,
        "main": denied,
        "<module>": denied,
    }
    assert coroutine == denied
    assert ordinary == [3, "ordinary", True]
    assert own == "of the host"
    assert cleared == "sandbox_guard_denied:frame.clear"


def libraries(world):
    import contextlib
    import functools

    from democrai_sandbox.guard import own_code, process_guard_context

    source = """
import functools, sys, traceback

def seen(depth=1):
    frame, found = sys._getframe(depth), []
    while frame is not None:
        if "/functools.py" in frame.f_code.co_filename or "/contextlib.py" in frame.f_code.co_filename:
            try:
                found.append(sorted(frame.f_locals)[:1])
            except PermissionError as denial:
                found.append(str(denial))
        frame = frame.f_back
    return found

class Ours:
    @functools.singledispatchmethod
    def dispatched(self, value):
        return seen()

def below(_):
    return seen()

def above(_):
    return Ours().dispatched(1)

async def waiting(coroutine):
    try:
        return sorted(coroutine.cr_frame.f_locals)
    except PermissionError as denial:
        return str(denial)

def printed(_):
    try:
        raise ValueError("x")
    except ValueError as error:
        return len(list(traceback.TracebackException.from_exception(error, capture_locals=True).format())) > 0
"""
    names = {}

    def define():
        code = compile(source, "/srv/modules/demo/module.py", "exec")
        own_code(code)
        exec(code, names)

    guard = lambda: process_guard_context(subject="demo")
    guard().run(define)

    class Host:
        """Host that calls the subject through a library, as a web framework does."""

        @functools.singledispatchmethod
        def serves(self, name):
            return guard().run(names[name], None)

    async def pending():
        return await guard().run(names["waiting"], waits)

    stack = contextlib.AsyncExitStack()
    waits = stack.__aexit__(None, None, None)
    found = [Host().serves(name) for name in ("below", "above", "printed")] + [asyncio.run(pending())]
    waits.close()
    return found


def test_frames_of_libraries_are_shown_where_they_work_for_the_subject(case):
    """A library frame that the host called, or that waits in a coroutine of others, belongs to the host."""
    below, above, printed, waiting = case.run(libraries)
    denied = "sandbox_guard_denied:f_locals"
    assert below == [denied]
    assert above[0] != denied
    assert above[1:] == [denied]
    assert printed is True
    assert waiting == denied


def own_names(world):
    from democrai_sandbox import policy
    from democrai_sandbox.guard import boundary, process_guard_context

    def subject():
        found = {}
        vars(boundary)["ask_external_access"] = None
        boundary.ask_external_access.__globals__["_LOCKED"] = None
        policy.__dict__["Subject"] = None
        found["dictionaries"] = [boundary.ask_external_access is not None, boundary._LOCKED is not None]
        found["class"] = policy.Subject is not None

        def own():
            return found

        found["own"] = [own.__globals__ is globals(), own.__closure__ is not None]
        function = boundary.ask_external_access
        for name, value in (("__defaults__", ()), ("__kwdefaults__", {"register_request": False})):
            found[name] = world.verdict(setattr, function, name, value)
        found["code"] = world.verdict(setattr, function, "__code__", own.__code__)
        found["reload"] = world.verdict(__import__("importlib").reload, boundary)
        return found

    def imports():
        """Import one of our modules that is not loaded yet."""
        import democrai_sandbox.runtime.sdk_services as promises

        return callable(promises.SdkFutures)

    before = boundary.ask_external_access.__kwdefaults__["register_request"]
    return [
        process_guard_context(subject="demo").run(subject),
        process_guard_context(subject="demo").run(imports),
        before,
    ]


def test_our_modules_and_functions_are_read_and_not_written(case):
    """For guarded code the dictionary of a module, found through the module or its functions, is a copy."""
    found, imported, default = case.run(own_names)
    assert found.pop("reload") in {"ok", "TamperDenied"}
    assert found == {
        "dictionaries": [True, True],
        "class": True,
        "own": [True, True],
        "__defaults__": "TamperDenied",
        "__kwdefaults__": "TamperDenied",
        "code": "TamperDenied",
    }
    assert imported
    assert default is True


def bound_to(world):
    from democrai_sandbox.guard import process_guard_context
    from democrai_sandbox.runtime.calls.outcome import ExtensionOutput

    output = ExtensionOutput()
    method = output.add

    class Own:
        def method(self):
            return 1

    def subject():
        own = Own()
        return [method.__self__ is None, own.method.__self__ is own, ExtensionOutput.add.__closure__]

    return [process_guard_context(subject="demo").run(subject), method.__self__ is output]


def test_a_method_of_ours_does_not_lead_to_its_object(case):
    assert case.run(bound_to) == [[True, True, None], True]
