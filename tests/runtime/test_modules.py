"""Modules: render, actions and commands under the module's guard, even if the module misbehaves."""

from __future__ import annotations

import asyncio
import gc
import os

from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(__file__), "separate_host.py")

SURFACES = """
import asyncio, os
from . import helper

@sdk.render
async def render(page=1):
    return {"page": page, "words": helper.WORDS}

@sdk.action("sync")
def in_a_thread():
    return list(sdk.request())

@sdk.action("async")
async def on_the_loop():
    await asyncio.sleep(0)
    return list(sdk.request())

@sdk.command("rebuild")
def rebuild(depth):
    return depth + 1
"""


def surfaces(world):
    stage = world.load(STAGE)["Stage"](world.base)
    folder = stage.module("demo", SURFACES)
    (folder / "helper.py").write_text("WORDS = ('a', 'b')")

    async def story(stage):
        modules, uma = stage.runtime.modules, stage.uma(organization_id="9", role="editor", access_level="staff")
        return [
            await modules.render("demo", {"page": 3}, uma),
            await modules.action("demo", "sync", {}, uma),
            await modules.action("demo", "async", {}, uma),
            await modules.command("demo", "rebuild", {"depth": 1}, uma),
        ]

    return stage.play(story)


def test_render_actions_and_commands_run_sync_and_async_with_the_identity_of_the_request(case):
    """Functions and coroutines see the user, organization, session, role and level."""
    identity = ["uma", "9", "monday", "editor", "staff", ""]
    assert case.run(surfaces) == [{"page": 3, "words": ["a", "b"]}, identity, identity, 2]


REACHING = """
import os
from pathlib import Path

@sdk.action("read")
def read(path): return Path(path).read_text()

@sdk.action("write")
def write(path): return Path(path).write_text("changed")

@sdk.action("own")
def own():
    (sdk.data_dir() / "note").write_text("kept")
    return [str(sdk.data_dir()), (sdk.data_dir() / "note").read_text(), sorted(os.listdir(sdk.extension_dir()))]
"""


def reaching(world):
    stage = world.load(STAGE)["Stage"](world.base)
    outside = stage.base / "outside"
    outside.mkdir()
    (outside / "declared.txt").write_text("declared")
    (outside / "other.txt").write_text("other")
    stage.module("demo", REACHING, ("filesystem", "read", outside / "declared.txt"))
    stage.module("other", REACHING)
    found = {}

    async def story(stage):
        found["own"] = await stage.action("demo", "own")
        await stage.action("other", "own")
        places = {
            "declared": outside / "declared.txt",
            "undeclared": outside / "other.txt",
            "own code": stage.modules / "demo" / "manifest.json",
            "other code": stage.modules / "other" / "module.py",
            "other data": stage.data / "modules" / "other" / "note",
            "database": stage.base / "state" / "access.db",
        }
        for name, path in places.items():
            for act in ("read", "write"):
                came = await stage.action("demo", act, path=str(path))
                found[f"{act} {name}"] = came[0] if isinstance(came, list) else "ok"
        return found

    return stage.play(story)


def test_a_module_has_its_own_data_its_own_code_to_read_and_what_it_declares(case):
    """All other reads and writes are denied."""
    found = case.run(reaching)
    data, note, code = found.pop("own")
    assert (os.path.relpath(data, case.base), note) == ("stage/data/modules/demo", "kept")
    assert code == ["manifest.json", "module.py"]
    allowed = {act for act, came in found.items() if came == "ok"}
    # Its manifest is not writable: the next start would read it.
    assert allowed == {"read declared", "read own code"}
    assert set(found.values()) == {"ok", "FilesystemDenied"}


MISCHIEF = """
import asyncio, contextvars, sys, time
VARIABLE = None

@sdk.action("slow")
async def slow():
    await asyncio.sleep(60)

@sdk.action("stubborn")
async def stubborn():
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass

@sdk.action("stubborn to the end")
async def stubborn_to_the_end():
    while True:
        try:
            await asyncio.sleep(0.05)
        except BaseException:
            pass

@sdk.action("hangs")
def hangs():
    time.sleep(60)

@sdk.action("object")
async def give_object(): return {"a": [1, object()]}

@sdk.action("raises")
async def raises(): raise KeyError("what")

@sdk.action("unprintable")
async def unprintable():
    class Odd(Exception):
        def __str__(self): raise SystemExit(1)
    raise Odd()

@sdk.action("exits")
def exits(): sys.exit(4)

@sdk.action("floods")
def floods():
    for _ in range(2000): print("x" * 1000)

@sdk.action("prints")
async def prints(): print("spoken"); print("oh", file=sys.stderr)

@sdk.action("sets")
async def sets(): next(v for v in contextvars.copy_context() if v.name == "host").set("the module's")

@sdk.action("fine")
async def fine(): return 1
"""


def mischief(world):
    from contextvars import ContextVar

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", MISCHIEF)
    stage.module("raises", "raise RuntimeError('import')")
    stage.module("endless", "import time\ntime.sleep(600)")
    stage.module("exits", "raise SystemExit(0)")
    stage.module("yields", "@sdk.action('x')\ndef x():\n    yield 1")
    stage.module("twice", "@sdk.action('x')\ndef x(): pass\n@sdk.action('x')\ndef y(): pass")
    stage.module("loose", "sdk.action('x')(print)")
    host = ContextVar("host", default="")

    async def story(stage):
        host.set("the host's")
        came = {}
        for name in ("slow", "stubborn", "stubborn to the end", "hangs"):
            late = stage.runtime.modules.call("demo", "action", name, {}, stage.uma(), seconds=0.5)
            came[name] = await stage.told(late)
        for name in ("object", "raises", "unprintable", "exits", "floods", "prints", "sets", "fine", "fien"):
            came[name] = await stage.action("demo", name)
        came["params"] = await stage.told(stage.runtime.modules.action("demo", "fine", {"x": object()}, stage.uma()))
        came["extra"] = await stage.action("demo", "fine", more=1)
        stubborn = stage.runtime.modules.call("demo", "action", "stubborn", {}, stage.uma(), seconds=1.0)
        task = asyncio.ensure_future(stage.told(stubborn))
        await asyncio.sleep(0.1)
        task.cancel()
        came["cancelled"] = type((await asyncio.gather(task, return_exceptions=True))[0]).__name__
        printed = stage.runtime.output.of("module:demo")
        broken = {name: str(one.problems[0]) for name, one in stage.runtime.modules.extensions.items() if one.problems}
        return [came, host.get(), [len(printed.text), printed.dropped, printed.text[-10:]], broken]

    return stage.play(story, call_timeout=60.0, load_timeout=2.0)


def test_mischief_of_a_module_is_told_as_what_it_is_and_the_rest_goes_on(case):
    """Hanging, raising, exiting, flooding and invalid values end that call or that module, and nothing else."""
    came, variable, printed, broken = case.run(mischief)
    for name in ("slow", "stubborn", "stubborn to the end", "hangs"):
        kind, text = came.pop(name)
        assert kind == "CallTimeout"
        assert name in text and "0.5 s" in text
    sentence("unknown action", came["fien"][1])
    kinds = {
        "object": ("ResultInvalid", "the result cannot be passed on: /a/1: ", "object"),
        "params": ("InvalidInputError", "/x: ", "object"),
        "raises": ("ExtensionFailed", "KeyError: ", "'what'"),
        "unprintable": ("ExtensionFailed", "Odd: ", ""),
        "exits": ("ExtensionFailed", "SystemExit: ", "4"),
        "fien": ("ExtensionUnknown", "", "'fine'?"),
        "extra": ("ExtensionFailed", "TypeError: ", "'more'"),
    }
    for name, (kind, beginning, ending) in kinds.items():
        found, text = came.pop(name)
        assert (name, found) == (name, kind)
        assert text.startswith(beginning) and text.endswith(ending), text
    silent = dict.fromkeys(("floods", "prints", "sets"))
    assert came == {**silent, "fine": 1, "cancelled": "CancelledError"}
    assert variable == "the host's"
    kept, dropped, last = printed
    assert kept <= 64 * 1024
    assert dropped > 1_900_000
    assert last == "spoken\noh\n"
    for name in ("yields", "twice", "loose", "endless"):
        sentence(f"broken module: {name}", broken.pop(name))
    assert {name: text.partition("\n")[0] for name, text in broken.items()} == {
        "raises": "extension_failed: RuntimeError: import",
        "exits": "extension_failed: SystemExit: 0",
    }


BRIEF = """
import asyncio

@sdk.action("nap")
async def nap(seconds):
    await asyncio.sleep(seconds)

@sdk.action("plain")
def plain(): return 1
"""


def guards_left(world):
    from democrai_sandbox.guard import is_guarded, live_states

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", BRIEF)

    async def story(stage):
        for _ in range(10):
            await stage.action("demo", "nap", seconds=0)
            await stage.action("demo", "plain")
            late = asyncio.ensure_future(stage.action("demo", "nap", seconds=0.2))
            await asyncio.sleep(0.001)
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
            await stage.told(
                stage.runtime.modules.call("demo", "action", "nap", {"seconds": 0.2}, stage.uma(), seconds=0.01)
            )
        for _ in range(1000):  # canceled work ends a moment later
            gc.collect()
            left = [is_guarded(), live_states(), len(asyncio.all_tasks())]
            if left[1] <= 1 and left[2] < 10:
                break
            await asyncio.sleep(0.05)
        return left

    return stage.play(story)


def test_calls_that_end_time_out_or_are_cancelled_leave_no_guard_behind(case):
    """No guards and no tasks remain."""
    guarded, states, tasks = case.run(guards_left)
    assert not guarded
    assert states <= 1  # the thread that ran the last one may still hold it
    assert tasks < 10


LATER = """
@sdk.action("declares")
def declares():
    sdk.action("new")(lambda: 1)

@sdk.action("imports")
def imports(name):
    __import__(name)
"""


def later(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", LATER)
    stage.module("other", LATER)

    async def story(stage):
        return [
            await stage.action("demo", "declares"),
            await stage.action("demo", "imports", name="democrai_extensions.module.x_other.module"),
            await stage.action("demo", "imports", name="ctypes"),
        ]

    return stage.play(story)


def test_nothing_is_declared_after_the_import_and_no_code_of_others_is_imported(case):
    """Late declarations and foreign or sensitive imports are refused."""
    declares, imports, sensitive = case.run(later)
    assert declares[0] == "InvalidInputError"
    assert declares[1].startswith("/action: ")
    assert imports[0] == "ModuleDenied"
    assert sensitive == ["ModuleDenied", "sandbox_module_denied:ctypes"]


def sessions(world):
    from democrai_sandbox.runtime.access_environment import serving

    code = (
        "@sdk.action('read')\n"
        "def read(path): return open(path).read()\n"
        "@sdk.action('ask')\n"
        "def ask(path):\n"
        "    return list(map(str, sdk.access.check_external_access(resource_type='filesystem', operation='read', "
        "target=path)[:2]))"
    )
    stage = world.load(STAGE)["Stage"](world.base)
    secret = stage.base / "secret.txt"
    secret.write_text("secret")
    stage.module("demo", code)

    async def story(stage):
        found = [(await stage.action("demo", "read", path=str(secret)))[0]]
        found.append(await stage.action("demo", "ask", path=str(secret)))
        with serving(stage.ada()):
            (request,) = stage.access.administration.pending_requests().items
            stage.access.administration.approve_for_session(request.id)
        found.append(await stage.action("demo", "read", path=str(secret)))
        found.append((await stage.action("demo", "read", stage.uma(session_key="tuesday"), path=str(secret)))[0])
        return [*found, request.origin.user_id, str(request.access.subject)]

    return stage.play(story)


def test_an_approval_for_the_session_lets_the_module_go_on_in_that_session_only(case):
    """Another session of the same user stays denied."""
    assert case.run(sessions) == [
        "FilesystemDenied",
        ["False", "pending"],
        "secret",
        "FilesystemDenied",
        "uma",
        "module:demo",
    ]


MANAGER = """
@sdk.action("approve")
def approve():
    done = []
    for request in sdk.access.pending_requests():
        done.append(sdk.access.approve_permanently(request["id"], reason="fine")["decision"]["effect"])
    return done

@sdk.action("ask")
def ask(path):
    sdk.access.check_external_access(resource_type="filesystem", operation="read", target=path)
"""


def managers(world):
    from democrai_sandbox.policy import Subject

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", MANAGER)
    stage.module("desk", MANAGER)
    stage.open(access_settings={"managers": (Subject.parse("module:desk"),)})

    async def story(stage):
        await stage.action("demo", "ask", path="/srv/one")
        return [
            await stage.action("demo", "approve", stage.ada()),
            await stage.action("desk", "approve", stage.uma()),
            await stage.action("desk", "approve", stage.ada()),
            await stage.action("desk", "ask", path="/srv/two"),
            await stage.action("desk", "approve", stage.ada()),
        ]

    return stage.play(story)


def test_a_module_that_the_host_made_a_manager_decides_for_who_may_but_never_about_itself(case):
    """The host's choice and the caller's role count together."""
    refused = ["ExternalAccessAdminRequired", "external_access_admin_required"]
    assert case.run(managers) == [refused, refused, ["approval"], None, refused]
