"""The interpreter, and whether the guard holds on it."""

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
    """Say what runs this, and what it lacks."""
    yield _interpreter()
    yield _console()
    yield _guard()


def _interpreter() -> Line:
    name = f"{platform.python_implementation()} {platform.python_version()}"
    line = Line("python", "Interpreter", Area.HOST, LineState.OK, f"{name}, {sys.executable}")
    oldest, newest = (".".join(map(str, version)) for version in (_OLDEST, _NEWEST))
    if platform.python_implementation() != "CPython" or not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        fix = f"run CPython {oldest} to {newest}: the guard is made for these"
        return replace(line, state=LineState.UNSUPPORTED, fix=fix)
    return line


def _console() -> Line:
    missing = [name for name in _CONSOLE if find_spec(name) is None]
    line = Line("console_packages", "Console packages", Area.HOST, LineState.OK, "installed")
    if missing:
        summary = f"{', '.join(missing)} cannot be imported: serve does not start"
        return replace(line, state=LineState.OFF, summary=summary, fix="pip install 'democrai-sandbox[console]'")
    return line


def _guard() -> Line:
    """Arm the guard in a process of its own: it tries itself first, and refuses an interpreter that it does not fit."""
    line = Line("guard", "Python guard", Area.GUARD, LineState.OK, "")
    fix = "install democrai-sandbox for this interpreter anew; it has a compiled part"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, and a text of ours
            [sys.executable, "-P", "-c", _TRY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return replace(line, state=LineState.OFF, summary=f"it could not be tried: {error}", fix=fix)
    if done.returncode or not done.stdout.strip().isdecimal():
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return replace(line, state=LineState.OFF, summary=f"it does not arm: {said}", fix=fix)
    return replace(line, summary=f"arms: {done.stdout.strip()} entry points are guarded, every canary was stopped")
