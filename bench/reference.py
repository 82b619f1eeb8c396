"""Reference product in a separate environment, created on first use. It is only imported and called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.workers import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIREMENT = "democrai==0.0.1b2"
VERSION = "3.12"
ENVIRONMENT = REPOSITORY / ".bench" / "reference"
INSTALL_SECONDS = 1200.0


class ReferenceUnavailableError(Exception):
    """Reference product is unavailable; the text contains the reason."""


def reference_python() -> Path:
    """Return the interpreter of the reference product's environment, which is created if missing."""
    python = ENVIRONMENT / "bin" / "python"
    mark = ENVIRONMENT / "installed"
    if mark.exists() and mark.read_text() == REQUIREMENT and _is_right_version(python):
        return python
    base = _base_interpreter()
    print(f"Installing the reference product, {REQUIREMENT}: this happens once and takes some minutes.", flush=True)
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    _run([str(base), "-m", "venv", str(ENVIRONMENT)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-input", REQUIREMENT])
    mark.write_text(REQUIREMENT)
    return python


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReferenceUnavailableError(f"it could not be installed: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ReferenceUnavailableError(f"it could not be installed: {last}")


def _base_interpreter() -> Path:
    for python in _candidates():
        if _is_right_version(python):
            return python
    raise ReferenceUnavailableError(f"it needs Python {VERSION}, which is not installed")


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    found = shutil.which(f"python{VERSION}")
    if found:
        yield Path(found)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(versions.glob(f"{VERSION}*/bin/python{VERSION}"))


def _is_right_version(python: Path) -> bool:
    """Check the interpreter: a shim in PATH may name a version that is not installed."""
    try:
        done = subprocess.run(
            [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == VERSION
