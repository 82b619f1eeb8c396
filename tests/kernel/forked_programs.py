"""Programs of tests in forks of a process that has imported the kernel layer, one such process per test worker.

    process = start("print(sys.argv[1])", "word", stdout=subprocess.PIPE)
    assert run("import sys; sys.exit(3)").returncode == 3

For programs whose start is not tested: imports take most of the time of a new interpreter. A fork has no threads, no
sockets and no restrictions; it is in the network of the thread that starts it. If the start itself is tested, or code
that runs before it (another command, a failing import), use a separate process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from tests.services.commands import Forked, Prepared, pipe

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("fork_server.py")
NETWORK = 0x40000000
HOME = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
"""Network of the tests."""
_libc = ctypes.CDLL(None, use_errno=True)


def set_network(descriptor):
    """Move this thread into a network."""
    if _libc.setns(descriptor, NETWORK):
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def in_network(descriptor):
    """Move this thread, and processes that it starts meanwhile, into a network."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        set_network(descriptor)
        yield
    finally:
        set_network(before)
        os.close(before)


class Process(Forked):
    """Running program: the needed part of ``subprocess.Popen``."""

    def __init__(self, code, words, *, environ, folder, session, streams, passed):
        self.args = words
        self.returncode = None
        order = {
            "code": code,
            "words": list(map(str, words)),
            "environ": dict(os.environ if environ is None else environ),
            "folder": str(folder),
            "session": session,
        }
        with ExitStack() as theirs:
            told, report = pipe(theirs)
            self._report = open(told, "rb", 0)
            given = [self._stream(theirs, number, stream) for number, stream in enumerate(streams)]
            _prepared().send(order, given, report, passed)
        self.pid = int(self._report.readline() or self._lost())

    def _stream(self, theirs, number, stream):
        """Return the descriptor for a standard stream; keep the other end of a pipe."""
        name = ("stdin", "stdout", "stderr")[number]
        setattr(self, name, None)
        if stream == subprocess.PIPE and number == 0:
            reader, writer = os.pipe()
            theirs.callback(os.close, reader)
            self.stdin = open(writer, "w", buffering=1)
            return reader
        if stream == subprocess.PIPE:
            reader, writer = pipe(theirs)
            setattr(self, name, open(reader, errors="replace"))
            return writer
        if stream == subprocess.STDOUT:
            raise ValueError("not here")
        if stream is None or stream == subprocess.DEVNULL:
            null = os.open(os.devnull, os.O_RDWR) if stream else os.dup(number)
            theirs.callback(os.close, null)
            return null
        return stream if isinstance(stream, int) else stream.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def start(code, *words, environ=None, folder="/", session=False, stdin=None, stdout=None, stderr=None, passed=()):
    """Start a program; ``{0}`` in an argument is the number of the first passed descriptor in the program."""
    streams = (stdin, stdout, stderr)
    return Process(code, words, environ=environ, folder=folder, session=session, streams=streams, passed=passed)


def run(code, *words, timeout=100.0, text="", **options):
    """Run a program until it ends; return it with its output."""
    with ExitStack() as stack:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = stack.enter_context(start(code, *words, **pipes, **options))
        late = threading.Timer(timeout, process.kill)
        late.daemon = True
        late.start()
        stack.callback(late.cancel)
        with process.stdin as given:
            given.write(text)
        said = []
        reader = threading.Thread(target=lambda: said.append(process.stderr.read()))
        reader.start()
        written = process.stdout.read()
        reader.join()
        status = process.wait(timeout)
    return subprocess.CompletedProcess(words, status, written, said[0])


@cache
def _prepared():
    """Return the process that has imported the kernel layer, in the network of the tests."""
    with in_network(HOME) if os.geteuid() == 0 else ExitStack():
        return Prepared(("-B", "-P", PROGRAM), str(ROOT), PYTHONPATH=str(ROOT / "src"))
