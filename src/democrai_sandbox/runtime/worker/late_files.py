"""Files that the host opens for a worker, because the kernel rules of a confined process cannot grow."""

from __future__ import annotations

import errno
import os
import stat
from fcntl import F_SETFL, fcntl
from os import close, fstat
from os import open as open_file
from typing import TYPE_CHECKING

from democrai_sandbox.guard.runtime_paths import is_host_code
from democrai_sandbox.policy import AccessRule, Operation, ResourceType, is_at_or_below, normalise_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .process import WorkerSpec

_ACCEPTED = (
    os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_NOFOLLOW
) | (os.O_CLOEXEC | os.O_NOCTTY | os.O_SYNC | os.O_DSYNC | getattr(os, "O_LARGEFILE", 0))
_STATUS = os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DSYNC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ONE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OF_PROCESSES = "/proc"
"""Its entries depend on the process that opens them."""


class LateFiles:
    """Checks and opens the files of one worker. May block, so it is called on a thread."""

    def __init__(self, spec: WorkerSpec, rules: Callable[[AccessRule], bool]) -> None:
        """Take ``rules``, which returns whether the worker's rules cover a rule."""
        self._rules = rules
        self._own = tuple(map(normalise_path, (*spec.own_read, *spec.own_write)))
        self._protected = tuple(map(normalise_path, spec.protected))

    def open(self, path: str, flags: int, mode: int, decide: Callable[[Operation], bool]) -> int:
        """Return a descriptor, or a negative error number; ``decide`` is asked about what no rule allows."""
        if flags & ~_ACCEPTED or flags & os.O_ACCMODE == os.O_ACCMODE:
            return -errno.EINVAL
        if not path.startswith("/") or normalise_path(path) != path or self._is_shut(path):
            return -errno.EACCES
        for operation in operations_of(flags):
            wanted = AccessRule(ResourceType.FILESYSTEM, operation, path, path)
            if is_host_code(path, operation.value) or not (self._rules(wanted) or decide(operation)):
                return -errno.EACCES
        try:
            return open_without_links(path, flags, mode & 0o777)
        except (OSError, ValueError) as error:
            return -(getattr(error, "errno", None) or errno.EINVAL)

    def _is_shut(self, path: str) -> bool:
        if is_at_or_below(path, _OF_PROCESSES):
            return True
        return _is_below(path, self._protected) and not _is_below(path, self._own)


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(is_at_or_below(path, root) for root in roots)


def operations_of(flags: int) -> Iterator[Operation]:
    """Yield the operations that an open with these flags needs; it creates the file only with ``O_CREAT``."""
    access, creates = flags & os.O_ACCMODE, flags & os.O_CREAT
    if access != os.O_WRONLY:
        yield Operation.READ
    if creates:
        yield Operation.CREATE
    if (access != os.O_RDONLY or flags & os.O_TRUNC) and not (creates and flags & os.O_EXCL):
        yield Operation.MODIFY


def open_without_links(path: str, flags: int, mode: int) -> int:
    """Open a file or folder without following a link in any place; refuse devices, pipes and sockets."""
    *above, name = path.split("/")[1:]
    held = open_file("/", _FOLDER)
    try:
        for part in above:
            held, outer = open_file(part, _FOLDER, dir_fd=held), held
            close(outer)
        found = open_file(name or ".", flags | _ONE, mode, dir_fd=held)
    finally:
        close(held)
    kind = stat.S_IFMT(fstat(found).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        close(found)
        return -errno.EACCES
    fcntl(found, F_SETFL, flags & _STATUS)
    return found
