"""Tasks of a real module in a real runtime: started by its own code, under its own guard, for its caller."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

HOUSE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "host_setup.py")
MODULE = """
import asyncio
import os
import sys

from democrai_sandbox import sdk
from democrai_sandbox.guard import current_guard

SECRET = {secret!r}


def who():
    view = current_guard()
    return {{
        "chain": [str(one) for one in view.subject_chain],
        "subject": f"{{view.subject_kind}}:{{view.subject}}",
        "identity": [view.user_id, view.organization_id, view.session_key],
        "request": list(sdk.request()),
    }}


@sdk.task("index")
async def index(pages):
    sdk.tasks.progress(0.5, "half")
    with open(os.path.join(sdk.data_dir(), "index"), "w") as file:
        file.write(str(pages))
    return {{"pages": pages, "who": who()}}


@sdk.task("steal")
def steal():
    with open(SECRET) as file:
        return file.read()


@sdk.task("fetch")
async def fetch():
    asked = sdk.access.check_external_access(
        resource_type="network", operation="receive", target="https://api.test/v1"
    )
    return [str(asked.code), who()["chain"]]


@sdk.task("nightly", every=0.3)
def nightly():
    sdk.tasks.progress(None, "in a thread")
    asked = sdk.access.check_external_access(
        resource_type="network", operation="receive", target="https://api.test/nightly"
    )
    return {{"who": who(), "asked": str(asked.code)}}


@sdk.task("wait")
async def wait():
    await asyncio.sleep(60)


@sdk.task("child")
async def child():
    code = "import os; print(os.environ['DEMOCRAI_SUBJECT_CHAIN'])"
    done = await sdk.tasks.run_subprocess([sys.executable, "-c", code])
    return done.text.strip()


@sdk.task("chained")
def chained():
    return sdk.tasks.blocking.start("index", {{"pages": 1}})


async def ended(task_id):
    while (found := await sdk.tasks.status(task_id)).state in ("queued", "running"):
        await asyncio.sleep(0.01)
    return found


@sdk.action("run")
async def run(name, params):
    found = await ended(await sdk.tasks.start(name, params))
    return found._asdict()


@sdk.action("cancel")
async def cancel():
    task_id = await sdk.tasks.start("wait")
    while (await sdk.tasks.status(task_id)).state != "running":
        await asyncio.sleep(0.01)
    first, second = await sdk.tasks.cancel(task_id), None
    found = await ended(task_id)
    second = await sdk.tasks.cancel(task_id)
    return [first, second, found.state]


@sdk.action("in a thread")
def in_thread():
    task_id = sdk.tasks.blocking.start("index", {{"pages": 2}})
    return [sdk.tasks.blocking.status(task_id).name, len(sdk.tasks.blocking.listed(name="index"))]


@sdk.action("wrong")
async def wrong(task_id):
    told = {{}}
    for key, act in {{
        "other's": lambda: sdk.tasks.status(task_id),
        "cancel other's": lambda: sdk.tasks.cancel(task_id),
        "name": lambda: sdk.tasks.start("idnex", {{}}),
        "params": lambda: sdk.tasks.start("index", {{"pages": object()}}),
        "state": lambda: sdk.tasks.listed(states=["odd"]),
        "timeout": lambda: sdk.tasks.start("index", {{}}, timeout=-1),
    }}.items():
        try:
            told[key] = str(await act())
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            told[key] = [type(error).__name__, str(error)]
            told[f"{{key}} frames"] = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    try:
        sdk.tasks.blocking.start("index", {{}})
    except Exception as error:
        told["blocks"] = type(error).__name__
    try:
        sdk.tasks.progress("half")
    except Exception as error:
        told["progress"] = type(error).__name__
    sdk.tasks.progress(0.5)
    return told
"""

OTHER = """
from democrai_sandbox import sdk


@sdk.task("index")
async def index():
    return "other"


@sdk.action("start")
async def start():
    return await sdk.tasks.start("index")
"""


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_tasks_of_a_module_in_a_runtime(case, isolation):
    """Tasks have the module's own rights and the identity of the request, in either kind of process."""
    told = case.run(story, MODULE, OTHER, isolation)
    check_identity_and_rights(told, str(case.secret))
    check_refusals(told["wrong"])


def write_module(world, name, text):
    folder = world.out("modules", name)
    os.makedirs(folder)
    with open(os.path.join(folder, "manifest.json"), "w") as file:
        json.dump({"name": name, "version": "1"}, file)
    with open(os.path.join(folder, "module.py"), "w") as file:
        file.write(text)


def story(world):
    from democrai_sandbox.access import Access, AccessSettings, Caller
    from democrai_sandbox.errors import SandboxError
    from democrai_sandbox.runtime import Runtime, RuntimeSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving
    from democrai_sandbox.runtime.store import TaskFilter, TaskState

    write_module(world, "demo", world.args[0].format(secret=world.secret))
    write_module(world, "other", world.args[1])
    state = world.out("state")
    os.makedirs(state)
    database = world.load(HOUSE)["database"](state)
    settings = AccessSettings(database=database, key_file=f"{state}/keys", poll_seconds=0.1)
    access = Access(settings, GuardSurroundings())
    runtime = Runtime(
        RuntimeSettings(
            modules_path=world.out("modules"), data_dir=world.out("data"), isolation={"module:demo": world.args[2]}
        ),
        access,
        protected_paths=[state],
    )
    uma = Caller(user_id="uma", organization_id="acme", session_key="s1", role="member")
    told = {}

    async def host():
        async with runtime:
            told["broken"] = [extension.name for extension in runtime.extensions if extension.is_broken]
            action = lambda called, **params: runtime.modules.action("demo", called, params, uma)
            run = lambda task, **params: action("run", name=task, params=params)
            told["index"] = await run("index", pages=3)
            told["file"] = open(world.out("data", "modules", "demo", "index")).read()
            told["steal"] = await run("steal")
            told["fetch"] = await run("fetch")
            told["child"] = await run("child")
            told["chained"] = await run("chained")
            told["cancel"] = await action("cancel")
            told["in a thread"] = await action("in a thread")
            other = await runtime.modules.action("other", "start", {}, uma)
            told["wrong"] = await action("wrong", task_id=other)
            done = ()
            while not done:
                await asyncio.sleep(0.02)
                done = await runtime.tasks.tasks(TaskFilter(name="nightly", states=(TaskState.DONE, TaskState.FAILED)))
            told["nightly"] = [done[-1].state, done[-1].result, list(done[-1].origin), done[-1].progress.message]
            with serving(Caller(user_id="ada", role="super")):
                pending = access.administration.pending_requests().items
                told["pending"] = sorted(
                    [
                        one.access.target,
                        str(one.access.subject),
                        list(one.chain),
                        one.origin.session_key,
                        one.origin.user_id,
                    ]
                    for one in pending
                )
                for one in pending:
                    approved = access.administration.approve_for_session(one.id)
                    told[f"approved {one.access.target}"] = approved.decision is not None
            told["fetch again"] = await run("fetch")
            chained = await runtime.tasks.status(told["chained"]["result"])
            told["chained origin"] = list(chained.origin)

    with access:
        asyncio.run(asyncio.wait_for(host(), 50))
    return told


def check_identity_and_rights(told, secret):
    """Only its own rights, its user and session; on a schedule without a user, so session approvals do not apply."""
    assert told["broken"] == []
    index = told["index"]
    assert (index["state"], index["result"]["pages"], told["file"]) == ("done", 3, "3")
    assert (index["fraction"], index["message"]) == (0.5, "half")
    who = index["result"]["who"]
    assert who["chain"] == ["task:demo.index", "module:demo"]
    assert who["subject"] == "module:demo"
    assert who["identity"] == ["uma", "acme", "s1"]
    assert who["request"] == ["uma", "acme", "s1", "", "", index["id"]]
    assert told["steal"]["state"] == "failed"
    assert told["steal"]["failure"]["denial"] == "sandbox_filesystem_denied"
    assert told["steal"]["failure"]["message"] == f"sandbox_filesystem_denied:demo:{secret}"
    assert told["fetch"]["result"] == ["pending", ["task:demo.fetch", "module:demo"]]
    assert json.loads(told["child"]["result"]) == ["task:demo.child", "module:demo"]
    assert told["chained origin"] == ["uma", "acme", "s1", False]
    assert told["cancel"] == [True, False, "cancelled"]
    assert told["in a thread"][0] == "index"
    state, result, origin, message = told["nightly"]
    assert (state, message, origin) == ("done", "in a thread", ["", "", "", True])
    assert result["who"]["chain"] == ["task:demo.nightly", "module:demo"]
    assert result["who"]["identity"] == [None, None, None]
    assert result["asked"] == "pending"
    assert told["pending"] == [
        ["https://api.test/nightly", "module:demo", ["task:demo.nightly", "module:demo"], "", ""],
        ["https://api.test/v1", "module:demo", ["task:demo.fetch", "module:demo"], "s1", "uma"],
    ]
    assert told["approved https://api.test/nightly"] is False
    assert told["approved https://api.test/v1"] is True
    assert told["fetch again"]["result"][0] == "session_approval", told["fetch again"]


def check_refusals(wrong):
    """Tasks of other modules are unknown to it, and no error has frames of the host."""
    for key in ("other's", "cancel other's"):
        assert wrong[key][0] == "TaskUnknown", key
    assert wrong["name"][0] == "ExtensionUnknown"
    assert "'index'" in wrong["name"][1]
    for key in ("params", "state", "timeout"):
        assert wrong[key][0] == "InvalidInputError", key
    for key, file in wrong.items():
        if key.endswith(" frames"):
            assert file == "tasks.py" or file == "sdk_services.py", key
    assert wrong["blocks"] == "GuardUsageError"
    assert wrong["progress"] == "InvalidInputError"
