"""A descriptor that tells of the end of a child, also where the system allows no pidfd."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


def child_handle(pid: int) -> int:
    """Return a descriptor, for the caller to close, that is readable once a child of this process has ended.

    The child stays to be collected. Some containers refuse ``pidfd_open`` with EPERM, and old kernels have none: a
    thread waits for the child there.
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
            with suppress(ChildProcessError):  # it was collected, so it has ended
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        finally:
            os.close(held)

    threading.Thread(target=wait, name="child-end", daemon=True).start()
    return ended
