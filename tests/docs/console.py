"""``console`` blocks: commands behind ``$ ``, run in order, and what they print, compared with what the page shows.

What changes from run to run, such as ids, times, ports and passwords, may differ; an id or address that a page shows
stands for the real one in later commands. A line ``...`` stands for any lines, ``...`` within a line for anything, and
spaces count as one. ``$ echo $?`` shows the status of the command before it. ``$ democrai-sandbox serve`` stays until
the end of the page.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from tests.docs.pages import REPOSITORY, blocks
from tests.services.commands import Forked

SECONDS = 150
_CHANGING = re.compile(
    r"(?P<kept>\b0[0-9a-z]{25}\b|\bdsb_[\w.]+|\bhttp://127\.0\.0\.1:\d+)"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: UTC|Z|\+00:00)?"
    r"|\b(?:[a-z0-9]{5}-){3}[a-z0-9]{5}\b"
    r"|\b\d+(?:\.\d+)? ?(?:ms|s|m|seconds?|minutes?)\b|\bjust now\b|\bnow\b"
    r"|/home/ann/first"
    r"|/[\w./-]*\.venv/bin"
    r"|\b\d+\.\d+\.\d+\b"
)

_OURS = re.compile(r"""democrai-sandbox (?!serve\b)(?:[\w\s:=./,-]|\\\n|"[^"$`\\]*"|'[^']*')+""", re.ASCII)
"""A command of ours in which nothing is left to the shell but blanks and quotes."""
_ASKS = re.compile(r"/render$| (?:list|tail|status)\b")
"""Commands that only ask; a reader would ask again."""


def runnable(page):
    """The ``console`` blocks of a page, but for those that say why they are not run."""
    return [block.text for block in blocks(REPOSITORY / page) if block.language == "console" and not block.reason]


def commands(text):
    """The commands of a block, each with the lines that it is to print."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(SimpleNamespace(command=line[2:], shown=[]))
        elif found and found[-1].command.endswith("\\"):
            found[-1].command += f"\n{line}"
        else:
            assert found, f"a block begins with a command: {line!r}"
            found[-1].shown.append(line)
    return found


class Console:
    """A shell in a folder of its own, with the programs of this environment."""

    def __init__(self, folder, **environ):
        self.folder = Path(folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environ = {**kept, "PATH": path, "HOME": str(folder), "NO_COLOR": "1", "no_proxy": "*", **environ}
        self._before, self._status, self._real, self._serving = [], 0, {}, []
        self._place = (self._environ, self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._serving:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)
            process.stdout.close()

    def play(self, text):
        """Run the commands of a block, and compare what each prints."""
        for one in commands(text):
            printed, until = self._printed(one), time.monotonic() + SECONDS
            while _ASKS.search(one.command) and not self._matches(one.shown, printed) and time.monotonic() < until:
                time.sleep(0.1)  # what was set going before takes a moment
                printed = self._printed(one)
            assert self._matches(one.shown, printed), f"$ {one.command}\n{printed}\n--- the page shows:\n" + "\n".join(
                one.shown
            )

    def _printed(self, one):
        command = one.command
        for shown, real in self._real.items():
            command = command.replace(shown, real)
        if command == "echo $?":
            return f"{self._status}\n"
        if re.match(r"(export|cd) ", command):
            self._before.append(command)
            self._place = self._here()
            return ""
        argv = ["bash", "-c", "\n".join([*self._before, command])]
        if re.search(r"democrai-sandbox serve(?! --help)", command):
            return self._served(argv, len(one.shown))
        if _OURS.fullmatch(command):
            return self._forked(shlex.split(command)[1:])
        done = subprocess.run(argv, **self._how(), timeout=SECONDS, check=False)
        self._status = done.returncode
        return done.stdout

    def _here(self):
        """Return the environment and the folder to which exports and changes of folder have led."""
        argv = ["bash", "-c", "\n".join([*self._before, "env -0", "pwd"])]
        *variables, folder = subprocess.run(argv, **self._how(), timeout=SECONDS, check=True).stdout.split("\0")
        environ = dict(one.split("=", 1) for one in variables)
        return {name: value for name, value in environ.items() if name not in {"_", "SHLVL"}}, folder.rstrip("\n")

    def _forked(self, arguments):
        """Run a command of ours that needs no shell, in a fork of a process that has imported it."""
        environ, folder = self._place
        with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out:
            process = Forked(arguments, environ=environ, streams=(nothing, out, out), folder=folder)
            try:
                self._status = process.wait(SECONDS)
            finally:
                process.kill()
            out.seek(0)
            return out.read()

    def _how(self):
        return {
            "cwd": self.folder,
            "env": self._environ,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }

    def _served(self, argv, lines):
        """Start it, and read as many lines as the page shows; its log is not among them."""
        argv[-1] = re.sub(r"(?m)^(.*democrai-sandbox serve)", r"exec \1", argv[-1]) + " 2>serve.log"
        process = subprocess.Popen(argv, **self._how())
        self._serving.append(process)
        until, printed = time.monotonic() + SECONDS, ""
        while printed.count("\n") < lines:
            left = until - time.monotonic()
            assert left > 0, f"it did not get ready: {(self.folder / 'serve.log').read_text()}"
            # Read below the buffer of the stream, in which a second line would wait without being announced.
            if select.select([process.stdout], [], [], left)[0]:
                part = os.read(process.stdout.fileno(), 65536).decode()
                assert part, f"it ended: {(self.folder / 'serve.log').read_text()}"
                printed += part
        return printed

    def _matches(self, shown, printed):
        form, names = "", []
        for line in shown:
            if line.strip() == "...":
                form += r"(?:.*\n)*?"
                continue
            form += self._form(line.rstrip(), names) + r"[ \t]*\n"
        found = re.fullmatch(form, printed if printed.endswith("\n") or not printed else f"{printed}\n")
        if found:
            self._real.update(zip(names, found.groups(), strict=True))
        return found

    def _form(self, line, names):
        form, at = "", 0
        for part in _CHANGING.finditer(line):
            form += _plain(line[at : part.start()])
            if part["kept"] and part["kept"] not in names:
                names.append(part["kept"])
                form += r"(\S+?)"
            else:
                form += r"\S.*?"
            at = part.end()
        return form + _plain(line[at:])


def _plain(text):
    """Return a pattern for a text: one space is as good as several, and three dots stand for anything."""
    pieces = (re.escape(piece).replace(r"\.\.\.", ".*") for piece in re.split(r"[ \t]+", text))
    return r"[ \t]+".join(pieces)
