"""Imports the command line and all it runs once, and carries out each command in a fork of itself.

The program that tests.services.commands starts. Orders come over a socket, each with the streams of its command, a
pipe for two lines (the number of the process, and once it has ended, how), its network, and further descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import termios
import time

LARGEST = 1 << 20
STREAMS = 3
MOST_PASSED = 8
NETWORK = 0x40000000


def orders(link):
    """Fork for each order, and tell how the forks end; returns in a fork alone, with its order and its descriptors."""
    waiting = selectors.DefaultSelector()
    waiting.register(link, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                waiting.unregister(key.fileobj)
                tell_end(key.fileobj, *key.data)
                continue
            text, given, *_ = socket.recv_fds(link, LARGEST, STREAMS + 2 + MOST_PASSED)
            if not text:
                end(waiting)
            report = given.pop(STREAMS)
            pid = os.fork()
            if pid == 0:
                os.close(report)
                forget(link, waiting)
                return json.loads(text), given
            for number in given:
                os.close(number)
            os.write(report, b"%d\n" % pid)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, report))


def tell_end(watched, pid, report):
    """Write how a fork ended."""
    os.close(watched)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # whoever started it does not want to know
        os.write(report, b"%d\n" % status)
    os.close(report)


def forget(link, waiting):
    """Close, in a fork, what only the process that forks has to do with."""
    for key in waiting.get_map().values():
        if key.data is not None:
            os.close(key.fd)
            os.close(key.data[1])
    waiting.close()
    link.close()


def end(waiting):
    """End what is left: the tests are over, or have ended in the middle."""
    for key in waiting.get_map().values():
        if key.data is not None:
            os.kill(key.data[0], signal.SIGKILL)
    sys.exit()


def take(given):
    """Take over the standard streams and the network; return the further descriptors."""
    *streams, network = given[: STREAMS + 1]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    enter(network)
    return given[STREAMS + 1 :]


def enter(network):
    """Change to a network, unless this is it."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    os.close(network)


def settle(order, given):
    """Make the fork look like a process that was started for the order."""
    take(given)
    if order["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = map(stream, range(STREAMS))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["democrai-sandbox", *order["arguments"]]
    # What was taken from the surroundings when these were imported is taken from the new ones.
    sys.path.insert(0, order["folder"])
    sys.modules["tempfile"].tempdir = None
    sys.modules["democrai_sandbox.guard.configuration"].install_runtime_paths()


def stream(number):
    """Open a standard stream as an interpreter does at its start."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    is_plain = bool(os.environ.get("PYTHONUNBUFFERED")) and number > 0
    raw = open(number, "wb" if number else "rb", 0 if is_plain else -1, closefd=False)
    errors = "backslashreplace" if number == 2 else errors or "strict"
    is_by_line = number == 2 or os.isatty(number)
    found = io.TextIOWrapper(raw, encoding or "utf-8", errors, line_buffering=is_by_line, write_through=is_plain)
    found.mode = "w" if number else "r"
    return found


def main(number, *modules):
    """Import, wait for orders, and be the command that one of them wants."""
    for name in modules:
        importlib.import_module(name)
    if rendering := sys.modules.get("democrai_sandbox.console.render"):
        rendering.prepare()
    # What is there is there for good: no fork has to look through it, which would copy it.
    gc.collect()
    gc.freeze()
    order, given = orders(socket.socket(fileno=int(number)))
    settle(order, given)
    exec(order["before"], {})
    from democrai_sandbox.cli.entry import main as command

    sys.exit(command())


if __name__ == "__main__":
    main(*sys.argv[1:])
