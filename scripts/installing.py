"""Run pip quietly: show the progress, and report a failure in one sentence."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_EVERY = 15.0
"""Seconds between lines without a terminal."""
_TICK = 0.2
_UNREACHABLE = re.compile(
    r"Connection refused|Name or service not known|Temporary failure in name resolution|No address associated"
    r"|Network is unreachable|No route to host|timed out|Connection reset|Remote end closed|Cannot connect to proxy"
    r"|certificate verify failed|Connection aborted|Max retries exceeded|Failed to establish a new connection"
)


class Failure(Exception):  # noqa: N818 - part of the command's output
    """Problem with its fix."""

    def __init__(self, what: str, fix: str, said: str = "") -> None:
        super().__init__(what)
        self.what, self.fix, self.said = what, fix, said

    @classmethod
    def of(cls, said: str, otherwise: str) -> Failure:
        """Determine the reason of a failure from a program's output."""
        if "No space left on device" in said or "Disk quota exceeded" in said:
            sizes = "runtime: 250 MB, development: 1 GB, compat: 3 GB, with CUDA 9 GB"
            return cls("the disk is full", f"free some space ({sizes}), and run it again")
        if "Read-only file system" in said or "Permission denied" in said:
            why = "Read-only file system" if "Read-only" in said else "Permission denied"
            return cls(f"this folder is not writable ({why})", "clone into a folder that you can write to")
        if "DO NOT MATCH THE HASHES" in said:
            return cls("a downloaded package differs from the locked one", "use an index with the original files")
        if found := _UNREACHABLE.search(said):
            host = re.search(r"host='([^']+)', port=(\d+)", said)
            where = f"{host[1]}:{host[2]}" if host else index()
            fix = "connect this machine to it, or set another one with PIP_INDEX_URL, and run it again"
            return cls(f"the package index at {where} cannot be reached ({found[0]})", fix)
        if found := re.search(r"No matching distribution found for (\S+)", said):
            return cls(f"the package index at {index()} does not have {found[1]}", "set another one with PIP_INDEX_URL")
        return cls(f"{otherwise} ({explain(said)})", "see the lines above", said)

    def tell(self, venv: Path) -> None:
        """Print it in one line, after the program's output if the reason is unknown."""
        if self.said:
            print(self.said.rstrip(), file=sys.stderr)
        print(f"setup: {venv} could not be prepared: {self.what}; to fix it: {self.fix}", file=sys.stderr, flush=True)


def index() -> str:
    """Return the package index without a password."""
    parts = urlsplit(os.environ.get("PIP_INDEX_URL", ""))
    return parts.netloc.rpartition("@")[2] or "its usual address"


def explain(said: str) -> str:
    """Return the most informative line of a program's output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines or ["no output"])[-1][:300]


class Progress:
    """Numbered lines; on a terminal the last one is updated."""

    def __init__(self, steps: int) -> None:
        self._steps, self._number = steps, 0
        self._text = self._detail = ""
        self._began = self._step_began = self._told = time.monotonic()
        self._live = sys.stderr.isatty()
        self._total = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        if self._live:
            self._thread.start()

    def step(self, text: str, total: int = 0) -> None:
        """Start the next step."""
        self._finish()
        self._number += 1
        self._text, self._detail, self._total = text, "", total
        self._step_began = self._told = time.monotonic()
        self._show(final=not self._live)

    def quietly(self, detail: str) -> None:
        """Show a detail of the current step."""
        self._detail = detail
        if self._live:
            self._show()
        elif time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            self._show(final=True)

    def done(self, number: int) -> None:
        """Show the number of finished items of the step."""
        self.quietly(f"{min(number, self._total)} of {self._total} found" if self._total else "")

    def end(self) -> None:
        """Show the total time."""
        self._finish()
        self._over.set()
        seconds = time.monotonic() - self._began
        print(f"setup: ready after {seconds:.0f} s", file=sys.stderr, flush=True)

    def _finish(self) -> None:
        if self._text and self._live:
            self._detail = ""
            self._show(final=True, elapsed=True)
        self._text = ""

    def _show(self, *, final: bool = False, elapsed: bool = False) -> None:
        seconds = time.monotonic() - self._step_began
        detail = f": {self._detail}" if self._detail else ""
        clock = f", {seconds:.0f} s" if elapsed or seconds >= 1 else " ..."
        line = f"setup: [{self._number}/{self._steps}] {self._text}{detail}{clock}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            line = f"\r\033[K{line[:width]}"
        with contextlib.suppress(OSError):
            print(line, end="\n" if final else "", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            if self._text:
                self._show()


class _Version(str):
    """Version in a marker, compared by its numbers."""

    __slots__ = ()

    def _key(self, text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)]

    def __lt__(self, other: str) -> bool:
        return self._key(self) < self._key(other)

    def __ge__(self, other: str) -> bool:
        return not self < other


def count(paths: Iterable[Path]) -> int:
    """Return the number of different packages in the files for this interpreter."""
    version = _Version(".".join(map(str, sys.version_info[:3])))
    names = {
        "python_full_version": version,
        "sys_platform": sys.platform,
        "implementation_name": sys.implementation.name,
        "platform_python_implementation": "CPython",
        "platform_machine": os.uname().machine,
        "os_name": os.name,
    }
    found = set()
    for path in paths:
        for line in path.read_text().splitlines():
            if wanted := re.match(r"([\w.-]+)==[^;\\]*(?:;([^\\]*))?", line):
                with contextlib.suppress(NameError, TypeError):
                    if wanted[2] and not eval(wanted[2].strip(), {"__builtins__": {}}, dict(names)):
                        continue
                found.add(wanted[1])
    return len(found)


def install(python: Path, files: list[Path], progress: Progress, words: list[str] | None = None) -> None:
    """Install hashed requirement files, or the given words, with pip.

    The files list every package, so that pip does not resolve. Modules are compiled on first import.
    """
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--root-user-action=ignore", "--no-warn-script-location", "--no-compile"]
    # Fail after seconds instead of minutes, unless the user has set these.
    command += [] if "PIP_RETRIES" in os.environ else ["--retries=1"]
    command += [] if os.environ.keys() & {"PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"} else ["--timeout=15"]
    if files:
        command += [
            "--require-hashes",
            "--only-binary=:all:",
            "--no-deps",
            *(f"--requirement={file}" for file in files),
        ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = []
    with subprocess.Popen(
        command + (words or []),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
    ) as pip:
        assert pip.stdout is not None
        found = 0
        for line in pip.stdout:
            said.append(line)
            if line.startswith(("Collecting ", "Requirement already satisfied")):
                found += 1
                progress.done(found)
            elif line.startswith("Installing collected packages"):
                progress.quietly("unpacking")
    if pip.returncode:
        raise Failure.of("".join(said), "pip failed")


def mend(venv: Path) -> None:
    """Remove packages that an interrupted pip has left incomplete, so that they are installed again."""
    for folder in venv.glob("lib/python*/site-packages/*.dist-info"):
        if not is_complete(folder):
            shutil.rmtree(folder, ignore_errors=True)


def is_complete(folder: Path) -> bool:
    """Return whether all files of an installed package exist: the list of them is written last."""
    try:
        with (folder / "RECORD").open(newline="") as file:
            return all((folder.parent / name).exists() for name in _recorded(csv.reader(file)))
    except OSError:
        return False


def _recorded(rows: Iterable[list[str]]) -> Iterator[str]:
    for row in rows:
        if row and not row[0].endswith(".pyc"):
            yield row[0]
