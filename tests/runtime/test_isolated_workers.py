"""``isolation: process``: the same calls and the same errors, in a separate process."""

from __future__ import annotations

import os

STAGE = os.path.join(os.path.dirname(__file__), "separate_host.py")

MODULE = """
import os

@sdk.action("who")
async def who(): return [list(sdk.request()), str(sdk.data_dir())]

@sdk.action("pid")
def pid(): return os.getpid()

@sdk.action("read")
def read(path): return open(path).read()

@sdk.action("raises")
async def raises(): raise ValueError("no")

@sdk.action("gives")
def gives(): return {"x": object()}

@sdk.action("imports")
def imports(): import ctypes

@sdk.action("starts")
def starts():
    import subprocess
    subprocess.run(["/bin/true"])

@sdk.action("asks")
def asks(url):
    decision = sdk.access.check_external_access(resource_type="network", operation="receive", target=url)
    return [decision.allowed, str(decision.code)]

@sdk.action("prints")
def prints(): print("hello")

@sdk.tool("where", access=[{"resource_type": "filesystem", "operation": "read", "target": "%(declared)s"}])
def where(path: str) -> list:
    from democrai_sandbox.guard import current_guard
    try:
        text = open(path).read()
    except PermissionError as denial:
        text = str(denial)
    return [os.getpid(), text, [str(one) for one in current_guard().subject_chain]]

@sdk.pipeline("all", steps=["tool:where"])
def everything(path: str): return {"path": path}

@sdk.action("tool")
async def tool(path): return await sdk.ai.run_tool("where", {"path": path})

@sdk.action("pipeline")
async def pipeline(path): return (await sdk.ai.run_pipeline("all", {"path": path})).value
"""


def same_calls(world):
    stage = world.load(STAGE)["Stage"](world.base)
    outside = stage.base / "outside"
    outside.mkdir()
    for name in ("declared", "other"):
        (outside / name).write_text(name)
    code = MODULE % {"declared": outside / "declared"}
    rule = ("filesystem", "read", outside)
    stage.module("near", code, rule)
    stage.module("far", code, rule)
    (stage.base / "hidden").write_text("hidden")
    calls = [
        ("who", {}),
        ("read", {"path": str(outside / "other")}),
        ("read", {"path": str(stage.base / "hidden")}),
        ("read", {"path": str(stage.modules / "near" / "module.py")}),
        ("raises", {}),
        ("gives", {}),
        ("imports", {}),
        ("starts", {}),
        ("asks", {"url": "https://example.com/x"}),
        ("prints", {}),
        ("missing", {}),
        ("tool", {"path": str(outside / "declared")}),
        ("tool", {"path": str(outside / "other")}),
        ("pipeline", {"path": str(outside / "declared")}),
    ]

    async def story(stage):
        found = {}
        for module in ("near", "far"):
            came = [await stage.action(module, name, **params) for name, params in calls]
            found[module] = [came, stage.runtime.output.of(f"module:{module}").text]
        return [found, [(await stage.action(module, "pid")) == os.getpid() for module in ("near", "far")]]

    return stage.play(story, isolation={"module:far": "process"})


def test_a_module_in_a_process_of_its_own_answers_as_it_would_in_the_host(case):
    found, here = case.run(same_calls)
    assert here == [True, False]
    near, far = found["near"], found["far"]

    def plainer(value):
        return str(value).replace("far", "near")

    for mine, other in zip(near[0][:11], far[0][:11], strict=True):
        if isinstance(mine, list) and mine[:1] == ["FilesystemDenied"] and "module.py" in mine[1]:
            continue
        assert plainer(other) == plainer(mine) or "module.py" in plainer(other)
    assert near[1] == far[1] == "hello\n"
    for mine, other in zip(near[0][11:], far[0][11:], strict=True):
        assert plainer(other[1:]) == plainer(mine[1:])


def one_tool(world):
    stage = world.load(STAGE)["Stage"](world.base)
    outside = stage.base / "outside"
    outside.mkdir()
    for name in ("declared", "other"):
        (outside / name).write_text(name)
    stage.module("demo", MODULE % {"declared": outside / "declared"}, ("filesystem", "read", outside))

    async def story(stage):
        came = [
            await stage.action("demo", "tool", path=str(outside / "declared")),
            await stage.action("demo", "tool", path=str(outside / "other")),
            await stage.action("demo", "pipeline", path=str(outside / "declared")),
            await stage.action("demo", "tool", path=5),
        ]
        host = await stage.runtime.ai.run("tool", "demo.where", {"path": str(outside / "declared")}, stage.uma())
        return [os.getpid(), came, list(host.value)]

    return stage.play(story, isolation={"tool:demo.where": "process"})


def test_a_single_tool_in_a_process_of_its_own_keeps_its_chain_and_its_declarations(case):
    here, (first, second, piped, odd), host = case.run(one_tool)
    chain = ["module:demo", "tool:demo.where"]
    assert first[0] != here
    assert first[1:] == ["declared", chain]
    assert "sandbox_filesystem_denied:demo.where" in second[1]
    assert piped[1:] == ["declared", ["module:demo", "pipeline:demo.all", "tool:demo.where"]]
    assert first[0] == second[0] == piped[0] == host[0]
    assert odd[0] == "InvalidInputError"
