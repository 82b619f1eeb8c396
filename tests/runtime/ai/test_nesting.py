"""Nested module, pipeline, agent and tool: the subject of each check, and the rights of each."""

from __future__ import annotations

import os

KIT = os.path.join(os.path.dirname(__file__), "kit.py")

READER = """
@sdk.action("go")
async def go(path: str):
    return (await ai.run_pipeline("monthly", {"path": path})).value

@ai.pipeline("monthly", steps=["writer"])
def monthly(path: str):
    return None

@ai.agent("writer", model="script", tools=["peek"])
async def writer(path: str):
    return path

@ai.tool("peek")
async def peek(path: str) -> str:
    with open(path) as file:
        return file.read()
"""


def reading_model(kit):
    """Return a model that requests a read of the path in its prompt, and answers with the result."""
    return kit["ScriptedModel"](
        [
            lambda messages: kit["calls"](("peek", {"path": messages[-1].text})),
            lambda messages: messages[-1].text,
        ]
    )


def chain_story(world):
    kit = world.load(KIT)
    allowed = world.inside("note.txt")
    kit["write"](allowed, "NOTE")
    host = kit["Host"](world, {"demo": (READER, [kit["file_rule"](world.root)])}, {"script": reading_model(kit)})
    run = host.ai.run("pipeline", "demo.monthly", {"path": world.secret}, kit["UMA"])
    return {
        "broken": host.broken,
        "allowed": host.told(host.act("demo", "go", path=allowed)),
        "denied": host.told(host.act("demo", "go", path=world.secret)),
        "run": host.told(run),
        "left": kit["states_left"](),
    }


def test_the_chain_names_all_four(case):
    """Module, pipeline, agent and tool are in the denial, which the model and the run's report receive."""
    told = case.run(chain_story)
    assert told["broken"] == {}
    assert told["allowed"] == "NOTE"
    assert "sandbox_filesystem_denied:demo.peek:" in told["denied"]
    assert told["run"]["value"] == told["denied"]
    assert (told["run"]["turns"], told["run"]["tool_calls"]) == (2, 1)
    [denial] = told["run"]["denials"]
    assert denial["subject_chain"] == ["module:demo", "pipeline:demo.monthly", "agent:demo.writer", "tool:demo.peek"]
    assert (denial["code"], denial["operation"]) == ("sandbox_filesystem_denied", "read")
    assert told["left"] == 0


NARROWING = """
ALLOWED = {root!r}

@sdk.action("use")
async def use(tool: str, path: str):
    return await ai.run_tool(tool, {{"path": path}})

@sdk.action("ask")
async def ask(agent: str, path: str):
    return (await ai.run_agent(agent, {{"path": path}})).value

def read(path):
    with open(path) as file:
        return file.read()

@ai.tool("inherits")
async def inherits(path: str) -> str:
    return read(path)

@ai.tool("nothing", access=[])
async def nothing(path: str) -> str:
    return read(path)

@ai.tool("narrow", access=[{{"resource_type": "filesystem", "operation": "read", "target": ALLOWED + "/a"}}])
def narrow(path: str) -> str:
    return read(path)

@ai.agent("bare", model="script", tools=["inherits"], access=[])
def bare(path: str):
    return path

@ai.agent("half", model="script", tools=["inherits"], access=[
    {{"resource_type": "filesystem", "operation": "read", "target": ALLOWED + "/b"}}])
def half(path: str):
    return path

@ai.agent("open", model="wide", tools=["narrow"], access=[])
def open_agent(path: str):
    return path
"""


def narrowing_story(world):
    kit = world.load(KIT)
    for name in "ab":
        os.mkdir(world.inside(name))
        kit["write"](world.inside(name, "note"), name.upper())
    calls = kit["calls"]

    def model(tool):
        return kit["ScriptedModel"](
            [lambda messages: calls((tool, {"path": messages[-1].text})), lambda messages: messages[-1].text]
        )

    source = NARROWING.format(root=world.root)
    host = kit["Host"](
        world,
        {"demo": (source, [kit["file_rule"](world.root)])},
        {"script": model("inherits"), "wide": model("narrow")},
    )

    def tried(action, who, name):
        key = {"use": "tool", "ask": "agent"}[action]
        return host.told(host.act("demo", action, **{key: who}, path=world.inside(name, "note")))

    return {
        "broken": host.broken,
        **{f"{who} {name}": tried("use", who, name) for who in ("inherits", "nothing", "narrow") for name in "ab"},
        **{f"{who} {name}": tried("ask", who, name) for who in ("bare", "half", "open") for name in "ab"},
    }


def test_declarations_narrow_and_their_absence_does_not(case):
    """With access a subject has exactly that list; without it, the rights of its caller; with [] nothing."""
    told = case.run(narrowing_story)
    assert told.pop("broken") == {}
    denied = {key for key, value in told.items() if "sandbox_filesystem_denied" in str(value) or "denied" in value}
    assert denied == {"nothing a", "nothing b", "narrow b", "bare a", "bare b", "half a", "open b"}
    assert {told[key] for key in set(told) - denied} == {"A", "B"}
    assert told["nothing a"]["chain"] == ["module:demo", "tool:demo.nothing"]


TOGETHER = """
import asyncio

@sdk.action("go")
async def go(agent: str, path: str):
    return (await ai.run_agent(agent, {"path": path})).denials[0]["subject_chain"]

@ai.agent("left", model="script", tools=["peek"])
async def left(path: str):
    return path

@ai.agent("right", model="script", tools=["peek"], access=[])
async def right(path: str):
    return path

@ai.tool("peek")
async def peek(path: str) -> str:
    for _ in range(20):
        await asyncio.sleep(0)
    with open(path) as file:
        return file.read()
"""


def together_story(world):
    kit = world.load(KIT)
    import asyncio

    host = kit["Host"](world, {"demo": TOGETHER, "other": TOGETHER}, {"script": reading_model(kit)})

    async def all_at_once():
        async def one(number):
            who = {"module": ("demo", "other")[number % 2], "agent": ("left", "right")[number // 2 % 2]}
            chain = await host.act(who["module"], "go", agent=who["agent"], path=world.secret)
            name = who["module"]
            return chain == [f"module:{name}", f"agent:{name}.{who['agent']}", f"tool:{name}.peek"]

        return await asyncio.gather(*(one(number) for number in range(40)))

    return {"right": asyncio.run(all_at_once()), "left": kit["states_left"](), "guarded": kit["is_guarded"]()}


def test_many_runs_on_one_loop_keep_their_chains_apart(case):
    """Each denial has the call chain of its own run, step by step."""
    told = case.run(together_story)
    assert told == {"right": [True] * 40, "left": 0, "guarded": False}


CANCELLED = """
import asyncio

@sdk.action("wait")
async def wait():
    return await ai.run_agent("slow", {})

@ai.agent("slow", model="script", tools=["sleep"])
async def slow():
    return "go"

@ai.tool("sleep")
async def sleep() -> str:
    try:
        ai.seen = ["begun"]
        await asyncio.sleep(60)
    finally:
        try:
            open("/etc/shadow")
        except PermissionError as denial:
            ai.seen = [str(part) for part in denial.subject_chain]
            raise
"""


def cancelling_story(world):
    kit = world.load(KIT)
    import asyncio

    source = CANCELLED.replace("ai.seen = ", "SEEN[:] = ").replace("import asyncio\n", "import asyncio\nSEEN = []\n", 1)
    source += "\n@sdk.action('seen')\nasync def seen():\n    return SEEN\n"
    host = kit["Host"](world, {"demo": source}, {"script": kit["ScriptedModel"]([kit["calls"](("sleep", {}))])})

    async def go():
        task = asyncio.create_task(host.act("demo", "wait"))
        while await host.act("demo", "seen") != ["begun"] and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except BaseException as error:
            ended = type(error).__name__
        return ended, kit["is_guarded"](), await host.act("demo", "seen")

    ended, guarded, seen = asyncio.run(go())
    return {"ended": ended, "guarded": guarded, "seen": seen, "left": kit["states_left"]()}


def test_cancelling_a_run_leaves_no_guard_behind(case):
    """The cleanup of a tool runs under its own guard."""
    told = case.run(cancelling_story)
    assert told["ended"] == "CancelledError"
    assert told["guarded"] is False
    assert told["seen"] == ["module:demo", "agent:demo.slow", "tool:demo.sleep"]
    assert told["left"] == 0


RECURSION = """
@sdk.action("go")
async def go():
    return await ai.run_tool("again", {})

@ai.tool("again")
async def again() -> str:
    return await ai.run_tool("again", {})
"""


def recursion_story(world):
    kit = world.load(KIT)
    host = kit["Host"](world, {"demo": RECURSION})
    return host.told(host.act("demo", "go"))


def test_subjects_that_call_each_other_without_end_are_stopped(case):
    """Long before Python's own limit."""
    told = case.run(recursion_story)
    assert "24" in told["text"]
