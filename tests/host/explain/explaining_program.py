"""Ask a sandbox for explanations, and let a module do the same accesses. Loaded by its path into a separate process."""

from __future__ import annotations

import asyncio
import json

from democrai_sandbox.access import Caller
from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.host.explain.explainer import explain
from democrai_sandbox.host.explain.explanation import AccessToExplain
from democrai_sandbox.host.sandbox import Sandbox
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.access_environment import serving

CODE = """
import os, urllib.request
from democrai_sandbox import sdk

@sdk.command("read")
def read(path):
    os.close(os.open(path, os.O_RDONLY))

@sdk.command("modify")
def modify(path):
    os.close(os.open(path, os.O_WRONLY))

@sdk.command("delete")
def delete(path):
    os.rmdir(path)

@sdk.command("receive")
def receive(path):
    urllib.request.urlopen(path, timeout=1).read()

@sdk.tool("own", access=[{"resource_type": "filesystem", "operation": "read", "target": "/etc/passwd"}])
def own(path: str) -> str:
    "Read under its own access list."
    os.close(os.open(path, os.O_RDONLY))
    return "read"

@sdk.tool("bare")
def bare(path: str) -> str:
    "Read with the rights of the caller."
    os.close(os.open(path, os.O_RDONLY))
    return "read"

@sdk.pipeline("both", steps=["own"])
def both(path: str):
    "Read in a tool in a pipeline."

@sdk.task("later")
def later(path):
    os.close(os.open(path, os.O_RDONLY))

@sdk.command("tool:probe.own")
async def by_own(path):
    await sdk.ai.run_tool("own", {"path": path})

@sdk.command("tool:probe.bare")
async def by_bare(path):
    await sdk.ai.run_tool("bare", {"path": path})

@sdk.command("pipeline:probe.both")
async def by_both(path):
    await sdk.ai.run_pipeline("both", {"path": path})
"""
CHAINS = (
    ("tool:probe.own", ("module:probe", "tool:probe.own")),
    ("tool:probe.bare", ("module:probe", "tool:probe.bare")),
    ("pipeline:probe.both", ("module:probe", "pipeline:probe.both", "tool:probe.own")),
)
PROBE = Subject.parse("module:probe")
ANN = Caller(user_id="ann", session_key="s-1")
ADA = Caller(user_id="ada", role="super")


def prepared(base):
    """Write the extensions; return the questions."""
    rules = [
        {"resource_type": "filesystem", "operation": "read", "target": "/etc/passwd"},
        {"resource_type": "network", "operation": "receive", "target": "http://127.0.0.1:9/declared"},
    ]
    for name, access in (("probe", rules), ("other", [])):
        folder = base / "modules" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"name": name, "access": access}))
        (folder / "module.py").write_text(CODE if name == "probe" else "")
    (base / "link").symlink_to("/etc/passwd")
    data = base / "state" / "data" / "modules"
    for name in ("probe", "other"):
        (data / name).mkdir(parents=True, mode=0o700)
        (data / name / "x").write_text("x")
    yield from (("read", path) for path in ("/etc/passwd", "/etc/group", "/etc/hosts", "/usr", f"{base}/link"))
    own = data / "probe"
    (own / "hop").symlink_to("/etc")
    dotted = ("/etc/../etc/passwd", f"{own}/../probe/x", *(f"{own}/hop/../etc/{name}" for name in ("passwd", "shadow")))
    yield from (("read", path) for path in dotted)
    yield from (("modify", path) for path in ("/etc/passwd", "/etc/hosts", "/dev/null"))
    (base / "full" / "inner").mkdir(parents=True)
    yield from (("delete", str(path)) for path in (base, base / "full"))  # they stay, because they are not empty
    for operation in ("read", "modify"):
        for place in (data / "probe" / "x", data / "other" / "x", base / "modules" / "probe" / "module.py"):
            yield operation, str(place)
    yield from (
        ("receive", f"http://127.0.0.1:9/{path}") for path in ("declared", "declared/x", "declaredx", "", "yes")
    )


async def main(base):
    """Return for each question the operation, the target, the explanation and the result."""
    questions = list(prepared(base))
    config = {"state_dir": f"{base}/state", "modules_path": f"{base}/modules"}
    sandbox = Sandbox.from_config(config, environ={})
    found = []
    async with sandbox:
        await asyncio.to_thread(approve, sandbox, base)
        for operation, target in questions:
            kind = "network" if operation == "receive" else "filesystem"
            question = AccessToExplain(PROBE, kind, operation, target, session_key="s-1")
            said = await asyncio.to_thread(explain, sandbox, question)
            try:
                await sandbox.runtime.modules.command("probe", operation, {"path": target}, ANN)
                done = True
            except SandboxDenied:
                done = False
            except Exception:  # noqa: BLE001 - the server may be down or the file read-only, but the guard allowed it
                done = True
            found.append([operation, target, said.verdict, done])
        found += await in_chains(sandbox, [target for operation, target in questions if operation == "read"])
    return found


async def in_chains(sandbox, paths):
    """Do the same inside tools and pipelines, with and without their own access lists."""
    found = []
    for command, labels in CHAINS:
        chain = tuple(map(Subject.parse, labels))
        for path in paths:
            question = AccessToExplain(chain[-1], "filesystem", "read", path, session_key="s-1", ancestors=chain[:-1])
            said = await asyncio.to_thread(explain, sandbox, question)
            try:
                await sandbox.runtime.modules.command("probe", command, {"path": path}, ANN)
                done = True
            except SandboxDenied:
                done = False
            found.append([command, path, said.verdict, done])
    return found


def approve(sandbox, base):
    """Approve an undeclared access."""
    with serving(ADA):
        for kind, operation, target in (
            ("network", "receive", "http://127.0.0.1:9/yes"),
            ("filesystem", "read", "/etc/group"),
            ("filesystem", "delete", str(base)),
        ):
            sandbox.access.administration.decide_unasked(
                PROBE, resource_type=kind, operation=operation, target=target, effect="approval"
            )
