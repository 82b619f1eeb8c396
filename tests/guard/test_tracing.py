"""Tracing: a subject traces and profiles its own code, and nothing of the host."""

from __future__ import annotations

import asyncio
import json
import sys
import threading

import pytest

from tests.guard.harness import Case

SUBJECT = """
import json, sys

def square(x):
    result = x * x
    return result

def work(call):
    square(3)
    json.dumps([1])
    return call()

def traced(call, names):
    def tracer(frame, event, argument):
        names.append(frame.f_code.co_name)
        return tracer
    sys.settrace(tracer)
    installed = sys.gettrace() is tracer
    work(call)
    return installed

def profiled(call, names):
    sys.setprofile(lambda frame, event, argument: names.append(frame.f_code.co_name))
    work(call)

async def stepping(names, pause):
    def tracer(frame, event, argument):
        names.append(frame.f_code.co_name)
    sys.settrace(tracer)
    square(1)
    await pause()
    before = len(names)
    square(2)
    return len(names) > before

def everywhere():
    frame, refused = sys._getframe(), []
    while frame is not None:
        try:
            frame.f_trace = print
        except PermissionError as denial:
            refused.append(frame.f_code.co_name)
        frame = frame.f_back
    return refused

def jump():
    frame = sys._getframe()
    while frame.f_code.co_name != "jumping":
        frame = frame.f_back
    frame.f_lineno = 1
"""


def define(world):
    """Return the functions of a subject, loaded as its code."""
    from democrai_sandbox.guard import own_code, process_guard_context

    names = {}

    def run():
        code = compile(SUBJECT, "/srv/modules/demo/module.py", "exec")
        own_code(code)
        exec(code, names)

    process_guard_context(subject="demo").run(run)
    return names


def guard(world):
    from democrai_sandbox.guard import process_guard_context

    return process_guard_context(subject="demo", allowed_paths=[world.root])


def seeing(world):
    subject, traced, profiled = define(world), [], []

    def of_the_host():
        return json.loads("[1]")

    installed = guard(world).run(subject["traced"], of_the_host, traced)
    after = sys.gettrace() is None
    guard(world).run(subject["profiled"], of_the_host, profiled)
    return [installed, after, sys.getprofile() is None, sorted(set(traced)), sorted(set(profiled))]


def test_a_subject_sees_its_own_frames_and_those_of_libraries_that_work_for_it(case):
    installed, after, unprofiled, traced, profiled = case.run(seeing)
    assert installed
    assert after
    assert unprofiled
    library = {"dumps", "encode", "iterencode"}
    assert {"work", "square"} | library == set(traced)
    assert {"work", "square", "traced"} - {"traced"} | library <= set(profiled)
    assert not {"of_the_host", "loads", "decode"} & (set(traced) | set(profiled))


def replacing(world):
    subject, seen = define(world), []

    def host(frame, event, argument):
        return None

    def hidden():
        return sys.gettrace() is None and sys.getprofile() is None

    sys.settrace(host)
    sys.setprofile(host)
    concealed = guard(world).run(hidden)
    guard(world).run(subject["traced"], lambda: None, seen)
    guard(world).run(subject["profiled"], lambda: None, seen)
    kept = [sys.gettrace() is host, sys.getprofile() is host]
    sys.settrace(None)
    sys.setprofile(None)
    return [concealed, *kept]


def test_the_functions_of_the_host_are_hidden_and_put_back_when_the_guard_is_left(case):
    assert case.run(replacing) == [True, True, True]


def between_steps(world):
    subject, names, host = define(world), [], []

    async def main():
        async def pause():
            await asyncio.sleep(0)

        async def watch():
            host.append(sys.gettrace() is None)

        watching = asyncio.get_running_loop().create_task(watch())
        result = await guard(world).run(subject["stepping"], names, pause)
        await watching
        return result

    return [asyncio.run(main()), host, sys.gettrace() is None]


def test_a_trace_function_is_off_between_the_steps_of_a_coroutine(case):
    assert case.run(between_steps) == [True, [True], True]


def failing(world):
    def host(frame, event, argument):
        return None

    def bad(frame, event, argument):
        raise ValueError("bad")

    def run():
        sys.settrace(bad)
        try:
            json.dumps([1])
        except ValueError:
            return sys.gettrace() is None

    sys.settrace(host)
    removed = guard(world).run(run)
    kept = sys.gettrace() is host
    sys.settrace(None)
    return [removed, kept]


def test_a_trace_function_that_raises_is_removed_and_the_hosts_comes_back(case):
    assert case.run(failing) == [True, True]


def in_frames(world):
    subject = define(world)

    def jumping():
        try:
            guard(world).run(subject["jump"])
        except PermissionError as denial:
            return denial.code
        return None

    refused = guard(world).run(subject["everywhere"])
    return [refused[0], "everywhere" in refused, jumping(), sys._getframe().f_trace is None]


def test_frames_of_the_host_get_no_trace_function_and_no_other_line(case):
    first, own, jumped, untouched = case.run(in_frames)
    assert first == "in_frames"
    assert not own
    assert jumped == "sandbox_guard_denied"
    assert untouched


def threads(world):
    seen = []

    def run():
        def tracer(frame, event, argument):
            seen.append(threading.current_thread().name)

        def other():
            json.dumps([1])
            sys.settrace(tracer)
            json.dumps([1])

        thread = threading.Thread(target=other, name="own")
        thread.start()
        thread.join()

    guard(world).run(run)
    host = []
    thread = threading.Thread(target=lambda: host.append(sys.gettrace()))
    thread.start()
    thread.join()
    return [sorted(set(seen)), host]


def test_a_trace_function_is_called_in_the_thread_that_set_it(case):
    assert case.run(threads) == [["own"], [None]]


def reinstalling(world):
    class Again:
        def __call__(self, *arguments):
            return None

        def __del__(self):
            sys.settrace(print)

    def run():
        sys.settrace(Again())
        sys.settrace(lambda *_: None)
        sys.settrace(None)

    guard(world).run(run)
    return sys.gettrace() is None


def test_a_finaliser_that_installs_another_function_leaves_nothing_behind(case):
    assert case.run(reinstalling)


def tools(world):
    import cProfile
    import doctest
    import io
    import pdb  # noqa: T100 - it is tried
    import pstats
    import trace

    def square(x):
        """Square.

        >>> square(3)
        9
        """
        result = x * x
        return result

    profile, report = cProfile.Profile(), io.StringIO()
    profile.runcall(lambda: [square(i) for i in range(10)])
    pstats.Stats(profile, stream=report).print_stats("square")
    calls = [line.split()[0] for line in report.getvalue().splitlines() if line.endswith("(square)")]
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(square, "square", module=False, globs={"square": square}):
        runner.run(test)
    counter = trace.Trace(count=1, trace=0)
    counted = counter.runfunc(square, 4)
    screen = io.StringIO()
    debugged = pdb.Pdb(stdin=io.StringIO("n\np x + 1\nc\n"), stdout=screen, readrc=False).runcall(square, 6)
    sys.settrace(None)
    return [calls, [runner.failures, runner.tries], counted, debugged, "(Pdb) 7" in screen.getvalue()]


def test_profilers_debuggers_and_doctests_work_under_a_guard(case):
    assert case.guarded(tools) == [["10"], [0, 1], 16, 36, True]


def monitoring(world):
    subject, tool, names = define(world), sys.monitoring, []

    def watch():
        tool.use_tool_id(4, "subject")
        tool.register_callback(4, tool.events.PY_START, lambda code, offset: names.append(code.co_name))
        tool.set_events(4, tool.events.PY_START)
        subject["work"](lambda: None)
        return [tool.get_events(4) == tool.events.PY_START, tool.get_tool(4)]

    def refused(function, *arguments):
        try:
            guard(world).run(function, *arguments)
        except PermissionError as denial:
            return denial.code

    own = guard(world).run(watch)
    after = [tool.get_tool(4), len(names)]
    subject["square"](1)
    tool.use_tool_id(3, "host")
    calls = [
        (tool.set_events, 3, 0),
        (tool.get_events, 3),
        (tool.register_callback, 3, 1, print),
        (tool.set_local_events, 3, monitoring.__code__, 0),
        (tool.free_tool_id, 3),
        (tool.restart_events,),
    ]
    denials = {refused(*call) for call in calls}
    return [own, after[0], len(names) == after[1], {"work", "square"} <= set(names), sorted(denials), tool.get_tool(3)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
def test_a_subject_monitors_its_own_code_with_tools_of_its_own(case):
    assert case.run(monitoring) == [[True, "subject"], None, True, True, ["sandbox_guard_denied"], "host"]


def several_steps(world):
    tool, names, host = sys.monitoring, [], []

    async def main():
        async def steps():
            tool.use_tool_id(4, "subject")
            tool.register_callback(4, tool.events.PY_START, lambda code, offset: names.append(code.co_name))
            tool.set_events(4, tool.events.PY_START)
            await asyncio.sleep(0)
            before = len(names)
            json.dumps([1])
            return len(names) > before

        async def watch():
            host.append(tool.get_tool(4))

        watching = asyncio.get_running_loop().create_task(watch())
        result = await guard(world).run(steps)
        await watching
        return result

    return [asyncio.run(main()), host, tool.get_tool(4)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
def test_tools_are_free_between_the_steps_of_a_coroutine(case):
    assert case.run(several_steps) == [True, [None], None]


@pytest.fixture
def case(tmp_path):
    """Private world in which a body runs in a separate process."""
    return Case(tmp_path)
