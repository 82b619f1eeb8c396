"""Interpreter, and whether the guard works on it."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from democrai_sandbox.host.lines import Area, Line, LineState

if TYPE_CHECKING:
    from collections.abc import Iterator

_OLDEST, _NEWEST = (3, 11), (3, 13)
_WITHIN = 60.0
_TRY = """
from democrai_sandbox.guard import patched_entries
print(sum(is_patched for *_, is_patched in patched_entries()))
"""
_CONSOLE = ("fastapi", "uvicorn", "jinja2")


def machine_lines() -> Iterator[Line]:
    """Check the interpreter, its packages and the guard."""
    yield _interpreter()
    yield _console()
    yield _guard()


def _interpreter() -> Line:
    name = f"{platform.python_implementation()} {platform.python_version()}"
    line = Line("python", "Interpreter", Area.HOST, LineState.OK, f"{name}, {sys.executable}")
    oldest, newest = (".".join(map(str, version)) for version in (_OLDEST, _NEWEST))
    if platform.python_implementation() != "CPython" or not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        fix = f"use CPython {oldest} to {newest}, which the guard supports"
        return replace(line, state=LineState.UNSUPPORTED, fix=fix)
    return line


def _console() -> Line:
    missing = [name for name in _CONSOLE if find_spec(name) is None]
    line = Line("console_packages", "Console packages", Area.HOST, LineState.OK, "installed")
    if missing:
        summary = f"{', '.join(missing)} cannot be imported, so serve cannot start"
        return replace(line, state=LineState.OFF, summary=summary, fix="pip install 'democrai-sandbox[console]'")
    return line


def _guard() -> Line:
    """Start the guard in a separate process: it tests itself, and refuses an unsupported interpreter."""
    line = Line("guard", "Python guard", Area.GUARD, LineState.OK, "")
    fix = "reinstall democrai-sandbox for this interpreter; it has a compiled part"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter with a fixed program
            [sys.executable, "-P", "-c", _TRY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return replace(line, state=LineState.OFF, summary=f"it could not be tested: {error}", fix=fix)
    if done.returncode or not done.stdout.strip().isdecimal():
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return replace(line, state=LineState.OFF, summary=f"it cannot start: {said}", fix=fix)
    return replace(line, summary=f"works: {done.stdout.strip()} guarded functions, every canary was stopped")
