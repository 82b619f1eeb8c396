"""Declarations of modules: all problems are reported at load time, and none exceeds a manifest."""

from __future__ import annotations

import os

from tests.services.golden import sentence

KIT = os.path.join(os.path.dirname(__file__), "kit.py")

BEYOND = """
NET = {"resource_type": "network", "operation": "receive", "target": "https://api.example.com/v2"}
FILE = {"resource_type": "filesystem", "operation": ["read", "create"], "target": "data"}

@ai.tool("fetch", access=[NET])
async def fetch() -> str: ...

@ai.tool("write", access=[FILE])
async def write() -> str: ...

@ai.agent("native", model="script", access=[], allowed_imports=["ctypes"])
async def native(): ...

@ai.pipeline("fine", steps=["write"], access=[{**NET, "target": "https://api.example.com/v1/reports"}])
async def fine(): ...
"""


def beyond_story(world):
    kit = world.load(KIT)
    declared = [kit["url_rule"]("https://api.example.com/v1"), kit["file_rule"]("data")]
    host = kit["Host"](world, {"demo": (BEYOND, declared), "other": "@ai.tool('ok')\nasync def ok(): ...\n"})
    return {"broken": host.broken, "assets": [asset.label for asset in host.ai.assets]}


def test_a_declaration_beyond_the_manifest_breaks_the_module(case):
    """Code cannot give itself more than its manifest; the other modules still run."""
    told = case.run(beyond_story)
    assert told["assets"] == ["tool:other.ok"]
    assert list(told["broken"]) == ["demo"]
    pointers, messages = zip(*told["broken"]["demo"], strict=True)
    assert pointers == ("/tool/fetch/access", "/tool/write/access", "/agent/native/allowed_imports")
    values = (
        ("demo.fetch", "network", "receive", "https://api.example.com/v2"),
        ("demo.write", "filesystem", "create", "data"),
        ("demo.native", "ctypes"),
    )
    for message, parts in zip(messages, values, strict=True):
        assert all(part in message for part in parts), message
    sentence("beyond the manifest", messages[0])


WRONG = {
    "option": "@sdk_declare('tool', 'x', {'acces': [], 'schema': OBJECT})\nasync def x(): ...",
    "schema": "@sdk_declare('tool', 'x', {'schema': {'type': 'object', 'pattern': '(a+)+$'}})\nasync def x(): ...",
    "shapeless": "@sdk_declare('tool', 'x', {})\nasync def x(): ...",
    "generator": "@ai.tool('x')\nasync def x():\n    yield 1",
    "untyped": "@ai.tool('x')\nasync def x(value): ...",
    "hostile": "@ai.tool('x')\nasync def x(value: \"open('/etc/shadow')\"): ...",
    "name": "@ai.tool('a b/c')\nasync def x(): ...",
    "twice": "@ai.tool('x')\nasync def x(): ...\n@ai.tool('x')\nasync def y(): ...",
    "target": "@ai.tool('x', access=[{'resource_type': 'network', 'operation': 'get', 'target': ''}])\n"
    "async def x(): ...",
    "no_model": "@sdk_declare('agent', 'x', {'schema': OBJECT})\nasync def x(): ...",
    "no_steps": "@ai.pipeline('x', steps=[])\nasync def x(): ...",
    "limit": "@ai.agent('x', model='script', max_turns=0, timeout=-1)\nasync def x(): ...",
    "endless": "@ai.agent('x', model='script', timeout=float('inf'))\nasync def x(): ...",
    "tool": "@ai.agent('x', model='script', tools=['nowhere'])\nasync def x(): ...",
    "private": "@ai.agent('x', model='script', tools=['lender.private'])\nasync def x(): ...",
    "cycle": "@ai.pipeline('x', steps=['y'])\nasync def x(): ...\n@ai.pipeline('y', steps=['x'])\nasync def y(): ...",
    "broken_step": "@ai.agent('a', model='script', tools=['nowhere'])\nasync def a(): ...\n"
    "@ai.pipeline('x', steps=['a'])\nasync def x(): ...",
    "unclear": "@ai.tool('x')\nasync def x(): ...\n@ai.agent('x', model='script')\nasync def y(): ...\n"
    "@ai.pipeline('z', steps=['x'])\nasync def z(): ...",
    "step": "@sdk_declare('pipeline', 'x', {'steps': ['step:0'], 'schema': OBJECT})\nasync def x(): ...",
    "same_look": "@ai.agent('z', model='script', tools=['a.b.x', 'a_b.x'])\nasync def z(): ...",
    "dotted": "@ai.tool('a.b')\nasync def x(): ...",
}
HEAD = """
from democrai_sandbox.runtime import sdk_services
OBJECT = {'type': 'object'}

def sdk_declare(kind, name, options):
    return lambda function: sdk_services.call("declare", kind, name, options, function)

"""


def wrong_story(world):
    kit = world.load(KIT)
    modules = {name.replace("_", "-"): HEAD + source for name, source in WRONG.items()}
    modules["lender"] = (
        "@ai.tool('private')\nasync def private(): ...\n@ai.tool('lent', shared=True)\nasync def l(): ...\n"
    )
    modules["a.b"] = modules["a_b"] = "@ai.tool('x', shared=True)\nasync def x(): ...\n"
    modules["good"] = (
        "@ai.agent('x', model='script', tools=['lender.lent', 'hosted'])\nasync def x(): ...\n"
        "@ai.pipeline('p', steps=['x', 'tool:hosted', str])\nasync def p(): ...\n"
    ).replace("str]", "lambda value: value]")
    host = kit["Host"](world, {}, {"script": kit["ScriptedModel"](["fine"])})

    async def hosted(): ...

    hosted.__annotations__ = {}
    host.ai.register("tool", hosted, name="hosted")
    for name, source in modules.items():
        host.load(name, source, [])
    for name, problems in host.ai.link().items():
        host.broken[name] = kit["placed"](problems)
    try:
        host.ai.register("tool", hosted, name="hosted")
    except Exception as error:
        host.broken["host"] = kit["placed"](error.problems)
    return host.broken


def test_everything_that_is_wrong_with_a_declaration_is_named(case):
    """With their location and a suggestion; one broken module stops no other."""
    told = {name.replace("-", "_"): problems for name, problems in case.run(wrong_story).items()}
    expected = {
        "option": ["/tool/x/acces"],
        "schema": ["/tool/x/schema/pattern"],
        "shapeless": ["/tool/x/schema"],
        "generator": ["/tool/x"],
        "untyped": ["/value"],
        "hostile": [""],
        "name": ["/tool/a b/c/name"],
        "twice": ["/tool/x"],
        "target": ["/tool/x/access/0/operation", "/tool/x/access/0/target"],
        "no_model": ["/agent/x"],
        "no_steps": ["/pipeline/x"],
        "limit": ["/agent/x/max_turns", "/agent/x/timeout"],
        "endless": ["/timeout"],
        "tool": ["/agent/x/tools"],
        "private": ["/agent/x/tools"],
        "cycle": ["/pipeline/x/steps", "/pipeline/x/steps", "/pipeline/y/steps"],
        "broken_step": ["/agent/a/tools", "/pipeline/x/steps"],
        "unclear": ["/pipeline/z/steps"],
        "step": ["/pipeline/x/steps/0"],
        "same_look": ["/agent/z/tools"],
        "dotted": ["/tool/a.b"],
        "host": ["/tool/hosted"],
    }
    assert {name: [pointer for pointer, _ in problems] for name, problems in told.items()} == expected
    texts = {name: "\n".join(text for _, text in problems) for name, problems in told.items()}
    values = {
        "option": "'access'",
        "hostile": "FilesystemDenied",
        "tool": "'nowhere'",
        "private": "'lender.private'",
    }
    for name, value in values.items():
        assert value in texts[name], (name, texts[name])
    for name in expected.keys() - {"hostile"}:
        sentence(name, texts[name])


SHARING = """
@sdk.action("use")
async def use(name: str):
    return await ai.run_tool(name, {})

@ai.tool("own")
async def own() -> str:
    return "own of {name}"

@ai.tool("lent", shared=True)
async def lent() -> str:
    return "lent by {name}"
"""


def sharing_story(world):
    kit = world.load(KIT)
    host = kit["Host"](world, {name: SHARING.replace("{name}", name) for name in ("one", "two")})

    async def clock() -> str:
        return "noon"

    clock.__annotations__ = {}

    async def peek() -> str:
        from democrai_sandbox import current_guard

        seen = current_guard()
        if seen.user_id == "uma" and seen.session_key == "s1":
            return open(world.secret).read()

    clock.__annotations__ = peek.__annotations__ = {}
    host.ai.register("tool", clock, name="clock")
    host.ai.register("tool", peek, name="peek")
    host.ai.register("tool", peek, name="let", access=[kit["file_rule"](world.outside)])
    host.ai.link()
    names = ("own", "one.own", "two.own", "two.lent", "clock", "two.lnet")
    told = {name: host.told(host.act("one", "use", name=name)) for name in names}
    told["host"] = host.told(host.ai.run("tool", "two.own", {}, kit["UMA"]))["value"]
    told["peek"] = host.told(host.ai.run("tool", "peek", {}, kit["UMA"]))
    told["let"] = host.told(host.ai.run("tool", "let", {}, kit["UMA"]))["value"]
    told["inside"] = host.told(host.act("one", "use", name="peek"))
    told["broken"] = host.broken
    return told


def test_a_module_uses_its_own_what_is_shared_and_what_the_host_has(case):
    """Private assets of others give the same error as unknown ones."""
    told = case.run(sharing_story)
    assert told["broken"] == {}
    assert (told["own"], told["one.own"]) == ("own of one", "own of one")
    assert (told["two.lent"], told["clock"], told["host"]) == ("lent by two", "noon", "own of two")
    assert {told[name]["code"] for name in ("two.own", "two.lnet")} == {"asset_unknown"}
    assert "'two.own'" in told["two.own"]["text"]
    assert told["peek"]["chain"] == ["tool:peek"]
    assert told["inside"]["chain"] == ["module:one", "tool:peek"]
    assert told["let"] == "SECRET"
    assert "'two.lent'" in told["two.lnet"]["text"]
