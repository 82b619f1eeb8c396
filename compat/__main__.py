"""Compare popular packages without a guard, beside an idle one, and under one: ``python -m compat --python PYTHON``.

PYTHON is an interpreter that has the packages of ``compat/requirements.in``; the extensions have to be compiled for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODES = ("plain", "idle", "guarded")


def run(python: str, mode: str, program: Path) -> dict[str, Any]:
    """Run a program in a mode."""
    environ = os.environ | {"PYTHONPATH": str(HERE.parent / "src")}
    command = [python, "-P", str(HERE / "running.py"), mode, str(program)]
    try:
        done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=300, check=False)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "Timeout", "text": "it takes more than five minutes"}
    except (IndexError, ValueError):
        return {"error": "Crash", "text": f"it ended with status {done.returncode}: {done.stderr[-300:]}"}
    return found


def verdict(found: dict[str, Any], plain: dict[str, Any]) -> str:
    """Tell in a word how a mode compares with the plain run."""
    if "error" in found:
        return f"{found['error']}: {found['text']}"
    return "same" if found == plain else "differs"


def main() -> int:
    """Print a line for each program; the exit status is the number of programs that an idle guard changes."""
    parser = argparse.ArgumentParser(prog="python -m compat", description="Compare popular packages under the guard.")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the packages")
    parser.add_argument("names", nargs="*", help="programs, such as numpy; all without any")
    options = parser.parse_args()
    programs = [HERE / "programs" / f"use_{name}.py" for name in options.names]
    changed = 0
    for program in programs or sorted((HERE / "programs").glob("use_*.py")):
        plain, idle, guarded = (run(options.python, mode, program) for mode in MODES)
        words = ["works" if "value" in plain else verdict(plain, plain), verdict(idle, plain), verdict(guarded, plain)]
        changed += words[1] != "same"
        print(f"{program.stem.removeprefix('use_'):24}{words[0]:8}{words[1]:10}{words[2]}", flush=True)
    return min(changed, 100)


if __name__ == "__main__":
    sys.exit(main())
