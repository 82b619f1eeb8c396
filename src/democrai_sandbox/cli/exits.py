"""Exit statuses of commands."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Documented exit statuses of all commands; ``run`` returns that of the program instead."""

    OK = 0
    FAILED = 1
    """Refused, failed, or (status, doctor, manifest check) a problem was found."""
    USAGE = 2
    UNREACHABLE = 3
    """The node or the database does not answer."""
    CONFLICT = 4
    """Another user decided first, or another decision blocks this one."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
