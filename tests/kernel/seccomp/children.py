"""Run Python code in a separate process, which may restrict itself, and return its results."""

from __future__ import annotations

import json
import subprocess
import textwrap

from tests.kernel import forked_programs

PRELUDE = """
from __future__ import annotations
import asyncio, ctypes, errno, json, os, select, signal, socket, subprocess, sys, threading, time
from dataclasses import replace
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.seccomp import (
    APPLICATION, NO_EXEC, Inet, Profile, Unix, apply, child_profile, give_up_programs, now, program, support,
    this_architecture
)
from democrai_sandbox.kernel.seccomp.syscalls import TABLE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_ARCH = this_architecture()
NUMBERS = {row.name: row.number(_ARCH) for row in TABLE}


def call(name, *args):
    '''Make a system call; return the name of its error, or "ok".'''
    number = NUMBERS[name] if isinstance(name, str) else name
    result = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in (*args, 0, 0, 0, 0, 0, 0)[:6]])
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def forked(act):
    '''Run a function in a fork, which has the same filters; return its result, or the signal that ended it.'''
    receiving, sending = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            text = act()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(sending, str(text).encode())
        os._exit(0)
    os.close(sending)
    with open(receiving, "rb") as answer:
        text = answer.read().decode()
    status = os.waitpid(pid, 0)[1]
    return f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else text


def refused(act):
    '''Return the name of the error of a function, or "ok".'''
    try:
        value = act()
    except OSError as error:
        return errno.errorcode[error.errno]
    if hasattr(value, "close"):
        value.close()
    return "ok"


class Holder(threading.Thread):
    '''Thread that executes orders.'''

    def __init__(self):
        super().__init__(daemon=True)
        self._order, self._answer = None, None
        self._asked, self._done = threading.Event(), threading.Event()
        self.start()

    def run(self):
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._order is None:
                return
            try:
                self._answer = self._order()
            except BaseException as error:
                self._answer = error
            self._done.set()

    def do(self, order):
        self._order = order
        self._done.clear()
        self._asked.set()
        assert self._done.wait(30)
        return self._answer

    def end(self):
        self._order = None
        self._asked.set()
        self.join(30)


def tell(**found):
    print(json.dumps(found, default=str), flush=True)
"""


def run(body: str, *, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    """Run it until it ends in any way."""
    return forked_programs.run(PRELUDE + textwrap.dedent(body), folder=forked_programs.ROOT, timeout=timeout)


def told(body: str, *, timeout: float = 50) -> dict:
    """Run it, and return its last result."""
    result = run(body, timeout=timeout)
    assert result.returncode == 0, (result.returncode, result.stderr, result.stdout)
    return json.loads(result.stdout.splitlines()[-1])
