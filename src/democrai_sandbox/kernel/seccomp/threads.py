"""What the kernel says about the filters of this process's threads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")
_MODE_FILTER = "2"


class Thread(NamedTuple):
    """One thread at one moment."""

    tid: int
    filtered: bool
    """It has a filter, which need not be ours."""
    filters: int | None
    """How many, ``None`` on kernels before 5.9."""


def threads() -> dict[int, Thread]:
    """Return the threads of this process by their numbers; none when ``/proc`` cannot be read.

    One that ends meanwhile is left out.
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
            return {}  # some of them are no count
        found[int(entry.name)] = parsed(int(entry.name), text)
    return found


def parsed(tid: int, text: str) -> Thread:
    """Read a ``status`` file. The name of a thread is its own choice: only the last line of a key counts."""
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    count = fields.get("Seccomp_filters", "").strip()
    return Thread(tid, fields.get("Seccomp", "").strip() == _MODE_FILTER, int(count) if count.isdecimal() else None)
