"""Crossing a guard: plain data, doors to the host, entrances to other subjects."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.guard.harness import Case
from tests.services.golden import sentence


@pytest.fixture
def case(tmp_path):
    """Private world in which a body runs in a separate process."""
    return Case(tmp_path)


def plain_values(world):
    from democrai_sandbox.errors import InvalidInputError
    from democrai_sandbox.guard import plain

    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    class Mapping(dict):
        pass

    loop = []
    loop.append(loop)
    deep = None
    for _ in range(70):
        deep = [deep]
    odd = {
        "/": object(),
        "/text": {"text": Text("x")},
        "/list/1": {"list": [0, Number(1)]},
        "/dict/a": {"dict": {"a": Mapping()}},
        "/nan": {"nan": float("nan")},
        "/long": {"long": 1 << 5000},
        "/surrogate": {"surrogate": "\ud800"},
        "/key": {"key": {1: 2}},
        "/set": {"set": {1}},
        "/type": {"type": int},
    }
    found = {}
    for pointer, value in odd.items():
        try:
            plain(value)
            found[pointer] = "taken"
        except InvalidInputError as error:
            found[pointer] = error.problems[0].pointer or "/"
    for name, value in (("loop", loop), ("deep", deep)):
        try:
            plain(value)
        except InvalidInputError as error:
            found[name] = str(error)
    given = {"a": [1, 2.5, "x", b"y", None, True, (1, 2)]}
    copy = plain(given)
    same = copy == given and copy is not given and copy["a"] is not given["a"] and type(copy["a"][6]) is tuple
    return [found, same, plain((1, (2,)), lists=True)]


def test_only_exact_plain_types_pass_and_what_does_not_is_named_by_its_place(case):
    found, same, listed = case.run(plain_values)
    deep = "nested more than 64 deep"
    assert found == {name: deep if name in {"loop", "deep"} else name for name in found}
    assert same
    assert listed == [1, [2]]


def through_a_door(world):
    from democrai_sandbox.errors import InvalidInputError, SandboxDenied
    from democrai_sandbox.guard import door, is_guarded, process_guard_context
    from democrai_sandbox.guard.interface import RawView

    kept = []

    def service(view, *args):
        who = None if view is None else [*RawView(*view).labels, RawView(*view).user_id]
        kept.append(args)
        return [who, is_guarded(), open(world.secret).read(), len(args)]

    def failing(view):
        secret = "of the host"
        raise InvalidInputError.of(f"no {len(secret)}") from OSError("inner")

    knock, fail = door(service), door(failing)

    class Evil:
        def __len__(self):
            os._exit(9)
            return 0

    def subject():
        found = [knock([1, 2])]
        shared = ["mine"]
        knock(shared)
        shared.append("changed later")
        for odd in (Evil(), {"x": Evil()}, lambda: 1):
            try:
                found.append(knock(odd)[3])
            except InvalidInputError:
                found.append("refused")
        try:
            fail()
        except InvalidInputError as error:
            frames, step = [], error.__traceback__
            while step is not None:
                frames.append(step.tb_frame.f_code.co_name)
                step = step.tb_next
            found.append([str(error), frames, error.__cause__ is None, error.__context__ is None])
        for made in (lambda: door(subject), lambda: type(knock)(), lambda: knock.function, lambda: knock(x=1)):
            try:
                made()
                found.append("had")
            except Exception as error:
                found.append(type(error).__name__)
        return found

    inside = process_guard_context(subject="demo", user_id="uma").run(subject)
    return [inside, knock(1), kept[1][0]]


def test_a_door_leads_to_the_hosts_function_with_copies_and_with_who_is_calling(case):
    inside, outside, kept = case.run(through_a_door)
    assert inside[0] == [["module:demo", "uma"], False, "SECRET", 1]
    assert inside[1:4] == ["refused", "refused", 1]
    assert inside[4] == ["no 11", ["subject"], True, True]
    assert inside[5:] == ["TamperDenied", "TypeError", "AttributeError", "TypeError"]
    assert outside == [None, False, "SECRET", 1]
    assert kept == ["mine"]


def later_work(world):
    from democrai_sandbox.guard import door, is_guarded, process_guard_context

    async def work():
        await asyncio.sleep(0)
        return [is_guarded(), open(world.secret).read()]

    knock = door(lambda view: asyncio.ensure_future(work()))

    async def subject():
        answer = await knock()
        return [answer, is_guarded(), world.can_read()]

    async def main():
        return await process_guard_context(subject="demo").run(subject)

    return asyncio.run(main())


def test_what_a_door_starts_runs_as_the_host_and_its_caller_stays_guarded(case):
    assert case.run(later_work) == [[False, "SECRET"], True, "FilesystemDenied"]


def found_callback(world):
    from democrai_sandbox.guard import door, process_guard_context

    def tell(view):
        asyncio.current_task().add_done_callback(lambda task: task.reveal(world.secret))

    knock = door(tell)

    class Own:
        def reveal(self, path):
            self.found = world.can_read(path)

    async def subject():
        knock()
        if asyncio.current_task()._callbacks is None:
            return "hidden"
        callback, _ = asyncio.current_task()._callbacks[-1]
        own = Own()
        try:
            callback(own)
        finally:
            asyncio.current_task().remove_done_callback(callback)
        return getattr(own, "found", "not called")

    async def main():
        task = asyncio.ensure_future(process_guard_context(subject="demo").run(subject))
        return await task

    return asyncio.run(main())


def test_a_callback_that_the_host_left_behind_a_door_gives_guarded_code_nothing(case):
    """Found in the list of its task and called with a forged object, it stays under the caller's guard."""
    assert case.run(found_callback) != "ok"


def through_an_entrance(world):
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import current_guard, entrance, process_guard_context

    rule = {"resource_type": "filesystem", "operation": "read", "target": world.secret}

    def read(path=None):
        return [open(path or world.secret).read(), [str(one) for one in current_guard().subject_chain]]

    async def read_later(path=None):
        await asyncio.sleep(0)
        return read(path)

    exact = entrance(read, exact=True, subject="demo.read", subject_kind="tool", access=[rule])
    wide = entrance(read_later, subject="demo.read", subject_kind="tool", access=[rule])
    nothing = entrance(read, exact=True, subject="demo.none", subject_kind="tool", include_runtime_paths=False)

    def subject():
        found = [world.verdict(read), exact(), world.verdict(exact, world.inside("own.txt"))]
        found += [world.verdict(nothing), world.verdict(entrance, read, subject="x", subject_kind="tool")]
        return [*found, world.verdict(read)]

    async def later():
        first = await wide()
        second = await wide(world.inside("own.txt"))
        return [first, second[0], world.verdict(read)]

    open(world.inside("own.txt"), "w").write("own")
    guard = {"subject": "demo", "allowed_paths": [world.root]}
    return [
        process_guard_context(**guard).run(subject),
        asyncio.run(process_guard_context(**guard).run(later)),
        exact()[1],
    ]


def test_an_entrance_runs_its_function_under_its_own_declarations_and_nothing_else_under_them(case):
    chain = ["module:demo", "tool:demo.read"]
    denied = "FilesystemDenied"
    sync, later, alone = case.run(through_an_entrance)
    assert sync == [denied, ["SECRET", chain], denied, denied, "TamperDenied", denied]
    assert later == [["SECRET", chain], "own", denied]
    assert alone == ["tool:demo.read"]


def own_places(world):
    from democrai_sandbox.guard import configure_guard
    from democrai_sandbox.guard.contexts import make_guard

    configure_guard(protected_paths=[world.root])
    for name in ("a", "b"):
        os.makedirs(world.inside(name))
        open(world.inside(name, "file"), "w").write(name)
    guard = make_guard(subject="a", own_read=(world.inside("b"),), own_write=(world.inside("a"),))
    wide = make_guard(subject="a", allowed_paths=(world.base,))

    def tries():
        def change(name):
            open(world.inside(name, "file"), "w").close()

        return [
            world.can_read(world.inside("a", "file")),
            world.verdict(change, "a"),
            world.can_read(world.inside("b", "file")),
            world.verdict(change, "b"),
        ]

    return [guard.run(tries), wide.run(tries)]


def test_what_the_runtime_gives_to_a_subject_is_open_below_what_is_protected_from_all(case):
    denied = "FilesystemDenied"
    assert case.run(own_places) == [["ok", "ok", "ok", denied], [denied] * 4]


def narrowed(world):
    from democrai_sandbox.guard import door, process_guard_context
    from democrai_sandbox.guard.interface import RawView

    knock = door(lambda view: RawView(*view).narrowed)

    def subject():
        inner = process_guard_context(subject="demo", allowed_paths=[])
        return [knock(), inner.run(knock), knock()]

    return process_guard_context(subject="demo", allowed_paths=[world.root]).run(subject)


def test_a_door_is_told_when_its_caller_has_narrowed_itself(case):
    assert case.run(narrowed) == [False, True, False]


def abandoned(world):
    from democrai_sandbox.guard import is_guarded, process_guard_context

    async def stubborn():
        while True:
            try:
                await asyncio.sleep(0.01)
            except BaseException:
                pass

    async def main():
        steps = process_guard_context(subject="demo").run(stubborn)
        task = asyncio.ensure_future(steps)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        still = not task.done()
        steps.abandon()
        task.cancel()
        (came,) = await asyncio.gather(task, return_exceptions=True)
        return [still, type(came).__name__, is_guarded()]

    async def inside():
        async def own():
            pass

        steps = process_guard_context(subject="demo").run(own)
        try:
            return [world.verdict(steps.abandon), world.verdict(steps.isolated)]
        finally:
            steps.close()

    return [asyncio.run(main()), asyncio.run(process_guard_context(subject="demo").run(inside))]


def test_the_host_can_end_a_coroutine_that_ignores_its_cancellation(case):
    host, guarded = case.run(abandoned)
    assert host == [True, "CancelledError", False]
    assert guarded == ["TamperDenied", "TamperDenied"]


def waiting_tasks(world):
    from democrai_sandbox.guard import entrance, live_states, process_guard_context

    async def slow():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def fails():
        task = asyncio.ensure_future(asyncio.sleep(0, 7))
        value = await task
        raise LookupError(value)

    async def several():
        return await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.sleep(0, 2))

    ended = []
    tools = {
        function.__name__: entrance(function, subject=f"demo.{function.__name__}", subject_kind="tool")
        for function in (slow, fails, several)
    }

    async def subject():
        found = []
        for wait in ("wait_for", "timeout", "cancel"):
            started = asyncio.get_running_loop().time()
            try:
                if wait == "wait_for":
                    await asyncio.wait_for(tools["slow"](), 0.1)
                elif wait == "timeout":
                    async with asyncio.timeout(0.1):
                        await tools["slow"]()
                else:
                    task = asyncio.ensure_future(tools["slow"]())
                    await asyncio.sleep(0.05)
                    task.cancel()
                    await task
            except (TimeoutError, asyncio.CancelledError) as error:
                found.append([wait, type(error).__name__, asyncio.get_running_loop().time() - started < 5])
        try:
            await tools["fails"]()
        except LookupError as error:
            found.append(error.args[0])
        found.append(await tools["several"]())
        queue = asyncio.Queue()
        asyncio.get_running_loop().call_later(0.01, queue.put_nowait, "item")
        found.append(await queue.get())
        found.append(await asyncio.to_thread(int, "5"))
        return found

    async def main():
        return await process_guard_context(subject="demo").run(subject).isolated()

    return [asyncio.run(main()), ended, live_states() <= 1]


def test_ordinary_waiting_works_across_guards(case):
    """Timeouts, cancellation, errors and results reach the awaiting code, and no other."""
    found, ended, left = case.run(waiting_tasks)
    assert found[:3] == [
        ["wait_for", "TimeoutError", True],
        ["timeout", "TimeoutError", True],
        ["cancel", "CancelledError", True],
    ]
    assert found[3:] == [7, [1, 2], "item", 5]
    assert ended == ["cancelled"] * 3
    assert left


def what_leaves(world):
    from democrai_sandbox.guard import entrance, process_guard_context

    class Odd:
        _asyncio_future_blocking = True

        def __await__(self):
            return (yield self)

        def get_loop(self):
            found.append("asked outside")
            return asyncio.get_running_loop()

    found = []

    async def tool():
        return await asyncio.sleep(0.05, "value")

    async def odd():
        try:
            return await Odd()
        except TypeError as error:
            return str(error)

    async def subject():
        def step():
            yield

        inner = enter()
        coroutine = wrap(inner)
        waits = coroutine.send(None)
        names = [name for name in ("set_result", "set_exception") if hasattr(waits, name)]
        said = []
        for throw in (lambda: coroutine.throw(LookupError("mine")), lambda: inner.send("mine")):
            said.append(world.verdict(throw))
        coroutine.close()
        return [type(waits).__name__, names, said]

    async def wrap(awaitable):
        return await awaitable

    enter = entrance(tool, subject="demo.tool", subject_kind="tool")

    async def main():
        guard = lambda: process_guard_context(subject="demo")
        return [await guard().run(odd).isolated(), await guard().run(subject).isolated(), found]

    return asyncio.run(main())


def test_what_a_coroutine_waits_for_is_in_nobodys_hands_outside_its_guard(case):
    odd, (kind, settling, said), asked = case.run(what_leaves)
    sentence("an odd awaitable", odd)
    assert (kind, settling) == ("Wake", [])
    assert said == ["TamperDenied", "TamperDenied"]
    assert asked == []
