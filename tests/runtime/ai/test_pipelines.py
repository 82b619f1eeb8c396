"""Pipelines: the result of one step is the input of the next, and a failure names its step."""

from __future__ import annotations

import os

from tests.services.golden import sentence

KIT = os.path.join(os.path.dirname(__file__), "kit.py")

STEPS = """
def double(value):
    return value * 2

async def wrap(value):
    return {"left": value, "right": 1}

def inside(value):
    return [str(part) for part in __import__("democrai_sandbox").current_guard().subject_chain]

@sdk.action("run")
async def run(name: str, params: dict):
    return list(await ai.run_pipeline(name, params))[:3]

@ai.tool("count")
async def count(text: str) -> int:
    return len(text)

@ai.tool("add")
def add(left: int, right: int) -> int:
    return left + right

@ai.tool("fail")
async def fail(value: int) -> int:
    raise ValueError("no paper")

@ai.tool("peek")
async def peek(value: int) -> str:
    return open("/etc/shadow").read()

@ai.agent("say", model="script", tools=["count"])
async def say(number: int):
    return f"say {number}"

@ai.pipeline("all", steps=["count", double, wrap, "tool:add", "say", "inner"])
async def all_steps(text: str): ...

@ai.pipeline("inner", steps=[inside])
def inner(text: str):
    return [text, text]

@ai.pipeline("begins", steps=[double])
async def begins(text: str):
    return text.upper()

@ai.pipeline("begins_badly", steps=[double])
async def begins_badly(text: str):
    raise ValueError("not today")

@ai.pipeline("fails", steps=["count", "fail"])
async def fails(text: str): ...

@ai.pipeline("own_fails", steps=[lambda value: 1 / 0])
async def own_fails(text: str): ...

@ai.pipeline("denied", steps=["count", "peek"])
async def denied(text: str): ...

@ai.pipeline("no_fit", steps=["count", "count"])
async def no_fit(text: str): ...

@ai.pipeline("no_object", steps=["count", "add"])
async def no_object(text: str): ...

@ai.pipeline("deep", steps=["pipeline:fails"])
async def deep(text: str): ...

@ai.pipeline("slow", steps=["sleep"], timeout=0.3)
async def slow(text: str): ...

@ai.tool("sleep")
async def sleep(text: str) -> None:
    import asyncio
    await asyncio.sleep(30)
"""


def pipeline_story(world):
    kit = world.load(KIT)
    names = (
        *("all", "begins", "begins_badly", "fails", "own_fails", "denied", "no_fit", "no_object", "deep", "slow"),
        "nowhere",
    )
    script = [kit["calls"](("count", {"text": "abc"})), lambda messages: f"said after {messages[-1].text}"]
    host = kit["Host"](world, {"demo": STEPS}, {"script": kit["ScriptedModel"](script)})
    told = {name: host.told(host.act("demo", "run", name=name, params={"text": "four"})) for name in names}
    runs = {f"host {name}": host.ai.run("pipeline", f"demo.{name}", {"text": "four"}, kit["UMA"]) for name in names[:6]}
    told |= {name: host.told(run) for name, run in runs.items()}
    told["bad"] = host.told(host.act("demo", "run", name="all", params={"txt": 1}))
    return {"broken": host.broken, "left": kit["states_left"](), **told}


def test_values_go_from_step_to_step_and_failures_name_theirs(case):
    """An object is the next step's arguments by name, any other value that of its only parameter."""
    told = case.run(pipeline_story)
    assert told["broken"] == {}
    assert told["all"] == [["module:demo", "pipeline:demo.all", "pipeline:demo.inner"], 2, 1]
    assert told["begins"] == ["FOURFOUR", 0, 0]
    assert told["host begins_badly"]["text"] == "ValueError: not today"
    # Errors raised in guarded code arrive as failures of the module; the host that runs a pipeline sees the original.
    assert "ValueError: no paper" in told["fails"]["text"]
    assert told["host fails"]["code"] == "step_failed"
    assert told["host denied"]["chain"] == ["module:demo", "pipeline:demo.denied", "tool:demo.peek"]
    assert told["denied"]["chain"] == told["host denied"]["chain"]
    [note] = told["host denied"]["notes"]
    for text, steps in (
        (note, ["2 (tool:demo.peek)"]),
        (told["fails"]["text"], ["2 (tool:demo.fail)"]),
        (told["host own_fails"]["text"], ["1 (function:<lambda>)", "ZeroDivisionError"]),
        (told["no_fit"]["text"], ["2 (tool:demo.count)", "/text: "]),
        (told["no_object"]["text"], ["2 (tool:demo.add)"]),
        (told["deep"]["text"], ["1 (pipeline:demo.fails)", "2 (tool:demo.fail)"]),
        (told["slow"]["text"], ["demo.slow", "0.3"]),
        (told["nowhere"]["text"], ["'nowhere'"]),
    ):
        assert all(part in text for part in steps), text
    assert told["nowhere"]["code"] == "asset_unknown"
    assert told["bad"]["error"] == "InvalidInputError"
    assert "'text'" in told["bad"]["text"]
    for name in ("no_fit", "no_object", "slow"):
        sentence(name, told[name]["text"])
    assert told["left"] == 0
