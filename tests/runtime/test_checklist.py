"""Declaration checklist by row: denied without the declaration, allowed with it, no effect in the wrong place.

Each row runs in a separate host: the real runtime, the access-policy service on SQLite, local servers, real pip, and a
real MCP server.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.services.golden import sentence

HERE = Path(__file__).parent
HOUSE = str(HERE / "host_setup.py")
PACKAGES = str(HERE / "installs" / "packages.py")
INSTALLING = str(HERE / "installs" / "hosting.py")
MCP_SERVER = HERE.parents[1] / "examples" / "extensions" / "mcp" / "server.py"

# Every extension below tries one file and one URL, independent of its manifest.
NEED = """
import urllib.request
from democrai_sandbox import sdk

def need(path, url):
    return {"file": _try(lambda: open(path).read()), "page": _try(lambda: urllib.request.urlopen(url).read().decode())}

def _try(attempt):
    try:
        return attempt()
    except Exception as error:
        return type(error).__name__
"""
SURFACES = """
@sdk.render
def render(path, url):
    return need(path, url)

@sdk.action("act")
async def act(path, url):
    return await sdk.tasks.run_blocking(need, path, url)

@sdk.command("do")
def do(path, url):
    return need(path, url)

@sdk.command("read")
def read(path):
    return open(path).read()
"""
DENIED = {"file": "FilesystemDenied", "page": "NetworkDenied"}
WORKS = {"file": "found", "page": "GET /page"}


def prepared(world):
    """Return a host that is not yet running, the targets of the extensions, and the entries that allow them."""
    use = SimpleNamespace(**world.load(HOUSE))
    house = use.House(world)
    params = {"path": house.file("needed.txt"), "url": f"{house.web.url}/page"}
    declared = [use.entry("read", params["path"]), use.entry("receive", params["url"])]
    return use, house, params, declared


# ---- modules ---------------------------------------------------------------------------------------------------------


def module_row(world):
    use, house, params, declared = prepared(world)
    on_a_tool = f"@sdk.tool('look', access={declared!r})\ndef look() -> str:\n    return ''\n"
    house.extension("bare", NEED + SURFACES)
    house.extension("declared", NEED + SURFACES, access=declared)
    house.extension("tool-only", NEED + SURFACES + on_a_tool)
    house.extension("section", NEED + SURFACES, runtime={"access": declared})

    async def story():
        modules, uma = house.runtime.modules, use.caller()
        out = {"problems": house.problems()}
        for name in ("bare", "declared"):
            out[name] = [
                await modules.render(name, params, uma),
                await modules.action(name, "act", params, uma),
                await modules.command(name, "do", params, uma),
            ]
        out["hint"] = await use.hint_of(modules.command("bare", "read", {"path": params["path"]}, uma))
        return out

    return {**house.serve(story), "asked": house.web.asked}


def test_module_render_action_and_command(case):
    """The module's manifest counts; an entry on a tool, in a section of other kinds, or of another module does not."""
    told = case.run(module_row)
    assert told["bare"] == [DENIED] * 3
    assert told["declared"] == [WORKS] * 3
    assert told["asked"] == ["/page"] * 3
    assert str(case.outside / "needed.txt") in told["hint"]
    sentence("hint for a module", told["hint"], folder=case.base)
    assert sorted(told["problems"]) == ["module:section", "module:tool-only"]
    (section,) = told["problems"]["module:section"]
    assert "/runtime: " in section
    entries = "\n".join(told["problems"]["module:tool-only"])
    sentence("entry on a tool", entries, folder=case.base, also=[(r"(?<=127\.0\.0\.1:)\d+", "port")])


TASK = """
@sdk.task("work")
def work(path, url):
    return need(path, url)

@sdk.task("fetch")
def fetch(url):
    return urllib.request.urlopen(url).read().decode()
"""


def task_row(world):
    use, house, params, declared = prepared(world)
    house.extension("bare", NEED + TASK)
    house.extension("declared", NEED + TASK, access=declared)
    house.extension("on-task", NEED + f"@sdk.task('work', access={declared!r})\ndef work():\n    pass\n")
    url = {"url": params["url"]}

    async def story():
        out = {"problems": house.problems()}
        out["bare"] = await house.task("bare", "work", params)
        out["declared"] = await house.task("declared", "work", params)
        (waiting,) = house.admin("pending_requests").items
        out["chain"] = [list(map(str, waiting.chain)), waiting.origin.user_id, waiting.origin.session_key]
        house.admin("approve_for_session", waiting.id)
        out["approved"] = await house.task("bare", "fetch", url)
        out["other session"] = await house.task("bare", "fetch", url, session_key="s2")
        out["no session"] = await house.task("bare", "fetch", url, session_key="")
        return out

    return house.serve(story)


def test_module_task(case):
    """The same manifest counts. An entry on the task itself does not, nor does an approval for another session."""
    told = case.run(task_row)
    assert told["bare"] == DENIED
    assert told["declared"] == WORKS
    assert list(told["problems"]) == ["module:on-task"]
    assert told["chain"] == [["task:bare.work", "module:bare"], "uma", "s1"]
    assert told["approved"] == "GET /page"
    assert told["other session"] == told["no session"] == "NetworkDenied"


SUBPROCESS = """
import json, subprocess, sys

@sdk.action("run")
async def run(argv):
    return (await sdk.tasks.run_subprocess(argv)).text.strip()

@sdk.action("itself")
def itself(argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout

@sdk.action("child")
async def child(path, url):
    argv = [sys.executable, str(sdk.extension_dir() / "child.py"), path, url]
    return json.loads((await sdk.tasks.run_subprocess(argv)).text)
"""
CHILD = """
import json, sys
from democrai_sandbox import process_guard_context_from_env
print(json.dumps(process_guard_context_from_env().run(need, *sys.argv[1:])))
"""


def subprocess_row(world):
    use, house, params, declared = prepared(world)
    program = house.file("program", "#!/bin/sh\necho started\n")
    os.chmod(program, 0o755)
    rules = {
        "bare": [],
        "declared": [*declared, use.entry("execute", program)],
        "read-only": [use.entry("read", program)],
    }
    for name, access in rules.items():
        folder = house.extension(name, NEED + SUBPROCESS, access=access)
        use.write_text(f"{folder}/child.py", NEED + CHILD)

    async def story():
        out = {"problems": house.problems()}
        for name in rules:
            asked = {
                "run": ("run", {"argv": [program]}),
                "itself": ("itself", {"argv": [program]}),
                "system": ("run", {"argv": ["echo", "started"]}),
                "child": ("child", params),
            }
            out[name] = {
                way: await use.told(house.runtime.modules.action(name, action, given, use.caller()))
                for way, (action, given) in asked.items()
            }
        return out

    return house.serve(story)


def test_sdk_task_subprocess(case):
    """The module's manifest and the SDK's helper count together: one without the other, or `read` alone, does not."""
    told = case.run(subprocess_row)
    assert told["problems"] == {}
    common = {"itself": "SubprocessDenied", "system": "started"}
    assert told["bare"] == {"run": "FilesystemDenied", "child": DENIED, **common}
    assert told["declared"] == {"run": "started", "child": WORKS, **common}
    assert told["read-only"] == {"run": "FilesystemDenied", "child": DENIED, **common}


# ---- engines and extractors ------------------------------------------------------------------------------------------

METHOD = """
@sdk.method("work")
def work(path, url):
    return need(path, url)

@sdk.method("read")
def read(path):
    return open(path).read()
"""


def runtime_row(world):
    use, house, params, declared = prepared(world)
    kind = world.args[0]
    house.extension("bare", NEED + METHOD, kind=kind)
    house.extension("declared", NEED + METHOD, kind=kind, runtime={"access": declared})
    house.extension("install", NEED + METHOD, kind=kind, install={"access": declared})
    house.extension("top", NEED + METHOD, kind=kind, access=declared)

    async def story():
        installed = getattr(house.runtime, f"{kind}s")
        out = {"problems": house.problems(), "before": await use.told(installed.call("bare", "work", params))}
        for name in ("bare", "declared", "install"):
            await installed.install(name)
            out[name] = await installed.call(name, "work", params, use.caller())
        out["pending"] = house.pending()
        out["hint"] = await use.hint_of(installed.call("install", "read", {"path": params["path"]}, use.caller()))
        return out

    return house.serve(story)


@pytest.mark.parametrize("kind", ["engine", "extractor"])
def test_runtime_of_engines_and_extractors(case, kind):
    """The `runtime` section counts; `install` does not, and the top level of the manifest has no such key."""
    told = case.run(runtime_row, kind, **offline())
    assert told["before"] == "NotInstalled"
    assert told["bare"] == DENIED
    assert told["declared"] == WORKS
    assert told["install"] == DENIED
    assert str(case.outside / "needed.txt") in told["hint"]
    sentence(f"hint for an {kind}", told["hint"], folder=case.base)
    assert list(told["problems"]) == [f"{kind}:top"]
    assert sorted(row[0] for row in told["pending"]) == [f"{kind}:bare", f"{kind}:install"]


BACKEND = """
import urllib.request
assert open({path!r}).read() == "found"
assert urllib.request.urlopen({url!r}).read() == b"GET /page"
"""


def install_row(world):
    use, house, params, declared = prepared(world)
    packages = SimpleNamespace(**world.load(PACKAGES))
    world.load(INSTALLING)["know_pip"]()
    kind = world.args[0]
    sections = {
        "bare": {"install": {}},
        "declared": {"install": {"access": declared}},
        "runtime": {"install": {}, "runtime": {"access": declared}},
    }
    for name, manifest in sections.items():
        manifest["install"]["requirements"] = ["./needy"]
        folder = house.extension(name, NEED + METHOD, kind=kind, **manifest)
        packages.source(f"{folder}/needy", "needy", before=BACKEND.format(**params))

    async def story():
        installed = getattr(house.runtime, f"{kind}s")
        out = {"problems": house.problems()}
        for name in sections:
            out[name] = await use.told(installed.install(name))
            out[f"{name} state"] = str(installed.status(name).state)
        out["after"] = await installed.call("declared", "work", params, use.caller())
        out["packages"] = installed.status("declared").packages
        out["why"] = installed.status("bare").problem
        return out

    return house.serve(story)


@pytest.mark.parametrize("kind", ["engine", "extractor"])
def test_install_of_engines_and_extractors(equipped_case, kind):
    """The `install` section counts; `runtime` does not. The rights of the installation end with it."""
    told = equipped_case.run(install_row, kind, **offline())
    assert told["problems"] == {}
    assert (told["bare"], told["bare state"]) == ("InstallFailed", "missing")
    assert (told["runtime"], told["runtime state"]) == ("InstallFailed", "missing")
    assert told["declared state"] == "ready"
    assert "needy==1.0" in told["packages"]
    assert "sandbox_filesystem_denied:bare:" in told["why"], told["why"]
    assert told["after"] == DENIED


def offline():
    """Return the variables of a host whose pip has no index."""
    return {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


# ---- MCP -------------------------------------------------------------------------------------------------------------

MCP = """
@sdk.action("add")
async def add(server):
    return (await sdk.mcp.call_tool(server, "add", {"a": 2, "b": 3}))["content"][0]["text"]

@sdk.action("fetch")
def fetch(url):
    return urllib.request.urlopen(url).read().decode()
"""


def mcp_row(world):
    use, house, params, _ = prepared(world)
    endpoint, restless = world.args
    elsewhere = "http://127.0.0.2:9/collect"
    wide = [use.entry(operation, url) for operation in ("receive", "send") for url in (endpoint, elsewhere)]
    house.extension("wide", NEED + MCP, access=wide)
    house.extension("bare", NEED + MCP)

    async def story():
        def act(name, action="add", **params):
            return use.told(house.runtime.modules.action(name, action, params, use.caller()))

        out = {"problems": house.problems(), "unregistered": await act("wide", server="calculator")}
        house.register("calculator", endpoint)
        house.register("sleeping", endpoint, enabled=False)
        house.register("restless", restless)
        out["registered"] = [await act("wide", server="calculator"), await act("bare", server="calculator")]
        out["disabled"] = await act("wide", server="sleeping")
        out["redirected"] = await act("wide", server="restless")
        out["module itself"] = await act("bare", "fetch", url=endpoint)
        house.decide("denial", "module:bare", "network", "send", endpoint)
        out["another denied"] = await act("bare", server="calculator")
        house.decide("denial", "mcp:calculator", "network", "send", endpoint)
        out["denied"] = [await act("wide", server="calculator"), await act("bare", server="calculator")]
        return out

    return house.serve(story)


@contextlib.contextmanager
def mcp_server():
    """Run a real server in a separate process; yield its origin."""
    command = [sys.executable, str(MCP_SERVER), "streamable_http", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_mcp(mcp_case):
    """The registry and decisions about the server count; declarations of the calling module do not."""
    with mcp_server() as origin:
        told = mcp_case.run(mcp_row, f"{origin}/mcp", f"{origin}/restless")
    assert told["problems"] == {}
    assert told["unregistered"] == "McpUnknown"
    assert told["registered"] == ["5", "5"]
    assert told["disabled"] == "McpDisabled"
    assert told["redirected"] == "McpRedirected"
    assert told["module itself"] == "NetworkDenied"
    assert told["another denied"] == "5"
    assert told["denied"] == ["NetworkDenied", "NetworkDenied"]
