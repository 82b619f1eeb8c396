"""What is left of a child: processes that went into a session of their own, found by the mark in their environment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

MARK = "DEMOCRAI_CHILD"
_ROUNDS = 5


def end_remains(mark: str) -> int:
    """End everything that carries the mark; return how many processes that were.

    One that cleared its environment is not found: that takes a cgroup, which a launcher with the kernel's help has.
    """
    wanted = f"{MARK}={mark}".encode()
    ended = 0
    for _ in range(_ROUNDS):  # while they are ended they may start more
        found = [number for number in _processes() if wanted in _environment(number)]
        if not found:
            break
        ended += sum(_end(number, wanted) for number in found)
    return ended


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - names are all it takes


def _environment(number: int) -> list[bytes]:
    try:
        return Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # gone, or somebody else's


def _end(number: int, wanted: bytes) -> bool:
    """End a process by a handle, looked at once more: its number may be another's by now."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return False
    except OSError:  # some containers refuse it with EPERM, and old kernels have none
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
    """End a process without a handle: numbers are given out in turn, so one does not come up again in a moment."""
    if wanted not in _environment(number):
        return False
    try:
        os.kill(number, signal.SIGKILL)
    except OSError:
        return False
    return True
