"""What the exit status of a command says."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Documented, and the same for every command; ``run`` passes on that of the program instead."""

    OK = 0
    FAILED = 1
    """Refused, failed, or (status, doctor, manifest check) something is not as it should be."""
    USAGE = 2
    UNREACHABLE = 3
    """The node or the database does not answer."""
    CONFLICT = 4
    """Somebody else was quicker, or another decision stands in the way."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
