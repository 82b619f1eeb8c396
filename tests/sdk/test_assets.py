"""Tools, agents, pipelines and tasks of a module under test: the same results and limits as in a host."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.errors import ExtensionFailed, FilesystemDenied, InvalidInputError
from democrai_sandbox.errors.services import StepFailed
from democrai_sandbox.sdk import testing

CODE = """
from pathlib import Path

from democrai_sandbox import sdk

DECLARED = [{{"resource_type": "filesystem", "operation": "read", "target": "{declared}"}}]


@sdk.tool("add")
def add(first: int, second: int) -> int:
    return first + second


@sdk.tool("read")
def read(path: str) -> str:
    return Path(path).read_text()


@sdk.tool("closed", access=[])
def closed(path: str) -> str:
    return Path(path).read_text()


@sdk.tool("narrow", access=DECLARED)
def narrow(path: str) -> str:
    return Path(path).read_text()


@sdk.tool("fail")
def fail() -> None:
    raise RuntimeError("no")


@sdk.pipeline("double", steps=["tool:add"])
def double(number: int) -> dict:
    return {{"first": number, "second": number}}


@sdk.pipeline("broken", steps=["tool:fail"])
def broken() -> dict:
    return {{}}


@sdk.pipeline("reading", steps=["tool:closed"])
def reading(path: str) -> str:
    return path


@sdk.agent("writer", model="any")
def writer(text: str) -> str:
    return text


@sdk.action("programs")
def programs():
    asked = {{"resource_type": "system_dependency", "operation": "execute"}}
    return [sdk.access.check_external_access(**asked, target=name).allowed for name in ("ffmpeg", "other")]


@sdk.action("direct")
def direct(path):
    return Path(path).read_text()


@sdk.action("through")
async def through(path):
    return await sdk.ai.run_tool("closed", {{"path": path}})


@sdk.task("work")
def work(fraction=0.5):
    sdk.tasks.progress(0.0, "begun")
    sdk.tasks.progress(fraction, "half")
    return "done"
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Make a module that may read a folder, with a tool that may read one file of that folder."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        (tmp_path / "data" / name).write_text(name)
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "module.py").write_text(CODE.format(declared=tmp_path / "data" / "one"))
    entry = {"resource_type": "filesystem", "operation": "read", "target": str(tmp_path / "data")}
    program = {"resource_type": "system_dependency", "operation": "execute", "target": "ffmpeg"}
    (tmp_path / "module" / "manifest.json").write_text(json.dumps({"name": "demo", "access": [entry, program]}))
    return tmp_path


@pytest.fixture
def module(world):
    with testing.module(world / "module") as found:
        yield found


# ---- results ---------------------------------------------------------------------------------------------------------


def test_a_tool_returns_its_plain_result(module):
    assert module.tool("add", first=1, second=2) == 3


def test_a_pipeline_returns_its_plain_result(module):
    assert module.call("pipeline", "double", number=4) == 8


def test_an_agent_returns_its_plain_result(world):
    """The test replaces the model, like every service of a host."""

    def model(view, name, messages, tools):
        return ["said", f"{name}: {messages[-1][1]}", []]

    with testing.module(world / "module", services={"ai.complete": model}) as module:
        assert module.call("agent", "writer", text="hello") == "any: hello"


def test_a_denial_in_a_tool_is_raised_as_the_typed_denial(module, world):
    with pytest.raises(FilesystemDenied) as denial:
        module.tool("read", path="/etc/passwd")
    assert (denial.value.subject_kind, denial.value.subject) == ("tool", "demo.read")
    assert denial.value.target == "/etc/passwd"


def test_what_a_tool_raises_is_raised_as_in_an_action(module):
    with pytest.raises(ExtensionFailed) as failure:
        module.tool("fail")
    assert failure.value.kind == "RuntimeError"


def test_arguments_that_do_not_fit_are_refused_by_name(module):
    with pytest.raises(InvalidInputError) as refusal:
        module.tool("add", first="x", second=2)
    assert [problem.pointer for problem in refusal.value.problems] == ["/first"]


def test_a_step_that_fails_is_named(module):
    with pytest.raises(StepFailed):
        module.call("pipeline", "broken")


# ---- declarations of a tool ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tool", "action", "pipeline"])
def test_a_tool_with_an_empty_list_reads_nothing_that_its_module_may_read(module, world, way):
    path = str(world / "data" / "one")
    name = {"tool": "closed", "action": "through", "pipeline": "reading"}[way]
    assert module.action("direct", path=path) == "one"
    with pytest.raises((FilesystemDenied, ExtensionFailed)) as failure:
        module.call(way, name, path=path)
    assert "sandbox_filesystem_denied:demo.closed:" in str(failure.value)
    assert ("filesystem", "read", path) in module.denied


def test_a_tool_has_exactly_what_it_declares(module, world):
    assert module.tool("narrow", path=str(world / "data" / "one")) == "one"
    with pytest.raises(FilesystemDenied):
        module.tool("narrow", path=str(world / "data" / "two"))
    module.assert_accesses([("filesystem", "read", str(world / "data" / name)) for name in ("one", "two")])


def test_a_tool_without_a_list_has_what_its_module_has(module, world):
    assert module.tool("read", path=str(world / "data" / "two")) == "two"
    module.assert_accesses([("filesystem", "read", str(world / "data" / "two"))])


def test_a_tool_that_declares_more_than_its_module_is_refused(world):
    (world / "module" / "manifest.json").write_text('{"name": "demo"}')
    with pytest.raises(InvalidInputError) as refusal, testing.module(world / "module"):
        pass
    assert [problem.pointer for problem in refusal.value.problems] == ["/tool/narrow/access"]


def test_a_recording_keeps_a_tool_to_its_list(world):
    """The manifest cannot extend it; its declarations have to be in the manifest."""
    (world / "module" / "manifest.json").write_text('{"name": "demo"}')
    one, two = str(world / "data" / "one"), str(world / "data" / "two")
    with testing.module(world / "module", observe=True) as module:
        assert module.tool("narrow", path=one) == "one"
        with pytest.raises(FilesystemDenied):
            module.tool("narrow", path=two)
        with pytest.raises(FilesystemDenied):
            module.tool("closed", path=one)
        proposal = module.proposal()
    assert [entry["target"] for entry in proposal.value["access"]] == [one]


def test_declared_programs_are_listed_like_all_that_is_used(module):
    assert module.action("programs") == [True, False]
    module.assert_accesses([("system_dependency", "execute", name) for name in ("ffmpeg", "other")])
    assert module.denied == {("system_dependency", "execute", "other")}


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_tells_its_progress(module):
    assert module.task("work") == "done"


def test_progress_is_checked_as_in_a_host(module):
    with pytest.raises((InvalidInputError, ExtensionFailed)):
        module.task("work", fraction=7)
