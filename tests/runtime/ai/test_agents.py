"""Loop of an agent: a model only requests tool calls, and receives their results."""

from __future__ import annotations

import json
import os

from tests.services.golden import sentence

KIT = os.path.join(os.path.dirname(__file__), "kit.py")

TOOLS = """
import asyncio, threading

RELEASED = threading.Event()

@sdk.action("release")
async def release():
    RELEASED.set()

@sdk.action("ask")
async def ask(agent: str):
    run = await ai.run_agent(agent, {})
    return [run.value, run.turns, run.tool_calls, [denial["code"] for denial in run.denials]]

@ai.tool("add")
async def add(left: int, right: int = 1) -> int:
    "Add two numbers."
    return left + right

@ai.tool("sync_add")
def sync_add(left: int, right: int) -> int:
    return left + right

@ai.tool("peek")
async def peek() -> str:
    with open("/etc/shadow") as file:
        return file.read()

@ai.tool("fail")
async def fail() -> str:
    raise ValueError("no paper")

@ai.tool("leave")
async def leave() -> str:
    raise SystemExit(3)

@ai.tool("stop")
def stop() -> str:
    raise StopIteration("no more")

@ai.tool("give_up")
async def give_up() -> str:
    raise asyncio.CancelledError

@ai.tool("hang")
async def hang() -> str:
    await asyncio.sleep(60)

@ai.tool("stubborn")
async def stubborn() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "I stay"

@ai.tool("block")
def block() -> str:
    RELEASED.wait(60)
    return "late"

@ai.tool("numbers")
def numbers() -> object:
    return iter([1])

@ai.tool("bytes")
def give_bytes() -> object:
    return b"x"

@ai.tool("long")
async def long() -> str:
    return "x" * 300_000
"""
ALL = [
    "add",
    "sync_add",
    "peek",
    "fail",
    "leave",
    "stop",
    "give_up",
    "hang",
    "stubborn",
    "block",
    "numbers",
    "bytes",
    "long",
]


def agents(scripts, **options):
    """Return the declarations of agents, by the names of their models."""
    more = "".join(f", {key}={value!r}" for key, value in options.items())
    return "".join(
        f"\n@ai.agent({name!r}, model={name!r}, tools={ALL!r}{more})\nasync def agent_{name}():\n    return 'go'\n"
        for name in scripts
    )


def telling_story(world):
    kit = world.load(KIT)
    calls, scripted = kit["calls"], kit["ScriptedModel"]
    last = lambda messages: "|".join(message.text for message in messages if message.role == "tool")
    wishes = {
        "works": [calls(("add", {"left": 2}), ("sync_add", {"left": 2, "right": 3})), last],
        "unknown": [calls(("ad", {})), last],
        "no_json": [calls(("add", "{left: 2")), last],
        "bad": [calls(("add", {"left": "2", "rigth": 3})), last],
        "no_object": [calls(("add", "[1, 2]")), last],
        "huge": [calls(("add", '{"left": NaN}')), last],
        "denied": [calls(("peek", {})), last],
        "fails": [calls(("fail", {})), last],
        "leaves": [calls(("leave", {})), last],
        "stops": [calls(("stop", {})), last],
        "gives_up": [calls(("give_up", {})), last],
        "hangs": [calls(("hang", {})), last],
        "stubborn": [calls(("stubborn", {})), last],
        "blocks": [calls(("block", {})), last],
        "generator": [calls(("numbers", {})), last],
        "bytes": [calls(("bytes", {})), last],
        "long": [calls(("long", {})), lambda messages: str(len(messages[-1].text))],
    }
    slow = {"hangs", "stubborn", "blocks"}
    source = TOOLS + agents(wishes.keys() - slow) + agents(slow, tool_timeout=0.3)
    host = kit["Host"](world, {"demo": source}, {name: scripted(script) for name, script in wishes.items()})
    told = {name: host.told(host.act("demo", "ask", agent=name)) for name in wishes}
    host.told(host.act("demo", "release"))
    return {"broken": host.broken, "left": kit["states_left"](), **told}


def test_what_tools_come_to_is_told_to_the_model_with_a_code(case):
    """Results, unknown names, bad arguments, denials, failures of any kind, and timeouts; the run continues."""
    told = case.run(telling_story)
    assert told.pop("broken") == {}
    assert told.pop("left") == 0
    texts = {name: said[0] for name, said in told.items()}
    assert texts["works"] == "3|5"
    assert texts["stubborn"] == "I stay"
    assert int(texts["long"]) < 101_000
    errors = {
        name: json.loads(text)["error"] for name, text in texts.items() if name not in ("works", "stubborn", "long")
    }
    assert {name: error["code"] for name, error in errors.items()} == {
        "unknown": "unknown_tool",
        **dict.fromkeys(("no_json", "bad", "no_object", "huge"), "invalid_arguments"),
        "denied": "sandbox_filesystem_denied",
        **dict.fromkeys(("fails", "leaves", "stops", "gives_up"), "tool_failed"),
        **dict.fromkeys(("hangs", "blocks"), "tool_timeout"),
        **dict.fromkeys(("generator", "bytes"), "invalid_result"),
    }
    assert told["denied"][3] == ["sandbox_filesystem_denied"]
    values = {
        "unknown": ["'add'"],
        "bad": ["/left: ", "'2'", "'rigth'", "'right'"],
        "denied": ["sandbox_filesystem_denied:demo.peek:/etc/shadow"],
        "fails": ["ValueError: no paper"],
        "leaves": ["SystemExit"],
        "stops": ["StopIteration"],
        "generator": ["list_iterator"],
    }
    for name, parts in values.items():
        for part in parts:
            assert part in errors[name]["message"], name
    for name in ("bad", "no_object", "huge", "gives_up", "bytes"):
        sentence(name, errors[name]["message"])
    assert all(said[1:3] == ([2, 2] if name == "works" else [2, 1]) for name, said in told.items())


def ending_story(world):
    kit = world.load(KIT)
    import asyncio

    from democrai_sandbox.errors import ExternalAccessCheckFailed
    from democrai_sandbox.guard import configure_guard

    class Broken:
        def decide(self, question):
            raise OSError("the database is away")

    configure_guard(decider=Broken())
    calls, scripted, Limits = kit["calls"], kit["ScriptedModel"], kit["AgentLimits"]

    class Raises:
        async def complete(self, messages, tools):
            raise KeyError("sk-secret")

    class Nonsense:
        async def complete(self, messages, tools):
            return "hello"

    class Slow:
        async def complete(self, messages, tools):
            await asyncio.sleep(60)

    forever = [calls(("add", {"left": 1}))] * 50
    models = {
        "endless": scripted(forever),
        "greedy": scripted([calls(*[("add", {"left": 1})] * 5)] * 3),
        "slow": Slow(),
        "raises": Raises(),
        "nonsense": Nonsense(),
        "infrastructure": scripted([calls(("peek", {})), "never"]),
        "runs_out": scripted([]),
    }
    source = TOOLS + agents(models.keys() - {"slow"}, max_turns=3, max_tool_calls=4) + agents(["slow"], timeout=0.5)
    host = kit["Host"](world, {"demo": source}, models)
    return {
        "broken": host.broken,
        **{name: host.told(host.ai.run("agent", f"demo.{name}", {}, kit["UMA"])) for name in models},
        "inside": host.told(host.act("demo", "ask", agent="endless")),
        "late": host.told(host.ai.run("tool", "demo.hang", {}, kit["UMA"], seconds=0.2)),
        "left": kit["states_left"](),
    }


def test_limits_models_and_infrastructure_end_a_run(case):
    """Each has its own error: stopped, model failed, check failed. Errors of a model are not shown."""
    told = case.run(ending_story)
    assert told["broken"] == {}
    assert told["infrastructure"]["error"] == "ExternalAccessCheckFailed"
    assert (told["late"]["error"], told["late"]["code"]) == ("CallTimeout", "extension_timeout")
    for name in ("endless", "greedy", "slow"):
        assert (told[name]["error"], told[name]["code"]) == ("RunStopped", "run_stopped"), name
    for name in ("raises", "nonsense", "runs_out"):
        assert (told[name]["error"], told[name]["code"]) == ("ModelFailed", "model_failed"), name
    assert "KeyError" in told["raises"]["text"]
    assert "sk-secret" not in told["raises"]["text"]
    for name in ("endless", "greedy", "slow", "nonsense", "late"):
        sentence(name, told[name]["text"])
    assert told["endless"]["text"] in told["inside"]["text"]
    assert told["left"] == 0


PROMPTS = """
@ai.agent("nothing", model="echo")
def nothing(city: str):
    "Knows cities."

@ai.agent("text", model="echo", instructions="Be brief.")
def text(city: str):
    return f"Where is {city}?"

@ai.agent("messages", model="echo")
async def messages(city: str):
    return [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}, {"role": "user", "text": city}]

@ai.agent("wrong", model="echo")
async def wrong(city: str):
    return [{"role": "tool", "text": "hi"}]

@ai.agent("fails", model="echo")
async def fails(city: str):
    raise ValueError("no prompt")
"""


def prompt_story(world):
    kit = world.load(KIT)
    import json

    class Echo:
        async def complete(self, messages, tools):
            return kit["Message"]("assistant", json.dumps([message[:2] for message in messages]))

    host = kit["Host"](world, {"demo": PROMPTS}, {"echo": Echo()})
    names = ("nothing", "text", "messages", "wrong", "fails")
    told = {name: host.told(host.ai.run("agent", f"demo.{name}", {"city": "Bern"}, kit["UMA"])) for name in names}
    told["arguments"] = host.told(host.ai.run("agent", "demo.text", {"town": "Bern"}, kit["UMA"]))
    told["broken"] = host.broken
    return told


def test_the_function_of_an_agent_makes_its_prompt(case):
    """A text, messages, or None, which stands for the arguments; its own arguments are checked like a tool's."""
    told = case.run(prompt_story)
    assert told["broken"] == {}
    assert told["nothing"]["value"] == '[["user", "{\\"city\\": \\"Bern\\"}"]]'
    assert told["text"]["value"] == '[["system", "Be brief."], ["user", "Where is Bern?"]]'
    assert told["messages"]["value"].startswith('[["user", "hi"], ["assistant", "hello"]')
    assert told["wrong"]["error"] == "InvalidInputError"
    assert (told["fails"]["error"], told["fails"]["code"]) == ("ExtensionFailed", "extension_failed")
    assert told["fails"]["text"] == "ValueError: no prompt"
    assert told["arguments"]["error"] == "InvalidInputError"
