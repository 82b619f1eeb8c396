"""Imports the kernel layer once, and runs each program of a test in a fork of itself.

The program that tests.kernel.prepared starts. Orders come over a socket, each with the streams of its program, a pipe
for two lines (the number of the process, and once it has ended, how), its network, and further descriptors.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import threading
import traceback
from types import ModuleType

MODULES = (
    *("errno", "fcntl", "pathlib", "pickle", "resource", "select", "shutil", "signal", "struct", "subprocess", "time"),
    *("asyncio", "encodings.idna", "encodings.ascii", "dataclasses", "tempfile", "types", "collections", "contextlib"),
    "democrai_sandbox.kernel.application",
    "democrai_sandbox.kernel.egress",
    "democrai_sandbox.kernel.egress.interface",
    "democrai_sandbox.kernel.helper.lifetime",
    "democrai_sandbox.kernel.helper.enforcing",
    "democrai_sandbox.kernel.seccomp.syscalls",
    "democrai_sandbox.kernel.spawn",
    "tests.kernel.landlock.world",
    "tests.kernel.spawn.programs",
)
LARGEST = 1 << 20
STREAMS = 3
MOST_PASSED = 8
NETWORK = 0x40000000
PATH = list(sys.path)


def orders(link):
    """Fork for each order, and tell how the forks end; returns in a fork alone, with its order and its descriptors."""
    waiting = selectors.DefaultSelector()
    waiting.register(link, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is not None:
                waiting.unregister(key.fileobj)
                commanding.tell_end(key.fileobj, *key.data)
                continue
            text, given, *_ = socket.recv_fds(link, LARGEST, STREAMS + 2 + MOST_PASSED)
            if not text:
                commanding.end(waiting)
            report = given.pop(STREAMS)
            pid = os.fork()
            if pid == 0:
                os.close(report)
                commanding.forget(link, waiting)
                return json.loads(text), given
            for number in given:
                os.close(number)
            os.write(report, b"%d\n" % pid)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, report))


def settle(order, given):
    """Make the fork look like an interpreter that was started for the order."""
    for number, stream in enumerate(given[:STREAMS]):
        os.dup2(stream, number)
        os.close(stream)
    if order["session"]:
        os.setsid()
    enter(given[STREAMS])
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.stdin, sys.stdout, sys.stderr = map(commanding.stream, range(STREAMS))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    passed = given[STREAMS + 1 :]
    sys.argv = ["-c", *(word.format(*passed) if passed else word for word in order["words"])]
    sys.path[:] = ["", *PATH]
    threading.current_thread()._set_native_id()  # some versions of Python keep that of the parent
    # What was taken from the surroundings when it was imported is taken from the new ones.
    sys.modules["tempfile"].tempdir = None
    sys.modules["democrai_sandbox.kernel.landlock.support"]._limit_from_environment.cache_clear()


def enter(network):
    """Change to a network, unless this is it."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
    os.close(network)


def run(code):
    """Be the program: return its exit status, after its threads have ended."""
    main = ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


if __name__ == "__main__":
    ROOT = sys.argv[2]
    sys.path.append(ROOT)
    commanding = importlib.import_module("tests.services.commanding")
    for name in MODULES:
        importlib.import_module(name)
    os.close(sys.modules["tests.kernel.prepared"].HOME)  # which is for those who start this process
    # What is there is there for good: no fork has to look through it, which would copy it.
    gc.collect()
    gc.freeze()
    ORDER, GIVEN = orders(socket.socket(fileno=int(sys.argv[1])))
    settle(ORDER, GIVEN)
    os._exit(run(ORDER["code"]))
