"""Run one program in one mode, in a process of its own, and print what came of it as one line of JSON."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
from typing import Any

TRUSTED = (
    "llvmlite",
    "nacl",
    "numba",
    "numpy",
    "polars",
    "pypdfium2",
    "pypdfium2_raw",
    "safetensors",
    "scipy",
    "threadpoolctl",
    "torch",
    "watchdog",
)
"""Packages that a host which uses them in its own process would list in ``sandbox.guard.native_packages``."""


def load(file: str) -> Any:
    """Return the module of a program."""
    spec = importlib.util.spec_from_file_location("program", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guard_for(mode: str, folder: str) -> Any:
    """Return the context that the program runs in; loading the guard is what an idle one is about."""
    if mode == "plain":
        return contextlib.nullcontext()
    from democrai_sandbox import configure_guard, process_guard_context

    configure_guard(native_packages=TRUSTED)
    access = json.loads(os.environ.get("COMPAT_ACCESS", "[]"))
    guard = process_guard_context(subject="compat", allowed_paths=[folder], access=access)
    return guard if mode == "guarded" else contextlib.nullcontext()


def outcome(mode: str, file: str, folder: str) -> dict[str, Any]:
    """Run the program; return its value, or the error that it ended with."""
    guard, program = guard_for(mode, folder), load(file)
    try:
        with contextlib.redirect_stdout(io.StringIO()), guard:
            value = program.main(folder)
    except BaseException as error:
        return {"error": type(error).__name__, "text": str(error)[:300]}
    return {"value": json.loads(json.dumps(value))}


def main() -> None:
    """Print the outcome and end at once: threads that a package leaves behind do not count."""
    mode, file = sys.argv[1:]
    folder = tempfile.mkdtemp(prefix="compat-")
    answer = json.dumps(outcome(mode, file, folder))
    shutil.rmtree(folder, ignore_errors=True)
    os.write(1, f"\n{answer}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
