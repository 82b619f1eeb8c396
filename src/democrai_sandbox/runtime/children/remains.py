"""Leftover processes of a child that moved to another session, found by the mark in their environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "DEMOCRAI_CHILD"
_ROUNDS = 5


def end_remains(mark: str) -> int:
    """Kill all processes that carry the mark; return their number.

    A process that cleared its environment is not found; finding it needs a cgroup, which the confining launcher has.
    """
    wanted = f"{MARK}={mark}".encode()
    ended = 0
    for _ in range(_ROUNDS):  # they may start more processes meanwhile
        found = [number for number in _processes() if wanted in _environment(number)]
        if not found:
            break
        ended += sum(_end(number, wanted) for number in found)
    return ended


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - only the names are needed


def _environment(number: int) -> list[bytes]:
    try:
        return Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # ended, or owned by another user


def _end(number: int, wanted: bytes) -> bool:
    """Kill a process through a pidfd, after checking again that the pid was not reused."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return False
    except OSError:  # some containers refuse it with EPERM, and old kernels lack it
        return _end_by_number(number, wanted)
    try:
        if wanted not in _environment(number):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _end_by_number(number: int, wanted: bytes) -> bool:
    """Kill a process without a pidfd: pids are assigned in turn, so one is not reused within a moment."""
    if wanted not in _environment(number):
        return False
    try:
        os.kill(number, signal.SIGKILL)
    except OSError:
        return False
    return True
