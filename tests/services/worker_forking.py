"""Imports what worker processes of the runtime need once, and is each of them in a fork of itself.

The program that tests.services.workers starts, with the words for the interpreter that a worker has. Each connection
is the order of one worker: a length, with its streams and lines as descriptors, then its command, variables and folder.
The fork tells its number; asked with a byte, this process tells how it ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import socket
import sys
import time

PRELOADED = (
    "democrai_sandbox.runtime.worker.main",
    "democrai_sandbox.sdk",
    "asyncio",
    "http.client",
    "ssl",
    "tempfile",
    "traceback",
)


def main(number):
    """Wait for orders, and fork for each; returns in a fork alone, with its order and its descriptors."""
    listener = socket.socket(fileno=number)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ, accept)
    waiting.register(0, selectors.EVENT_READ, leave)
    while True:
        for key, _ in waiting.select():
            if key.data is not accept:
                key.data(waiting, key.fileobj)
                continue
            link, _ = listener.accept()
            order, given = received(link)
            if order is None:
                link.close()
                continue
            pid = os.fork()
            if pid == 0:
                os.setsid()
                link.sendall(b"%d\n" % os.getpid())
                forget(waiting)
                link.close()
                return order, given
            for each in given:
                os.close(each)
            waiting.register(link, selectors.EVENT_READ, Watch(pid).hear)


def forget(waiting):
    """Close, in a fork, what only the process that forks has to do with."""
    for key in list(waiting.get_map().values()):
        if not isinstance(key.fileobj, int):
            key.fileobj.close()
        elif key.fd > 0:
            os.close(key.fd)
    waiting.close()


def accept():
    """Mark what new orders come by."""


def leave(waiting, stream):
    """End: the tests are over, or have ended in the middle."""
    os._exit(0)


def received(link):
    """Read an order; none from a host that ended in the middle of it."""
    head, given, *_ = socket.recv_fds(link, 8, 5)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size and (more := link.recv(size - len(text))):
        text += more
    if size and len(text) == size:
        return json.loads(text), given
    for each in given:
        os.close(each)
    return None, ()


class Watch:
    """What is known of one worker."""

    def __init__(self, pid):
        self.pid = pid

    def hear(self, waiting, link):
        """Tell how it ended, which is asked when it has; who no longer asks has ended, and so will the worker."""
        waiting.unregister(link)
        if link.recv(1):
            link.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        else:
            handle = os.pidfd_open(self.pid)
            waiting.register(handle, selectors.EVENT_READ, self.bury)
        link.close()

    def bury(self, waiting, handle):
        """Take note of an end that nobody asks for."""
        waiting.unregister(handle)
        os.close(handle)
        os.waitpid(self.pid, 0)


def settle(order, given):
    """Make the fork look like a process that was started for the order."""
    *streams, lane, control = given
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), *streams)):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(order["umask"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    # What was taken from the surroundings when these were imported is taken from the new ones.
    sys.modules["tempfile"].tempdir = None
    sys.modules["democrai_sandbox.guard.configuration"].install_runtime_paths()
    sys.argv = [*order["words"], str(lane), str(control)]


def preload(bootstrap, packages):
    """Import as a worker does, and leave no other trace; returns the code that a worker begins with."""
    with open(bootstrap, "rb") as file:
        code = compile(file.read(), bootstrap, "exec", dont_inherit=True)
    names = {"__name__": "bootstrap", "__file__": bootstrap}
    exec(code, names)
    before = list(sys.meta_path)
    names["find_packages"](packages)
    for name in PRELOADED:
        importlib.import_module(name)
    sys.meta_path[:] = before
    gc.collect()
    gc.freeze()
    return code


if __name__ == "__main__":
    begin = preload(*sys.argv[2:])
    settle(*main(int(sys.argv[1])))
    exec(begin, {"__name__": "__main__", "__file__": sys.argv[0]})
