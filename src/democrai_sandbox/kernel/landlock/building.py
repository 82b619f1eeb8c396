"""Making a ruleset out of plain numbers.

The spawn server loads this file by its path, without the package: standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE_MASK = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Execute, write, read, truncate, device ioctl: all that a rule on something other than a folder may hold."""

# A rule is left out where there is nothing to reach: the path does not exist, this user cannot come to it, or it leads
# to a pipe, socket or memory file by way of /proc, which Landlock does not restrict. Anything else (no descriptors or
# memory left) says nothing about the path, and is an error.
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EBADFD}
)


class Native(Protocol):
    """What this needs of the compiled module."""

    def landlock_create(self, fs: int, net: int, scoped: int, /) -> int:
        """Return the descriptor of a new ruleset."""

    def landlock_add_path(self, ruleset: int, fd: int, access: int, /) -> None:
        """Allow rights at and beneath a descriptor."""

    def landlock_add_port(self, ruleset: int, port: int, access: int, /) -> None:
        """Allow rights for one TCP port."""


def build(  # noqa: PLR0917 - the spawn server hands on what it was sent, in this order
    native: Native,
    fs: int,
    net: int,
    scoped: int,
    paths: Iterable[tuple[str, int]],
    ports: Iterable[tuple[int, int]],
    *,
    exact: bool = False,
) -> tuple[int, list[str]]:
    """Return the descriptor of a ruleset that handles these rights, and the paths that are not there.

    With ``exact``, one that takes a link is not there either.
    """
    ruleset = native.landlock_create(fs, net, scoped)
    try:
        missing = [path for path, mask in paths if not _add_path(native, ruleset, path, mask & fs, exact=exact)]
        for port, mask in ports:
            if mask & net:  # the kernel refuses a rule of nothing, and one of what is not handled
                native.landlock_add_port(ruleset, port, mask & net)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset, missing


def _add_path(native: Native, ruleset: int, path: str, mask: int, *, exact: bool) -> bool:
    """Add a rule for what the path leads to, symlinks followed; tell whether it was there."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            # Somebody who can write on the way may have put a link there since the path was looked at.
            if exact and os.readlink(f"/proc/self/fd/{descriptor}") != path:  # noqa: PTH115 - small is quick
                return False
            # The kind is asked of the descriptor that the rule is made of: the path may lead elsewhere a moment later.
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                mask &= FILE_MASK
            if mask:
                native.landlock_add_path(ruleset, descriptor, mask)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True
