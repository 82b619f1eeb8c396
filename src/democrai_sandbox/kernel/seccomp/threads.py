"""Read the seccomp state of this process's threads from the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")
_MODE_FILTER = "2"


class Thread(NamedTuple):
    """State of one thread."""

    tid: int
    filtered: bool
    """Whether it has any filter."""
    filters: int | None
    """Number of filters; ``None`` on kernels before 5.9."""


def threads() -> dict[int, Thread]:
    """Return the threads of this process by id; empty when ``/proc`` cannot be read.

    Threads that end meanwhile are left out.
    """
    found: dict[int, Thread] = {}
    try:
        entries = list(_TASKS.iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            text = (entry / "status").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return {}  # an incomplete list is not a count
        found[int(entry.name)] = parsed(int(entry.name), text)
    return found


def parsed(tid: int, text: str) -> Thread:
    """Parse a ``status`` file. A thread chooses its name, so only the last line of a key is trustworthy."""
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    count = fields.get("Seccomp_filters", "").strip()
    return Thread(tid, fields.get("Seccomp", "").strip() == _MODE_FILTER, int(count) if count.isdecimal() else None)
