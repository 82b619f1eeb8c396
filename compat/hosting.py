"""Run programs in worker processes of a real host, one worker each, and print a line of JSON for each of them.

Each program is a module with one declared folder. The host has the kernel layer, with the parts that this machine has.
``COMPAT_ACCESS`` in the environment has further entries for all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

SECONDS = 300
OPERATIONS = ["read", "create", "modify", "delete"]
MODULE = """
import json
from democrai_sandbox import sdk
from . import program

@sdk.action("run")
def run(folder):
    return json.dumps(program.main(folder))
"""


def install(file: Path, modules: Path, folder: Path) -> str:
    """Make a module of a program, with one declared folder; return its name."""
    name = file.stem.removeprefix("use_")
    module = modules / name
    module.mkdir()
    folder.mkdir()
    entry = {"resource_type": "filesystem", "operation": OPERATIONS, "target": str(folder)}
    more = json.loads(os.environ.get("COMPAT_ACCESS", "[]"))
    (module / "manifest.json").write_text(json.dumps({"name": name, "access": [entry, *more]}))
    (module / "module.py").write_text(MODULE)
    shutil.copyfile(file, module / "program.py")
    return name


def configuration(base: Path, names: list[str]) -> dict[str, object]:
    """Return the configuration of the host."""
    return {
        "state_dir": str(base / "state"),
        "data_dir": str(base / "state" / "data"),
        "modules_path": str(base / "modules"),
        "sandbox": {
            "os": {"enabled": True},
            "isolation": {f"module:{name}": "process" for name in names},
            "call_timeout": SECONDS,
            "load_timeout": SECONDS,
        },
    }


async def serve(sandbox: Any, base: Path, names: list[str]) -> None:
    """Call one program after the other."""
    from democrai_sandbox.access import Caller

    caller = Caller(user_id="uma", session_key="monday")
    async with sandbox:
        say({"layers": layers(sandbox)})
        for name in names:
            call = sandbox.runtime.modules.action(name, "run", {"folder": str(base / "folders" / name)}, caller)
            say({"name": name, **(await outcome(call))})


async def outcome(call: Any) -> dict[str, Any]:
    """Return the value of a call, or the error that it ended with."""
    try:
        return {"value": json.loads(await call)}
    except Exception as error:
        kind = getattr(error, "kind", "") or type(error).__name__
        return {"error": kind, "text": str(error)[:300], "trace": getattr(error, "traceback", "")[-2000:]}


def layers(sandbox: Any) -> dict[str, Any]:
    """Return what the kernel of this machine confines workers with."""
    return {"landlock_abi": sandbox.kernel.abi, "egress": sandbox.kernel.egress is not None}


def say(line: dict[str, Any]) -> None:
    """Print a line."""
    os.write(1, f"{json.dumps(line)}\n".encode())


def main() -> None:
    """Serve the programs that the arguments name."""
    # Not in the temp folder: that is open to every worker.
    base = Path(tempfile.mkdtemp(prefix="compat-", dir="/var/tmp")).resolve()
    try:
        (base / "modules").mkdir()
        (base / "folders").mkdir()
        files = [Path(file) for file in sys.argv[1:]]
        names = [install(file, base / "modules", base / "folders" / file.stem.removeprefix("use_")) for file in files]

        from democrai_sandbox.host import Sandbox

        sandbox = Sandbox.from_config(configuration(base, names), environ={})
        asyncio.run(serve(sandbox, base, names))
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
