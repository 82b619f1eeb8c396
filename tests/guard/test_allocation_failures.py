"""Memory that runs out during a check: the check refuses, and the process survives."""

from __future__ import annotations

import pytest


def refusals(world):
    """Let allocations of each refused call fail, single ones and all from one on; count the results."""
    import _testcapi
    import os
    import socket
    import sqlite3

    from democrai_sandbox import process_guard_context

    os.symlink(world.secret, world.inside("link"))
    number = os.open(world.secret, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as made:
        calls = {
            "open": lambda: open(world.secret),
            "a link": lambda: open(world.inside("link")),
            "os.open": lambda: os.open(world.inside("..", "outside", "secret.txt"), os.O_RDONLY),
            "stat": lambda: os.stat(world.secret),
            "listdir": lambda: os.listdir(world.outside),
            "mkdir": lambda: os.mkdir(world.out("new")),
            "rename": lambda: os.rename(world.inside("link"), world.out("link")),
            "a foreign descriptor": lambda: os.read(number, 1),
            "connect": lambda: made.connect(server.getsockname()),
            "lookup": lambda: socket.getaddrinfo("host.invalid", 80),
            "sqlite3": lambda: sqlite3.connect(world.secret),
            "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
            "putenv": lambda: os.putenv("DEMOCRAI_SANDBOX_X", "1"),
            "ctypes": lambda: __import__("_ctypes"),
        }
        guard = process_guard_context(subject="demo", allowed_paths=[world.root])
        return guard.run(lambda: {name: exhausted(call, _testcapi) for name, call in calls.items()})


def exhausted(call, failing):
    """Return how many of the calls passed, and whether the first one without a failure was refused."""
    passed = 0
    for first in range(60):
        for last in (0, first + 1, first + 3):  # 0: all from there on
            try:
                failing.set_nomemory(first, last)
                call()
            except Exception:
                failing.remove_mem_hooks()
            else:
                failing.remove_mem_hooks()
                passed += 1
    return passed


def leavings(world):
    """Let single allocations fail inside calls that leave the guard; count reads of a secret after each."""
    import _testcapi
    import os
    import sqlite3
    import sys

    from democrai_sandbox import process_guard_context

    sys.unraisablehook = lambda _: None
    name = world.inside("x.db")
    calls = {"a denial": lambda: os.stat(world.secret)}
    sqlite3.connect(name).close()
    if sys.version_info < (3, 12):  # later ones crash where they make a function without memory, guard or not
        calls["a database"] = lambda: sqlite3.connect(name).close()
        calls["a guard"] = lambda: process_guard_context(subject="other", allowed_paths=[world.outside]).run(int)

    def passes():
        try:
            open(world.secret).close()
        except PermissionError:
            return 0
        return 1

    def after(call):
        number = 0
        for first in range(120):
            for last in (first + 1, first + 4):
                try:
                    _testcapi.set_nomemory(first, last)
                    call()
                except Exception:
                    _testcapi.remove_mem_hooks()
                else:
                    _testcapi.remove_mem_hooks()
                number += passes()
        return number

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    return guard.run(lambda: {name: after(call) for name, call in calls.items()})


def test_no_guard_is_lost_where_memory_runs_out_while_it_is_left_for_a_moment(case):
    """Whichever allocation fails while the guard is left, a secret is still refused afterwards."""
    pytest.importorskip("_testcapi")
    passed = case.run(leavings)
    assert {name: number for name, number in passed.items() if number} == {}


def test_no_check_lets_pass_what_it_had_no_memory_to_refuse(case):
    """Whichever allocation fails, a refused call does not pass, and nothing crashes."""
    pytest.importorskip("_testcapi")
    passed = case.run(refusals)
    assert {name: number for name, number in passed.items() if number} == {}
