"""Imports modules once, and runs each body of a test in a fork of itself: importing is most of what a fresh one does.

The program that tests.services.forks starts. Each line of its input is an order; each line of its output tells how the
fork ended. What a body does stays in its fork.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import importlib.util
import json
import os
import select
import signal
import sys
import threading


def orders(prepare):
    """Take orders, one after the other; returns in a fork alone, with its order."""
    for line in sys.stdin:
        order = json.loads(line)
        prepare(order["spec"])
        pid = os.fork()
        if pid == 0:
            return order
        os.write(1, json.dumps(ended(pid, order["timeout"])).encode() + b"\n")
    sys.exit()


def ended(pid, seconds):
    """The exit status of a fork; nothing when it had to be killed."""
    watched = os.pidfd_open(pid)
    try:
        in_time = select.select([watched], [], [], seconds)[0]
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status if in_time else None
    finally:
        os.close(watched)


def settle(order):
    """Make the fork look like a process that was started for the order."""
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["out"], os.O_RDWR),
        (2, order["err"], os.O_RDWR),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    # What was taken from the environment when these were imported is taken from the new one.
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
    if "democrai_sandbox.guard.configuration" in sys.modules:
        sys.modules["democrai_sandbox.guard.configuration"].install_runtime_paths()
    if order.get("workers"):
        file, *given = order["workers"]
        loaded(file).start_by(*given)
    sys.argv = ["child.py", json.dumps(order["spec"])]


def loaded(path):
    """Return the module of a file."""
    found = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main(program, *modules):
    """Import, wait for orders, and be the child that one of them wants."""
    child = loaded(program)
    for name in modules:
        importlib.import_module(name)
    order = orders(child.prepare)
    settle(order)
    faulthandler.enable()  # a body that crashes says where, in the text that its test shows
    child.main()
    if order.get("leaves"):
        leave()


def leave():
    """End as an interpreter does, but for taking all modules apart: that takes longer than many a body."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
