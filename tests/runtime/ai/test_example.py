"""The example module `assistant`, as in a host: its permitted operations, and the forbidden attempts of its tool."""

from __future__ import annotations

import os
import shutil

HERE = os.path.dirname(__file__)
STAGE = os.path.join(os.path.dirname(HERE), "separate_host.py")
EXAMPLE = os.path.join(HERE, *[".."] * 3, "examples", "extensions", "modules", "assistant")


def example_story(world):
    import asyncio

    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.runtime import Runtime, RuntimeSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings
    from democrai_sandbox.runtime.ai.scripted import ScriptedModel, calls

    stage = world.load(STAGE)["Stage"](world.base)
    shutil.copytree(EXAMPLE, stage.modules / "assistant")
    (stage.base / "state").mkdir()
    state = str(stage.base / "state")
    shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(state, "access.db"))
    model = ScriptedModel(
        [
            calls(("list_notes", {})),
            lambda messages: calls(("read_note", {"name": "garden"}), ("read_note", {"name": "../manifest"})),
            lambda messages: calls(("count_words", {"text": messages[-2].text})),
            lambda messages: f"From {messages[3].text}:\n  {messages[-1].text} words",
        ]
    )
    settings = RuntimeSettings(modules_path=str(stage.modules), data_dir=str(stage.data), call_timeout=5.0)
    access = Access(
        AccessSettings(database=f"sqlite:///{state}/access.db", key_file=f"{state}/keys", poll_seconds=0.1),
        GuardSurroundings(),
    )
    runtime = Runtime(settings, access, models={"default": model}, protected_paths=[state])

    async def story():
        async with runtime:
            return {
                "problems": [str(problem) for found in runtime.extensions for problem in found.problems],
                "ask": await runtime.modules.action("assistant", "ask", {"question": "Beans?"}, stage.uma()),
                "bad": await runtime.modules.command("assistant", "misbehave", {}, stage.uma()),
                "direct": (await runtime.ai.run("tool", "assistant.list_notes", {}, stage.uma())).value,
            }

    with access:
        return asyncio.run(story())


def test_the_example_answers_from_its_notes_and_no_further(case):
    """Each tool has its declared part of its module's folder, which is closed to all other subjects."""
    told = case.run(example_story)
    assert told["problems"] == []
    assert told["ask"]["answer"] == 'From ["garden", "kitchen"]: 12 words'
    [refused] = told["ask"]["refused"]
    assert refused.startswith("sandbox_filesystem_denied:assistant.read_note:")
    assert refused.endswith("/assistant/manifest.txt")
    assert told["direct"] == ["garden", "kitchen"]
    assert set(told["bad"].values()) == {"FilesystemDenied", "NetworkDenied", "SubprocessDenied"}
    assert told["bad"]["connect"] == "NetworkDenied"
    assert told["bad"]["start a program"] == "SubprocessDenied"
