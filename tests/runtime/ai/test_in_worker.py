"""A module in a separate process: its tools, agents and pipelines work the same, and the models stay with the host."""

from __future__ import annotations

import os
import shutil

from tests.services.golden import sentence

STAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "separate_host.py")

MODULE = """
import os
from democrai_sandbox.sdk import ai

@sdk.action("go")
async def go(path: str):
    run = await ai.run_pipeline("monthly", {"path": path})
    return [run.value, [denial["subject_chain"] for denial in run.denials]]

@sdk.action("pid")
async def pid():
    return [os.getpid(), await ai.run_tool("process", {})]

@ai.tool("process")
def process() -> int:
    return os.getpid()

@ai.pipeline("monthly", steps=["writer"])
async def monthly(path: str): ...

@ai.agent("writer", model="script", tools=["peek"])
async def writer(path: str):
    return path

@ai.agent("fails", model="broken")
async def fails():
    return "go"

@ai.agent("locked", model="far", access=[])
async def locked():
    return "go"

@ai.agent("inherits", model="far")
async def inherits():
    return "go"

@ai.agent("declared", model="far", access=[
    {"resource_type": "network", "operation": "send", "target": "http://127.0.0.1:9/v1/chat/completions"}])
async def declared():
    return "go"

@ai.tool("peek", access=[])
async def peek(path: str) -> str:
    with open(path) as file:
        return file.read()

@ai.tool("ask_model", access=[])
async def ask_model(name: str) -> str:
    from democrai_sandbox.runtime import sdk_services
    return str(await sdk_services.call("ai.complete", name, [], []))

@sdk.action("steal")
async def steal():
    return await ai.run_tool("ask_model", {"name": "script"})
"""
BEYOND = """
@sdk.tool("x", access=[{"resource_type": "network", "operation": "send", "target": "https://a.example.com"}])
async def x(): ...
"""
BORROWS = """
@sdk.agent("x", model="script", tools=["beyond.x"])
async def x(): ...
"""
NO_MODEL = """
@sdk.agent("x", model="scrpt")
async def x(): ...

@sdk.render
def render():
    return "shown"
"""


def apart_story(world):
    import asyncio

    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.errors.services import ModelFailed
    from democrai_sandbox.runtime import Runtime, RuntimeSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings
    from democrai_sandbox.runtime.ai.openai import OpenAiModel
    from democrai_sandbox.runtime.ai.scripted import ScriptedModel, calls

    class Broken:
        async def complete(self, messages, tools):
            raise ModelFailed("broken")

    stage = world.load(STAGE)["Stage"](world.base)
    target = "http://127.0.0.1:9/v1/chat/completions"
    stage.module("demo", MODULE, ("filesystem", "read", world.root), ("network", "send", target))
    stage.module("beyond", BEYOND)
    stage.module("no-model", NO_MODEL)
    stage.module("borrows", BORROWS)
    state = stage.base / "state"
    state.mkdir()
    shutil.copyfile(os.environ["PREPARED_DATABASE"], state / "access.db")
    models = {
        "script": ScriptedModel(
            [
                lambda messages: calls(("peek", {"path": messages[-1].text})),
                lambda messages: messages[-1].text,
            ]
        ),
        "broken": Broken(),
        "far": OpenAiModel("http://127.0.0.1:9/v1", model="m", timeout=2),
    }
    isolation = {f"module:{name}": "process" for name in ("demo", "beyond", "no-model", "borrows")}
    settings = RuntimeSettings(
        modules_path=str(stage.modules), data_dir=str(stage.data), call_timeout=10.0, isolation=isolation
    )
    access = Access(
        AccessSettings(database=f"sqlite:///{state}/access.db", key_file=f"{state}/keys", poll_seconds=0.1),
        GuardSurroundings(),
    )
    runtime = Runtime(settings, access, models=models, protected_paths=[str(state)])

    async def story():
        async with runtime:
            uma = stage.uma()
            action = lambda name, **params: stage.told(runtime.modules.action("demo", name, params, uma))
            run = lambda kind, name, **params: stage.told(runtime.ai.run(kind, f"demo.{name}", params, uma))
            return {
                "problems": {
                    found.name: [[problem.pointer, str(problem)] for problem in found.problems]
                    for found in runtime.extensions
                },
                "no model": [
                    await stage.told(runtime.modules.render("no-model", {}, uma)),
                    await stage.told(runtime.ai.run("agent", "no-model.x", {}, uma)),
                ],
                "here": os.getpid(),
                "pid": await action("pid"),
                "go": await action("go", path=world.secret),
                "run": await run("agent", "writer", path=world.secret),
                "tool": await run("tool", "process"),
                "denied": await run("tool", "peek", path=world.secret),
                "bad": await run("tool", "peek", pth=1),
                "fails": await run("agent", "fails"),
                "locked": await run("agent", "locked"),
                "declared": await run("agent", "declared"),
                "inherits": await run("agent", "inherits"),
                "steal": await action("steal"),
            }

    with access:
        return asyncio.run(story())


def test_a_module_in_a_worker_runs_its_assets_there(case):
    """The same calls, chains and errors; an invalid declaration breaks the module as in the host's process."""
    told = case.run(apart_story)
    assert told["problems"].pop("demo") == told["problems"].pop("no-model") == []
    problems = {name: found for name, [found] in told["problems"].items()}
    values = {
        "beyond": ["beyond.x", "network", "send", "https://a.example.com"],
        "borrows": ["'beyond.x'"],
    }
    for name, parts in values.items():
        for part in parts:
            assert part in problems[name][1], name
    assert "/tool/x/access: " in problems["beyond"][1]
    shown, failed = told["no model"]
    assert (shown, failed[0]) == ("shown", "ModelFailed")
    assert all(part in failed[1] for part in ("'scrpt'", "'script'", "extensions.models"))
    here, there = told["here"], told["pid"]
    assert there[0] == there[1] != here
    assert told["tool"][0] == there[0]
    chain = ["module:demo", "pipeline:demo.monthly", "agent:demo.writer", "tool:demo.peek"]
    assert "sandbox_filesystem_denied:demo.peek:" in told["go"][0]
    assert told["go"][1] == [chain]
    assert told["run"][3][0]["subject_chain"] == [chain[0], *chain[2:]]
    assert told["denied"][0] == "FilesystemDenied"
    assert told["bad"][0] == "InvalidInputError"
    assert told["fails"] == ["ModelFailed", "broken"]
    assert told["locked"][0] == "NetworkDenied"
    for name in ("declared", "inherits"):
        assert told[name][0] == "ModelFailed"
        assert "Connection refused" in told[name][1]
    sentence("steal", told["steal"][1])
