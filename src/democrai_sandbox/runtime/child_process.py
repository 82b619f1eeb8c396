"""Facilities for starting processes: the environment of the host at its start, and the descriptor of an end.

Extensions in this process share ``os.environ`` and ``sys``. Their changes must not reach later children of the host: a
library search path runs code there before any guard, and ``sys.executable`` is the program itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERPRETER = str(sys.executable)
BASE_INTERPRETER = str(getattr(sys, "_base_executable", sys.executable))
"""Interpreter of the installation, not of a virtual environment."""
PREFIX = str(sys.prefix)

_settled: Mapping[str, str] | None = None


def settle_environment() -> None:
    """Save the current environment for all later children. The host calls this before the first guard."""
    global _settled  # noqa: PLW0603 - settled once
    if _settled is None:
        _settled = MappingProxyType(dict(os.environ))


def host_environment() -> Mapping[str, str]:
    """Return the environment from which children of the host inherit: the saved one, or else the current one."""
    return os.environ if _settled is None else _settled


def child_handle(pid: int) -> int:
    """Return a descriptor that becomes readable when a child of this process ends. The caller closes it.

    The child is not reaped. Some containers refuse ``pidfd_open`` with EPERM and old kernels lack it; there a thread
    waits for the child.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return _waited_for(pid)


def _waited_for(pid: int) -> int:
    ended, held = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        try:
            with suppress(ChildProcessError):  # already reaped, so it has ended
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        finally:
            os.close(held)

    threading.Thread(target=wait, name="child-end", daemon=True).start()
    return ended


async def wait_until_readable(*descriptors: int) -> None:
    """Wait on the running loop until one of the descriptors is readable."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    for descriptor in descriptors:
        loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
