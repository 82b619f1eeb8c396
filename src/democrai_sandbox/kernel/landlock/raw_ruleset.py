"""Create a ruleset from plain numbers. Standard library only: the spawn server loads this file by its path."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Errors of a path that does not exist or that this user cannot reach, as in the compiled module. Other errors, such as
# missing descriptors or memory, say nothing about the path and are raised.
_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EBADFD}
)


def build(  # noqa: PLR0917 - the spawn server passes the fields of a request in this order
    native: Any,
    fs: int,
    net: int,
    scoped: int,
    paths: Iterable[tuple[str, int]],
    ports: Iterable[tuple[int, int]],
    *,
    exact: bool = False,
) -> tuple[int, list[str]]:
    """Return a ruleset that handles these rights, and the missing paths; with ``exact``, also those with a link."""
    ruleset = native.landlock_create(fs, net, scoped)
    try:
        missing = [path for path, mask in paths if not native.landlock_add_path(ruleset, path, mask & fs, exact)]
        for port, mask in ports:
            if mask & net:  # the kernel refuses empty rules and rules for unhandled rights
                native.landlock_add_port(ruleset, port, mask & net)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset, missing


def identified(paths: Iterable[str]) -> list[tuple[bytes, int, int]]:
    """Return each existing path with the device and inode of its file; skip paths with links."""
    found = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            continue
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == path:  # noqa: PTH115 - small is quick
                status = os.fstat(descriptor)
                found.append((os.fsencode(path), status.st_dev, status.st_ino))
        finally:
            os.close(descriptor)
    return found
