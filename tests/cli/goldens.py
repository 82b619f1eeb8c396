"""Golden outputs of commands, compared with the files in ``golden/``. ``make golden`` rewrites them.

def test_something(served):
    done = terminal(["requests", "list", "--url", served.url], {"DEMOCRAI_TOKEN": token})  # as shown to a user
    assert done.status == 0
    golden("requests-list.terminal", done.text, folder=served.folder)
    golden("requests-list.piped", piped([...], {...}).out)

    transcript("requests-refused", [(words, within(words)), ...])  # many commands in one file, with status and streams

In the files, ids, times, ages, ports and hashes are replaced by texts of the same length, so that columns stay columns;
a folder is ``/folder``, and since that is shorter, columns are then two blanks apart. Escapes are written as ``␛``.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from democrai_sandbox.cli.entry import main
from tests.services.commands import COMMAND, Forked
from tests.services.golden import IS_UPDATING, settled

GOLDEN = Path(__file__).parent / "golden"
PATIENCE = 90
CTRL_C = "\x03"
CHOICES = (r"\(choose from .*\)", "(choose from ...)")
"""What argparse lists in another way in each version of Python, for ``also``."""
_PLAIN_WORD = re.compile(r"[\w./:=*{}-]+", re.ASCII)
_MOST_WORDS, _LONGEST_WORD = 12, 100


class Said(NamedTuple):
    """Output of a command in a terminal."""

    status: int
    text: str
    """Both streams, with line ends as in a file."""


class Piped(NamedTuple):
    """Output of a command without a terminal."""

    status: int
    out: str
    err: str


def golden(name, text, folder=None, also=()):
    """Compare a text with the file of this name, after replacing the folder and patterns."""
    found = settled(text, folder)
    for pattern, instead in also:
        found = re.sub(pattern, instead, found)
    file = GOLDEN / f"{name}.txt"
    if IS_UPDATING:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(found)
    assert file.exists(), f"there is no {file.name} yet: `make golden` writes it, from\n{found}"
    assert found == file.read_text(), f"it is not what {file.name} says"


def transcript(name, steps, folder=None, also=()):
    """Compare commands and their output with one file; each step has the words of a command and its result."""
    golden(name, "\n".join(_step(words, done, folder) for words, done in steps), folder, also)


def _step(words, done, folder):
    """Return a step as text: the command, standard output, marked standard error, and the status."""
    words = [_word(str(word) if folder is None else str(word).replace(str(folder), "/folder")) for word in words]
    if len(words) > _MOST_WORDS:
        words[_MOST_WORDS:] = ["..."]
    errors = [f"2> {line}" for line in done.err.splitlines()]
    return "\n".join([" ".join(["$", *words]), *done.out.splitlines(), *errors, f"[{done.status}]", ""])


def _word(word):
    """Return a word of a command line in ASCII, shortened if it is long."""
    word = word if len(word) <= _LONGEST_WORD else f"{word[:_LONGEST_WORD]}..."
    return word if _PLAIN_WORD.fullmatch(word) else json.dumps(word)


def code_of(text):
    """Return the code at the start of a message, or the wrong argument of a command line."""
    return text.partition(": ")[0] if not text.startswith("democrai-sandbox ") else text.split(": ")[1]


def environment(environ=None):
    """Return an environment without settings of the user."""
    odd = ("DEMOCRAI_", "COV_", "PYTEST_")
    names = {"NO_COLOR", "TERM", "COLUMNS", "LINES", "LANG", "LC_ALL"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(odd) and name not in names}
    return clean | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | (environ or {})


def piped(arguments, environ=None, stdin="", timeout=PATIENCE):
    """Run a command without a terminal to its end."""
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        streams[0].write(stdin)
        streams[0].seek(0)
        process = Forked(arguments, environ=environment(environ), streams=streams)
        status = ended(process, timeout)
        streams[1].seek(0)
        streams[2].seek(0)
        return Piped(status, streams[1].read(), streams[2].read())


def ended(process, timeout):
    """Wait for the end of a process, and kill it after a timeout."""
    try:
        return process.wait(timeout)
    finally:
        process.kill()


def within(arguments, environ=None, stdin=""):
    """Run a command to its end in this process, without a terminal."""
    out, err = _stream(), _stream()
    clean = mock.patch.dict(os.environ, environment(environ), clear=True)
    with clean, mock.patch.object(sys, "stdin", io.StringIO(stdin)):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(list(map(str, arguments)))
            except SystemExit as ended:
                status = ended.code
            sys.stdout.flush()
            sys.stderr.flush()
    return Piped(int(status or 0), out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def _stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def terminal(arguments, environ=None, columns=100, typed="", timeout=PATIENCE):
    """Run a command to its end in a terminal with this many columns; ``typed`` answers its question."""
    with in_terminal(arguments, environ, columns) as (process, screen):
        if typed:
            screen.read_until("[y/N] ")  # the terminal shows what is typed at once
            screen.type(typed)
        screen.read_to_end(timeout)
        status = process.wait(timeout)
    return Said(status, screen.text)


@contextlib.contextmanager
def in_terminal(arguments, environ=None, columns=100):
    """Run a command in the foreground of a terminal: ``screen.type(CTRL_C)`` interrupts it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = Forked(arguments, environ=environment(environ), streams=[theirs] * 3, terminal=True)
    os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)


class Screen:
    """Text written to a terminal."""

    def __init__(self, fd):
        self.fd = fd
        self._read = b""

    @property
    def text(self):
        return self._read.decode().replace("\r\n", "\n")

    def type(self, text):
        """Send keyboard input."""
        os.write(self.fd, text.encode())

    def read_until(self, wanted, timeout=PATIENCE):
        """Wait until a text was written."""
        end = time.monotonic() + timeout
        while wanted not in self.text:
            assert self._more(end), f"{wanted!r} was not written: {self.text!r}"

    def read_to_end(self, timeout=PATIENCE):
        """Wait until the terminal is closed."""
        end = time.monotonic() + timeout
        while self._more(end):
            pass

    def _more(self, end):
        ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
        assert ready, f"nothing more was written: {self.text!r}"
        try:
            part = os.read(self.fd, 65536)
        except OSError:  # that is how a terminal says that everybody has closed it
            return False
        self._read += part
        return bool(part)
