"""Commands in forks of a process that has imported all they need, one such process for all tests of a worker.

For commands whose point is what they say and do: importing is most of what a fresh one spends. Where the start of the
process is the point, or what lies around it (its arguments, variables of the interpreter, another user), a command has
a process of its own: subprocess, with ``COMMAND``.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import democrai_sandbox.cli
from tests.services.forks import HOST

COMMAND = (sys.executable, "-m", "democrai_sandbox.cli")
PROGRAM = Path(__file__).with_name("commanding.py")
FOLLOWED = {"PYTHONIOENCODING", "PYTHONUNBUFFERED"}
"""Variables of the interpreter that a fork follows; with another one a command needs a process of its own."""


class Forked:
    """A command that runs: as much of a ``subprocess.Popen`` as is of use.

    Its three streams are files or their numbers; ``subprocess.PIPE`` for the second is a pipe, read as ``stdout``.
    """

    def __init__(self, arguments, *, environ, streams, folder=None, terminal=False, before=""):
        """``before`` is a text that the fork runs before the command, as nobody could in a process of its own."""
        changed = {name for name, _ in environ.items() ^ os.environ.items() if name.startswith("PYTHON")}
        assert changed <= FOLLOWED, f"a fork does not follow {changed}"
        order = {
            "arguments": [str(argument) for argument in arguments],
            "environ": environ,
            "folder": str(folder or Path.cwd()),
            "terminal": terminal,
            "before": before,
        }
        self.returncode = self.stdout = None
        with ExitStack() as theirs:
            told, report = pipe(theirs)
            self._report = open(told, "rb", 0)  # not read ahead: what is left in the pipe tells when there is more
            given = [stream if isinstance(stream, int) else stream.fileno() for stream in streams]
            if given[1] == subprocess.PIPE:
                heard, given[1] = pipe(theirs)
                self.stdout = open(heard)
            prepared().send(order, given, report)
        self.pid = int(self._report.readline() or self._lost())

    def poll(self):
        """The exit status; nothing while it runs."""
        return self._ended(0)

    def wait(self, timeout=None):
        """Wait for its end, and return the exit status."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("a command", timeout)
        return self.returncode

    def send_signal(self, number):
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds):
        if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
            self.returncode = int(self._report.readline() or self._lost())
            self._report.close()
        return self.returncode

    def _lost(self):
        raise RuntimeError("the process that forks has ended")


def instead(module, *arguments):
    """Return what a fork runs ``before`` its command, and in its place: a module, as ``python -m`` does."""
    words = [str(argument) for argument in arguments]
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return f"import runpy, sys\nsys.argv[1:] = {words!r}\n{run}\nsys.exit()"


def printed(program, *arguments, folder, environ=None, beside=(), timeout=240):
    """Run a file of Python to its end in a fork, with more folders to import from; return status, output and errors."""
    words = [str(program), *map(str, arguments)]
    places = [str(Path(program).parent), *map(str, beside)]
    before = (
        f"import runpy, sys\nsys.argv = {words!r}\nsys.path[:1] = {places!r}\n"
        f"runpy.run_path({words[0]!r}, run_name='__main__')\nsys.exit()"
    )
    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        given = dict(os.environ) | (environ or {})
        process = Forked([], environ=given, streams=streams, folder=folder, before=before)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for stream in streams:
            stream.seek(0)
        return status, streams[1].read(), streams[2].read()


def pipe(theirs):
    """Make a pipe, whose end for writing is another process's, and closed here with the stack."""
    reader, writer = os.pipe()
    theirs.callback(os.close, writer)
    return reader, writer


class Prepared:
    """The process that forks; ends with the tests."""

    def __init__(self, program, *arguments, folder="/", **environ):
        """``program`` has the words for the interpreter; it is given the number of a socket, then the arguments."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEMOCRAI_", "COV_"))}
        with theirs:
            command = [sys.executable, *program, str(theirs.fileno()), *arguments]
            self._process = subprocess.Popen(command, env=kept | environ, cwd=folder, pass_fds=[theirs.fileno()])
        atexit.register(self._end)

    def send(self, order, streams, report, passed=()):
        """Have it fork for an order; the fork changes to the network that this thread is in."""
        network = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._turn:
                socket.send_fds(self._link, [json.dumps(order).encode()], [*streams, report, network, *passed])
        finally:
            os.close(network)

    def _end(self):
        self._link.close()
        self._process.wait()


@cache
def prepared():
    """Return the process that has imported all commands, and what the one that serves needs."""
    found = pkgutil.walk_packages(democrai_sandbox.cli.__path__, "democrai_sandbox.cli.")
    return Prepared(
        ("-P", PROGRAM),
        *(
            *HOST,
            "democrai_sandbox.console.server",
            "anyio._backends._asyncio",
            "anyio._core._fileio",
            "democrai_sandbox.runtime.extension_run",
            "democrai_sandbox.runtime.extension_run",
            "democrai_sandbox.runtime.single_run",
            *(module.name for module in found),
        ),
    )
