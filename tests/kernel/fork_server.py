"""Import the kernel layer once, and run each program of a test in a fork.

Started by tests.kernel.forked_programs. Orders have the format of tests.services.commanding.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
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
    "democrai_sandbox.kernel.egress.allowlist",
    "democrai_sandbox.kernel.helper.main",
    "democrai_sandbox.kernel.helper.enforcer",
    "democrai_sandbox.kernel.seccomp.syscalls",
    "democrai_sandbox.kernel.spawn",
    "tests.kernel.landlock.world",
    "tests.kernel.spawn.programs",
)
PATH = list(sys.path)


def settle(order, given):
    """Make the fork look like a new interpreter for the order."""
    passed = commanding.take(given)
    if order["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.stdin, sys.stdout, sys.stderr = map(commanding.stream, range(commanding.STREAMS))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["-c", *(word.format(*passed) if passed else word for word in order["words"])]
    sys.path[:] = ["", *PATH]
    threading.current_thread()._set_native_id()  # some Python versions keep that of the parent
    # Read the environment again, which imported modules have read before.
    sys.modules["tempfile"].tempdir = None
    sys.modules["democrai_sandbox.kernel.landlock.rights"]._limit_from_environment.cache_clear()


def run(code):
    """Run the program; return its exit status after its threads have ended."""
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
    os.close(sys.modules["tests.kernel.forked_programs"].HOME)  # used only by the starting process
    # Freeze existing objects, so that forks do not copy them during garbage collection.
    gc.collect()
    gc.freeze()
    ORDER, GIVEN = commanding.orders(socket.socket(fileno=int(sys.argv[1])))
    settle(ORDER, GIVEN)
    os._exit(run(ORDER["code"]))
