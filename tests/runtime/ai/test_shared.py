"""Shared assets of modules in this process and in workers: the same results, denials and call chains."""

from __future__ import annotations

import json
import os
from itertools import product

import pytest

RUNTIME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAB = os.path.join(RUNTIME, "confinement", "confined_host.py")
CONTRACT = os.path.join(RUNTIME, "test_isolation_contract.py")

OWNER = """
import asyncio
from democrai_sandbox import current_guard, sdk

@sdk.tool("add", shared=True)
async def add(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

@sdk.tool("twice", shared=True)
def twice(value: int) -> int:
    return 2 * value

@sdk.tool("private")
async def private() -> str:
    return "private"

@sdk.tool("bare", shared=True)
async def bare(path: str) -> str:
    "Read with the rights of the caller."
    return open(path).read()

@sdk.tool("listed", access=[{"resource_type": "filesystem", "operation": "read", "target": "OWNED"}], shared=True)
def listed(path: str) -> str:
    "Read the files of its own list."
    return open(path).read()

@sdk.tool("who", shared=True)
async def who() -> dict[str, str]:
    view, request = current_guard(), sdk.request()
    return {"chain": " ".join(map(str, view.subject_chain)), "user": request.user_id, "session": request.session_key,
            "guarded": f"{view.user_id} {view.session_key}",
            "data": str(sdk.data_dir()), "code": str(sdk.extension_dir())}

@sdk.tool("fails", shared=True)
async def fails(text: str) -> str:
    raise ValueError(text)

@sdk.tool("bad", shared=True)
async def bad() -> str:
    return {"here": object()}

@sdk.tool("back", shared=True)
async def back(left: int) -> list[str]:
    return [str(current_guard().subject), *(await sdk.ai.run_tool("user.forth", {"left": left - 1}) if left else [])]

@sdk.tool("outer", shared=True)
async def outer() -> str:
    return await sdk.ai.run_tool("private", {})

@sdk.tool("checks", shared=True)
async def checks(path: str) -> bool:
    return sdk.access.check_external_access(resource_type="filesystem", operation="read", target=path).allowed

@sdk.tool("starts", shared=True)
async def starts() -> str:
    return await sdk.tasks.start("work", {})

@sdk.tool("waits", access=[{"resource_type": "filesystem", "operation": ["create", "modify"], "target": "MARKS"}],
          shared=True)
async def waits(mark: str):
    open(f"MARKS/{mark}.begun", "w").close()
    try:
        await asyncio.sleep(60)
    finally:
        open(f"MARKS/{mark}.ended", "w").close()

@sdk.pipeline("both", steps=["bare", lambda text: text + "!"], shared=True)
async def both(path: str): ...

@sdk.agent("asks", model="reads", tools=["bare"], shared=True)
async def asks(path: str):
    return path
"""
USER = """
from democrai_sandbox import current_guard, sdk

@sdk.action("run")
async def run(kind, name, params):
    found = await getattr(sdk.ai, f"run_{kind}")(name, params)
    return found if kind == "tool" else [found.value, found.turns, found.tool_calls, list(found.denials)]

@sdk.action("serve")
async def serve(name, *, given):
    from democrai_sandbox.runtime import sdk_services
    return await sdk_services.later(sdk_services.call(name, *given))

@sdk.task("work")
def work(): ...

@sdk.action("back")
async def back(left):
    return await sdk.ai.run_tool("owner.back", {"left": left})

@sdk.tool("forth", shared=True)
async def forth(left: int) -> list[str]:
    return [str(current_guard().subject), *(await sdk.ai.run_tool("owner.back", {"left": left - 1}) if left else [])]

@sdk.tool("asks_owner", access=[])
async def asks_owner(path: str) -> str:
    "Ask with no rights."
    return await sdk.ai.run_tool("owner.bare", {"path": path})

@sdk.tool("add")
async def add() -> str:
    return "own"

@sdk.agent("reader", model="reads", tools=["owner.bare", "add", "owner.add", "clock"])
async def reader(path: str):
    return path

@sdk.tool("tool")
async def same(value: int) -> int:
    return value

@sdk.pipeline("chain", steps=["tool", "owner.add", "tool:owner.twice", "mirror", lambda value: value])
async def chain(a: int):
    return a

@sdk.pipeline("late", steps=["owner.listed"], access=[])
async def late(path: str): ...
"""
LONER = """
from democrai_sandbox import sdk

@sdk.action("run")
async def run(name, params):
    return await sdk.ai.run_tool(name, params)
"""


BORROWS = """
from democrai_sandbox import sdk

@sdk.agent("x", model="reads", tools=["owner.private"])
async def x(): ...
"""


def calls(both, owned, secret):
    """Return the calls of the user: kind, name and parameters."""
    for name, params in (
        ("add", {}),
        ("owner.add", {"a": 2, "b": 3}),
        ("owner.add", {"a": "2", "c": 3}),
        ("owner.add", []),
        ("owner.twice", {"value": 4}),
        *((f"owner.{name}", {}) for name in ("private", "addd", "who", "bad", "outer", "starts")),
        ("nowhere.add", {}),
        ("clok", {}),
        ("clock", {}),
        ("", {}),
        ("owner.fails", {"text": "wrong"}),
        *(("owner.bare", {"path": path}) for path in (both, owned, secret)),
        *(("owner.checks", {"path": path}) for path in (both, secret)),
        *(("owner.listed", {"path": path}) for path in (both, owned, secret)),
        *(("asks_owner", {"path": path}) for path in (both, secret)),
        *(("peek", {"path": path}) for path in (both, secret)),
    ):
        yield "tool", name, params
    for path in (both, secret):
        yield "pipeline", "owner.both", {"path": path}
        yield "agent", "owner.asks", {"path": path}
        yield "agent", "reader", {"path": path}
    yield "pipeline", "chain", {"a": 1}
    yield "pipeline", "late", {"path": owned}
    yield "pipeline", "late", {"path": secret}


def model():
    """Return a model that reads the path in its prompt with the first tool, and answers with its tools and the text."""
    from democrai_sandbox.runtime.ai.model import Message, ToolCall

    class Reads:
        async def complete(self, messages, tools):
            if messages[-1].role == "tool":
                return Message("assistant", f"{json.dumps([list(tool) for tool in tools])} {messages[-1].text}")
            arguments = json.dumps({"path": messages[-1].text})
            return Message("assistant", "", (ToolCall("1", tools[0].name, arguments),))

    return Reads()


def hosted(runtime):
    """Register the tools of the host."""

    async def clock() -> str:
        return "noon"

    def mirror(value: int) -> int:
        return -value

    def peek(path: str) -> str:
        with open(path) as file:
            return file.read()

    clock.__annotations__, mirror.__annotations__ = {"return": str}, {"value": int, "return": int}
    peek.__annotations__ = {"path": str, "return": str}
    for tool in (clock, mirror, peek):
        runtime.ai.register("tool", tool, name=tool.__name__)


def lab_of(world, here):
    """Return a host with the modules, and its files by name."""
    lab = (parts := world.load(here["LAB"]))["Lab"](world)
    entry, house = parts["entry"], lab.house
    files = {name: house.file(name, name) for name in ("both", "owned", "secret", "used")}
    marks = os.path.join(house.base, "marks")
    os.mkdir(marks)
    reads = lambda *names: [entry("read", files[name]) for name in names]
    writes = [entry(operation, marks) for operation in ("create", "modify")]
    code = here["OWNER"].replace("OWNED", files["owned"]).replace("MARKS", marks)
    house.extension("owner", code, access=[*reads("both", "owned"), *writes])
    house.extension("user", here["USER"], access=reads("both", "used"))
    lab.house.extension("loner", here["LONER"])
    return lab, files


async def forge(serve):
    """Return the outcomes of services called with other arguments than the SDK's."""
    return {
        name: await serve(name=service, given=given)
        for name, service, given in (
            ("private", "ai.run", ["tool", "owner.private", {}]),
            ("described", "ai.offers", [[["tool", "owner.private"]]]),
            ("own", "ai.run", ["tool", "user.forth", {"left": 0}]),
            ("kind", "ai.run", ["module", "owner", {}]),
            ("shape", "ai.offers", [[["tool"]]]),
            ("many", "ai.offers", [[["tool", "owner.add"]] * 101]),
            ("arguments", "ai.run", ["tool", "owner.add", {"a": "x"}]),
            ("model", "ai.complete", ["reads", [], []]),
        )
    }


def story_of(world):
    here = world.load(__file__)
    lab, files = here["lab_of"](world, here)
    house, outcome = lab.house, world.load(here["CONTRACT"])["outcome"]

    async def story():
        from democrai_sandbox.access.values import AuditFilter, PageRequest

        runtime, uma = house.runtime, lab.caller()
        told = []

        async def tell(what, work):
            told.append([what, *await outcome(work)])

        def use(kind, name, params):
            return runtime.modules.action("user", "run", {"kind": kind, "name": name, "params": params}, uma)

        for kind, name, params in here["calls"](files["both"], files["owned"], files["secret"]):
            await tell(f"{kind} {name} {params}", use(kind, name, params))
        for name, params in (("owner.add", {"a": 1}), ("owner.private", {}), ("clock", {})):
            work = runtime.modules.action("loner", "run", {"name": name, "params": params}, uma)
            await tell(f"loner {name}", work)
        for left in (4, 40):
            await tell(f"back {left}", runtime.modules.action("user", "back", {"left": left}, uma))
        for kind, name, params in (("pipeline", "user.chain", {"a": 1}), ("tool", "owner.private", {})):
            await tell(f"host {name}", runtime.ai.run(kind, name, params, uma))
        house.decide("approval", "tool:owner.bare", "filesystem", "read", files["secret"])
        await tell("approved", use("tool", "owner.bare", {"path": files["secret"]}))
        audit = house.access.store.audit(AuditFilter(), PageRequest(limit=200))
        return {
            "told": told,
            "audit": sorted([one.action.value, str(one.access), one.actor] for one in audit),
            "pending": [
                [str(one.access.subject), one.access.target, list(map(str, one.chain))]
                for one in house.admin("pending_requests").items
            ],
            "lent": (await outcome(use("tool", "owner.bare", {"path": files["used"]})))[:2],
            "forged": await here["forge"](lambda **given: outcome(runtime.modules.action("user", "serve", given, uma))),
            "isolated": [runtime.modules.loaded(name).worker is not None for name in ("owner", "user")],
        }

    owner, user = world.args
    isolation = {"module:owner": owner, "module:user": user, "module:loner": user}
    return lab.serve(story, prepare=here["hosted"], models={"reads": here["model"]()}, isolation=isolation)


PLACES = ("in_process", "auto")


@pytest.fixture(scope="module")
def found(tmp_path_factory, prepared_file):
    """Return what each combination of processes told: that of the owner, and that of the user."""
    from tests.runtime.cases import PreparedCase
    from tests.runtime.test_isolation_contract import plain

    told = {}
    for owner, user in product(PLACES, PLACES):
        folder = tmp_path_factory.mktemp("shared")
        case = PreparedCase(folder, prepared_file)
        told[owner, user] = json.loads(plain(json.dumps(case.run(story_of, owner, user)), folder))
    return told


def test_the_modules_run_where_the_host_says(found):
    expected = {(owner, user): [owner == "auto", user == "auto"] for owner, user in product(PLACES, PLACES)}
    assert {places: told["isolated"] for places, told in found.items()} == expected


@pytest.mark.parametrize("places", list(product(PLACES, PLACES))[1:])
def test_each_call_has_the_same_outcome(found, places):
    """The same value, or the same denial or error with the same parts."""
    pairs = zip(found["in_process", "in_process"]["told"], found[places]["told"], strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


_UNKNOWN = ("owner.private", "owner.addd")


def test_the_calls_succeed_and_fail_as_intended(found):
    """Without this, equal outcomes could be equal failures."""
    told = {call.partition(" {")[0]: kind for call, kind, *_ in reversed(found["auto", "auto"]["told"])}
    expected = {
        "AssetUnknown": ("loner owner.private", *(f"tool {name}" for name in ("nowhere.add", "clok", *_UNKNOWN))),
        "ExtensionFailed": ("tool owner.fails",),
        "FilesystemDenied": ("tool owner.listed", "tool asks_owner"),
        "InvalidInputError": ("tool owner.add []", "tool "),
        "NestingTooDeep": ("back 40",),
        "ResultInvalid": ("tool owner.bad",),
        "TamperDenied": ("tool owner.starts",),
    }
    failed = {call: kind for kind, names in expected.items() for call in names}
    assert told == dict.fromkeys(told, "value") | failed
    assert [chain for _, _, chain in found["auto", "auto"]["pending"]] == [["module:user", "tool:owner.checks"]]


@pytest.mark.parametrize("places", list(product(PLACES, PLACES))[1:])
def test_the_host_learns_the_same(found, places):
    """Requests and audit records are equal."""
    for name in ("audit", "pending"):
        assert found["in_process", "in_process"][name] == found[places][name], name


@pytest.mark.parametrize("places", list(product(PLACES, PLACES)))
def test_a_tool_without_a_list_never_has_more_rights_than_its_caller(found, places):
    """In another process, it also has only those that its own module has."""
    expected = "value" if places[0] == "in_process" else "FilesystemDenied"
    assert found[places]["lent"][0] == expected


@pytest.mark.parametrize("owner", PLACES)
def test_a_worker_gets_nothing_with_forged_requests(found, owner):
    """The services refuse what the SDK never sends."""
    told = {name: outcome[0] for name, outcome in found[owner, "auto"]["forged"].items()}
    refused = {"private": "AssetUnknown", "described": "AssetUnknown", "arguments": "value"}
    assert told == dict.fromkeys(told, "InvalidInputError") | refused


def ending_story(world):
    import asyncio
    import signal

    here = world.load(__file__)
    lab, _ = here["lab_of"](world, here)
    house, outcome = lab.house, world.load(here["CONTRACT"])["outcome"]
    marks = os.path.join(house.base, "marks")

    async def marked(name):
        while not os.path.exists(os.path.join(marks, name)):
            await asyncio.sleep(0.01)

    async def story():
        runtime, uma = house.runtime, lab.caller()

        def waits(mark, **options):
            params = {"kind": "tool", "name": "owner.waits", "params": {"mark": mark}}
            call = runtime.modules.call("user", "action", "run", params, uma, **options)
            return asyncio.create_task(outcome(call))

        canceled = waits("canceled")
        await marked("canceled.begun")
        canceled.cancel()
        await marked("canceled.ended")
        late = await waits("late", seconds=1.0)
        await marked("late.ended")
        told = {"late": late[0], "after": await outcome(runtime.ai.run("tool", "owner.add", {"a": 1}, uma))}
        worker = runtime.modules.loaded("owner").worker
        if worker is not None:
            killed = waits("killed")
            await marked("killed.begun")
            os.kill(worker.pid, signal.SIGKILL)
            told["killed"] = (await killed)[0]
            told["again"] = await outcome(runtime.ai.run("tool", "owner.add", {"a": 1}, uma))
        return told

    owner, user = world.args
    isolation = {"module:owner": owner, "module:user": user}
    return lab.serve(story, prepare=here["hosted"], models={"reads": here["model"]()}, isolation=isolation)


@pytest.mark.parametrize("places", list(product(PLACES, PLACES)))
def test_a_call_ends_with_its_caller(case, places):
    """When the caller is canceled or takes too long, the tool is canceled, and its module continues to serve."""
    told = case.run(ending_story, *places)
    assert told["late"] == "CallTimeout"
    assert told["after"][0] == told.get("again", ["value"])[0] == "value"
    assert told.get("killed", "WorkerCrashed") == "WorkerCrashed"


SLOW = """
import time

while not (sdk.data_dir() / "go").exists():
    time.sleep(0.01)
"""


def waiting_story(world):
    import asyncio

    here = world.load(__file__)
    lab, files = here["lab_of"](world, here)
    house, outcome = lab.house, world.load(here["CONTRACT"])["outcome"]
    code = os.path.join(house.folders["module"], "owner", "module.py")
    with open(code) as file:
        text = file.read()
    with open(code, "w") as file:
        file.write(text.replace("\n@sdk.tool", f"{here['SLOW']}\n@sdk.tool", 1))
    house.extension("borrows", here["BORROWS"])

    async def story():
        runtime, uma = house.runtime, lab.caller()
        calls = [
            ("tool", "owner.add", {"a": 1}),
            ("agent", "reader", {"path": files["both"]}),
            ("pipeline", "chain", {"a": 1}),
        ]
        asked = [
            asyncio.create_task(
                outcome(runtime.modules.action("user", "run", {"kind": kind, "name": name, "params": params}, uma))
            )
            for kind, name, params in calls
        ]
        before = sorted(house.problems())
        open(os.path.join(house.base, "data", "modules", "owner", "go"), "w").close()
        found = [(await call)[0] for call in asked]
        await runtime.modules.all_started()
        return {"found": found, "problems": [before, sorted(house.problems())]}

    isolation = {"module:owner": "auto", "module:user": world.args[0], "module:borrows": world.args[0]}
    return lab.serve(story, prepare=here["hosted"], models={"reads": here["model"]()}, isolation=isolation)


@pytest.mark.parametrize("user", PLACES)
def test_calls_wait_for_the_worker_that_they_need(case, user):
    """A module that uses an unknown asset is broken as soon as all workers have started, and not before."""
    told = case.run(waiting_story, user)
    assert told["found"] == ["value"] * 3
    assert told["problems"] == [[], ["module:borrows"]]
