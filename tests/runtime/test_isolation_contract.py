"""One contract for every kind of process: a module in the host's process, and one in a confined worker."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest

from democrai_sandbox import sdk

LAB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "confinement", "confined_host.py")

PROBE = """
import asyncio, collections, dataclasses, datetime, decimal, enum, json, os, pathlib, subprocess, urllib.request, uuid
from democrai_sandbox import sdk

@dataclasses.dataclass
class Point:
    x: int
    y: float

class Color(enum.Enum):
    RED = "red"

@sdk.render
def render():
    request = sdk.request()
    return {"user": request.user_id, "session": request.session_key, "organization": request.organization_id}

@sdk.action("values")
def values():
    named = collections.namedtuple("Named", "a b")(1, 2)
    return [None, True, 1, 1.5, "ä", b"\\0\\xff", Point(1, 2.0), Color.RED, named, datetime.date(2026, 1, 2),
            datetime.timedelta(seconds=3), uuid.UUID(int=5), decimal.Decimal("1.10"), pathlib.Path("a"), {"k": [()]}]

@sdk.action("later")
async def later(**params):
    await asyncio.sleep(0)
    return params

@sdk.action("invalid")
def invalid():
    return {"here": [object()]}

@sdk.action("raises")
def raises(text):
    print("before the error")
    raise ValueError(text)

@sdk.action("exits")
def exits():
    raise SystemExit(3)

@sdk.action("hangs")
async def hangs():
    await asyncio.sleep(60)

@sdk.action("folders")
def folders():
    (sdk.data_dir() / "a.txt").write_text("a")
    return [str(sdk.data_dir()), sorted(os.listdir(sdk.data_dir())), str(sdk.extension_dir()), sdk.cancelled()]

@sdk.action("read")
def read(path):
    with open(path) as file:
        return file.read()

@sdk.action("write")
async def write(path):
    with open(path, "w") as file:
        return file.write("x")

@sdk.action("lists")
def lists(path):
    return sorted(os.listdir(path))

@sdk.action("fetches")
def fetches(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()

@sdk.action("starts")
def starts():
    return subprocess.run(["true"]).returncode

@sdk.action("imports")
def imports():
    import ctypes

@sdk.action("caught")
def caught(path):
    try:
        open(path)
    except PermissionError as error:
        return [type(error).__name__, error.code, error.errno, error.strerror, error.filename, error.hint]

@sdk.action("program")
async def program(argv):
    done = await sdk.tasks.run_subprocess(argv)
    return [done.returncode, done.stdout.decode()]

@sdk.action("streams")
async def streams(argv):
    async with sdk.tasks.stream_subprocess(argv) as child:
        return [line.decode() async for line in child.stdout]

@sdk.action("blocking")
async def blocking():
    return await sdk.tasks.run_blocking(sum, [1, 2, 3])

@sdk.task("work")
async def work(count):
    sdk.tasks.progress(0.5, "half")
    return {"count": count, "user": sdk.request().user_id}

@sdk.action("tasks")
async def tasks():
    number = await sdk.tasks.start("work", {"count": 2})
    while not (found := await sdk.tasks.status(number)).state in ("done", "failed"):
        await asyncio.sleep(0.01)
    listed = await sdk.tasks.listed(name="work")
    return [found.state, found.result, found.message, len(listed), await sdk.tasks.cancel(number)]

@sdk.action("checks")
def checks(target):
    found = sdk.access.check_external_access(resource_type="filesystem", operation="read", target=target,
                                             register_request=False)
    return [found.allowed, str(found.code), found.requires_approval]

@sdk.action("requires")
def requires(target):
    found = sdk.access.require_external_access(
        resource_type="filesystem", operation="read", target=target, resume_action="read",
        resume_context={"path": target})
    return [found.allowed, str(found.code), bool(found.request_id)]

@sdk.action("manages")
def manages(act):
    function = getattr(sdk.access, act)
    return function() if act == "pending_requests" else function("no-such-id")

@sdk.action("engine")
async def engine():
    return await sdk.engines.call("nowhere", "method", {})

@sdk.action("engine_blocking")
def engine_blocking():
    return sdk.engines.call_blocking("nowhere", "method", {})

@sdk.action("engine_stream")
async def engine_stream():
    return [item async for item in sdk.engines.stream("nowhere", "method", {})]

@sdk.action("engine_settings")
def engine_settings():
    return sdk.engines.settings()

@sdk.action("mcp")
async def mcp(act):
    await (sdk.mcp.list_tools("nowhere") if act == "list" else sdk.mcp.call_tool("nowhere", "tool", {}))

@sdk.action("mcp_blocking")
def mcp_blocking(act):
    sdk.mcp.list_tools_blocking("nowhere") if act == "list" else sdk.mcp.call_tool_blocking("nowhere", "tool", {})

@sdk.action("media")
async def media(url):
    found = await sdk.media.fetch(url)
    return [found.status, found.content.decode()]

@sdk.action("media_blocking")
def media_blocking(url):
    found = sdk.media.fetch_blocking(url)
    return [found.status, found.content.decode()]

@sdk.action("media_stream")
async def media_stream(url):
    async with sdk.media.stream(url) as stream:
        return b"".join([chunk async for chunk in stream]).decode()

@sdk.tool("own", access=[])
def own(path: str) -> str:
    "Read with no rights."
    return open(path).read()

@sdk.tool("bare")
async def bare(path: str) -> str:
    "Read with the rights of the caller."
    return open(path).read()

@sdk.pipeline("both", steps=["bare"])
async def both(path: str): ...

@sdk.agent("asks", model="script", tools=["bare"])
async def asks(path: str):
    return path

@sdk.action("ai")
async def ai(kind, name, path):
    run = getattr(sdk.ai, f"run_{kind}")
    found = await run(name, {"path": path})
    return found if kind == "tool" else found.value
"""
_NAMES = {"Request", "action", "agent", "method", "pipeline", "task", "tool", "command"}
"""Names of the SDK that the probe uses as decorators or that only engines use."""


def calls(folder, secret, web):
    """Return the calls of the probe: kind, name and parameters."""
    declared, undeclared = f"{folder}/declared.txt", secret
    read = [("read", {"path": path}) for path in (declared, undeclared, f"{folder}/none", "/etc/shadow", "", 5)]
    yield "render", "", {}
    yield "action", "nothing", {}
    yield "action", "read", {"pth": 1}
    for name, params in (
        *((name, {}) for name in ("values", "invalid", "exits", "hangs", "folders", "starts", "imports", "blocking")),
        ("later", {"a": [1, {"b": b"\1"}], "big": 2**63}),
        ("raises", {"text": "wrong"}),
        *read,
        ("write", {"path": f"{folder}/out/new.txt"}),
        ("write", {"path": declared}),
        ("lists", {"path": f"{folder}/out"}),
        ("lists", {"path": folder}),
        *(("fetches", {"url": f"{web}/{path}"}) for path in ("declared", "other")),
        *(("caught", {"path": path}) for path in (undeclared, f"{folder}/none")),
        *(("program", {"argv": argv}) for argv in (["echo", "a"], ["cat", declared], ["cat", undeclared], ["no-such"])),
        ("streams", {"argv": ["printf", "a\\nb\\n"]}),
        ("tasks", {}),
        *((name, {"target": path}) for name in ("checks", "requires") for path in (declared, undeclared)),
        *(("manages", {"act": act}) for act in ("pending_requests", "approve_for_session", "approve_permanently")),
        *(("manages", {"act": act}) for act in ("deny_external_access", "revoke")),
        *((name, {}) for name in ("engine", "engine_blocking", "engine_stream", "engine_settings")),
        *((name, {"act": act}) for name in ("mcp", "mcp_blocking") for act in ("list", "call")),
        *(
            (name, {"url": f"{web}/{path}"})
            for name in ("media", "media_blocking", "media_stream")
            for path in ("declared", "other")
        ),
        *(
            ("ai", {"kind": kind, "name": name, "path": path})
            for kind, name in (("tool", "own"), ("tool", "bare"), ("tool", "bar"), ("pipeline", "both"))
            for path in (declared, undeclared)
        ),
        ("ai", {"kind": "agent", "name": "asks", "path": declared}),
    ):
        yield "action", name, params


async def outcome(work):
    """Return everything that a caller can learn from a call."""
    import asyncio

    from democrai_sandbox.errors import CallTimeout, SandboxDenied, SandboxError

    try:
        return ["value", repr(await asyncio.wait_for(work, 60))]
    except SandboxDenied as error:
        facts = ("code", "target", "operation", "subject", "subject_kind", "subject_chain", "hint", "errno", "filename")
        return [type(error).__name__, str(error), *(repr(getattr(error, name)) for name in facts)]
    except CallTimeout:
        return ["CallTimeout"]  # the text names the process
    except SandboxError as error:
        parts = [str(problem) for problem in getattr(error, "problems", ())]
        return [type(error).__name__, error.code, str(error), getattr(error, "kind", ""), parts]


def story_of(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    here = world.load(__file__)
    house, entry = lab.house, parts["entry"]
    folder = f"{world.base}/given"
    os.makedirs(f"{folder}/out")
    Path(f"{folder}/declared.txt").write_text("declared")
    rules = [
        entry("read", f"{folder}/declared.txt"),
        *(entry(operation, f"{folder}/out") for operation in ("read", "create", "modify", "delete")),
        entry("receive", f"{house.web.url}/declared"),
    ]
    house.extension("probe", here["PROBE"], access=rules)
    secret = house.file("secret")

    async def story():
        from democrai_sandbox.access.values import AuditFilter, PageRequest

        modules, caller = house.runtime.modules, lab.caller()
        told = []
        for kind, name, params in here["calls"](folder, secret, house.web.url):
            run = (
                modules.render("probe", params, caller)
                if kind == "render"
                else modules.call("probe", kind, name, params, caller, seconds=2.0 if name == "hangs" else None)
            )
            told.append([f"{kind} {name} {params}", *await here["outcome"](run)])
        audit = [
            [one.action.value, str(one.access), one.actor]
            for one in house.access.store.audit(AuditFilter(), PageRequest(limit=200))
        ]
        return {
            "told": told,
            "audit": sorted(audit),
            "pending": sorted(house.pending()),
            "printed": house.runtime.output.of("module:probe").text,
            "isolated": house.runtime.modules.loaded("probe").worker is not None,
            "web": house.web.asked,
        }

    return lab.serve(story, isolation={"default": world.args[0]}, call_timeout=50.0)


def plain(text, folder):
    """Return a text without the parts that differ between two hosts."""
    text = text.replace(str(folder), "/folder")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:80", text)
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    return re.sub(r"\b0[0-9a-hjkmnp-tv-z]{25}\b", "id", text)


@pytest.fixture(scope="module")
def found(tmp_path_factory, prepared_file):
    """Return what both kinds of process told."""
    from tests.runtime.cases import PreparedCase

    told = {}
    for isolation in ("in_process", "auto"):
        folder = tmp_path_factory.mktemp("contract")
        told[isolation] = json.loads(
            plain(json.dumps(PreparedCase(folder, prepared_file).run(story_of, isolation)), folder)
        )
    return told


def test_the_two_hosts_run_the_module_in_different_processes(found):
    assert [found[name]["isolated"] for name in ("in_process", "auto")] == [False, True]


def test_each_call_has_the_same_outcome(found):
    """The same value, or the same denial or error with the same parts."""
    pairs = zip(found["in_process"]["told"], found["auto"]["told"], strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_the_host_learns_the_same(found):
    """Requests, audit records, output and connections are equal."""
    for name in ("audit", "pending", "printed", "web"):
        assert found["in_process"][name] == found["auto"][name], name


def test_the_probe_uses_the_whole_sdk():
    """A new function of the SDK has to be added to the probe."""
    used = {node.attr for node in ast.walk(ast.parse(PROBE)) if isinstance(node, ast.Attribute)}
    used |= {"approve_for_session", "approve_permanently", "deny_external_access", "revoke", "pending_requests"}
    used |= {"run_tool", "run_agent", "run_pipeline"}
    inside = {
        name
        for module in (sdk.access, sdk.ai, sdk.engines, sdk.mcp, sdk.media, sdk.tasks)
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        if not isinstance(value, type)
    }
    assert (set(sdk.__all__) | inside) - used - _NAMES == set()
