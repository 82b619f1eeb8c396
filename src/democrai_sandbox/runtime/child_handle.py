"""Descriptor that signals the end of a child, also where the system does not allow pidfds."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


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
