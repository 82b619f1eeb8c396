"""The declaration checklist: for each runtime path, the explanation names the place to look at first, and it helps.

Modules and their tasks are in ``test_modules``: here are programs that a module starts, engines and extractors while
they serve and while they are installed, and MCP servers.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runtime.installs import packages
from tests.services.forks import HostCase
from tests.services.golden import sentence
from tests.services.rows import rows
from tests.troubleshooting import apply_entry

TROUBLE = str(Path(__file__).with_name("failing_application.py"))
INSTALLING = str(Path(__file__).parents[1] / "runtime" / "installs" / "hosting.py")
KINDS = ("engine", "extractor")
METHOD = """
import subprocess, urllib.request
from democrai_sandbox import sdk

@sdk.method("fetch")
def fetch(url):
    return urllib.request.urlopen(url, timeout=30).read().decode()

@sdk.method("start")
def start():
    subprocess.run(["true"])

@sdk.method("read")
def read(path):
    with open(path) as file:
        return file.read()
"""
MODULE = """
import sys
from democrai_sandbox import sdk

@sdk.action("run")
async def run(program):
    return (await sdk.tasks.run_subprocess([program])).text.strip()

@sdk.action("call")
async def call(server):
    return await sdk.mcp.call_tool(server, "add", {"a": 2, "b": 3})
"""
BACKEND = """
import subprocess
subprocess.run(["true"], check=True)
os.close(os.open(".", os.O_RDONLY, dir_fd=os.open(os.getcwd(), os.O_RDONLY)))
open({path!r}).read()
"""
"""What an installation may do without being told, and then something that it has to declare."""
NOBODY_THERE = "http://127.0.0.1:9/v1/models"
ENDPOINT = "http://127.0.0.1:9/mcp"


def attempts(world):
    """Have each path of the runtime be stopped, or not; for each, what is said about it."""
    use = SimpleNamespace(**world.load(TROUBLE))
    path, program = world.args
    world.load(INSTALLING)["know_pip"]()

    async def installed(app, kind, name):
        """Install something; return what its failure prints, and what is said about that."""
        told = await app.told(getattr(app.runtime, f"{kind}s").install(name))
        return {"value": "ready"} if "value" in told else told

    async def story(app):
        out = {"program": await app.action("reports", "run", {"program": program})}
        for kind in ("engine", "extractor"):
            await getattr(app.runtime, f"{kind}s").install("voice")
            for name, method, params in (
                (kind, "read", {"path": path}),
                (f"{kind} fetch", "fetch", {"url": NOBODY_THERE}),
                (f"{kind} start", "start", {}),
            ):
                work = getattr(app.runtime, f"{kind}s").call("voice", method, params, use.uma())
                out[name] = await app.told(work)
            out[f"{kind} install"] = await installed(app, kind, "needy")
        return out

    return use.Application(world.base).play(story)


def servers(world):
    """Call a server that is not registered, one that is denied, and the same when that was revoked."""
    use = SimpleNamespace(**world.load(TROUBLE))
    from datetime import UTC, datetime

    from democrai_sandbox.policy import Subject

    def call(app):
        return app.action("reports", "call", {"server": "sums"})

    async def story(app):
        out = [await call(app)]
        entry = {"name": "sums", "transport": "streamable_http", "endpoint_url": ENDPOINT, "timeout_ms": 10_000}
        app.runtime.store.add_mcp_server(entry, now=datetime.now(UTC))
        about = {"resource_type": "network", "operation": "send", "target": ENDPOINT}
        made = app.admin("decide_unasked", Subject.parse("mcp:sums"), effect="denial", **about).decision
        out += [made.id, await call(app)]
        app.admin("revoke", made.id)
        return [*out, await call(app)]

    return use.Application(world.base).play(story)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A module, and of each other kind one that serves and one whose installation needs a file."""
    base = tmp_path_factory.mktemp("checklist")
    case = HostCase(base)
    path, program = base / "outside" / "needed", base / "outside" / "program"
    path.write_text("found")
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    rule = {"resource_type": "filesystem", "operation": "read", "target": str(path)}
    apply_entry.extension(base, "module", "reports", MODULE)
    for kind in KINDS:
        apply_entry.extension(base, kind, "voice", METHOD, install={"access": [rule]})
        wrong = {"install": {"requirements": ["./needed"]}, "runtime": {"access": [rule]}}
        folder = apply_entry.extension(base, kind, "needy", METHOD, **wrong)
        packages.source(folder / "needed", "needed", before=BACKEND.format(path=str(path)))
    return SimpleNamespace(case=case, base=base, path=str(path), program=str(program))


@pytest.fixture(scope="module")
def walk(places):
    """What happened before the fixes, and after them."""
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    arguments = (attempts, places.path, places.program)
    found = SimpleNamespace(before=places.case.run(*arguments, timeout=180, **offline))
    apply_entry.declare(found.before["program"])
    for kind in KINDS:
        apply_entry.declare(found.before[kind])
        apply_entry.declare(found.before[f"{kind} fetch"])
        apply_entry.declare(found.before[f"{kind} install"], "read")
    found.after = places.case.run(*arguments, timeout=180, **offline)
    return found


def test_a_program_of_a_task_is_declared_by_its_module(walk, places):
    """The manifest of the module, for ``execute``; started by the SDK, it then runs."""
    told = walk.before["program"]
    assert told["line"] == f"sandbox_filesystem_denied:reports:{places.program}"
    (now,) = told["now"]
    assert now["entry"]["operation"] == "execute"
    assert (now["subject"], Path(now["file"]).parts[-3:]) == ("module:reports", ("modules", "reports", "manifest.json"))
    sentence("program", now["advice"], folder=places.base)
    assert walk.after["program"] == {"value": "started"}


@rows("kind", KINDS)
def test_what_serves_has_the_runtime_section(walk, places, kind):
    """An entry in ``install`` does not count for what serves, and the explanation says that it is there."""
    (now,) = walk.before[kind]["now"]
    assert (now["subject"], now["installing"]) == (f"{kind}:voice", False)
    assert now["answers"]["declared"] == "silent"
    assert '"runtime"' in now["advice"] and '"install"' not in now["advice"]
    sentence(f"{kind} declared", f"{now['layers']['declared']}\n{now['advice']}", folder=places.base)
    assert walk.after[kind] == {"value": "found"}


@rows("kind", KINDS)
def test_a_stable_target_is_declared_for_what_serves(walk, kind):
    """The entry goes into the same section; then the request is sent, whether somebody is there or not."""
    told = walk.before[f"{kind} fetch"]
    # wording: the contract's
    assert told["line"] == f"External URL is locked. (sandbox_network_denied:voice:{NOBODY_THERE})"
    (now,) = told["now"]
    assert now["entry"] == {"resource_type": "network", "operation": "receive", "target": NOBODY_THERE}
    assert '"runtime"' in now["advice"] and f"{kind} voice" in now["advice"]
    assert os.strerror(errno.ECONNREFUSED) in walk.after[f"{kind} fetch"]["line"]


@rows("kind", KINDS)
def test_what_serves_starts_no_programs(walk, kind):
    """Programs are for the installation, where they work: the explanation names its phase."""
    told = walk.before[f"{kind} start"]
    assert told["line"] == "sandbox_subprocess_denied:subprocess.run"
    assert "install" in apply_entry.said(told["line"])
    assert walk.after[f"{kind} install"] == {"value": "ready"}


@rows("kind", KINDS)
def test_what_is_installed_has_the_install_section(walk, places, kind):
    """An entry in ``runtime`` does not count then; what the installation printed says whose and which phase it was."""
    told = walk.before[f"{kind} install"]
    assert f"sandbox_filesystem_denied:needy:{places.path}" in told["printed"]
    assert (told["code"], told["target"]) == ("sandbox_filesystem_denied", places.path)
    now = apply_entry.about(told, "read")
    assert (now["subject"], now["installing"], now["answers"]["declared"]) == (f"{kind}:needy", True, "silent")
    assert '"install"' in now["advice"] and '"runtime"' not in now["advice"]
    sentence(f"{kind} declared for installing", f"{now['layers']['declared']}\n{now['advice']}", folder=places.base)
    assert walk.after[f"{kind} install"] == {"value": "ready"}


def test_an_mcp_server_has_its_endpoint_and_what_is_decided_about_it(walk, places):
    """Denied, its decision is named; revoked, the server is asked. One that is not registered is said to be that."""
    unknown, decision, denied, gone = places.case.run(servers)
    assert unknown["code"] == "mcp_server_unknown"
    assert denied["line"].endswith(f"(sandbox_network_denied:sums:{ENDPOINT})")
    now = denied["now"][0]
    assert (now["subject"], now["decides"]) == ("mcp:sums", ["denial"])
    assert decision in now["advice"]
    assert "endpoint_url" in now["advice"] and " sums" in now["advice"]
    sentence("mcp denied", now["advice"])
    assert "sandbox_network_denied" not in gone["line"]  # nobody listens there, but it was asked
