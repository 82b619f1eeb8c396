"""File operations with the rights of the application's user: open the policy file, create the socket, remove both.

If root follows a path that a user chose, it may open files that the user cannot, or block in a file system that the
user provides. So the helper forks a process at the start, before any threads. That process forks a child for each
operation, which drops all privileges, has a few seconds, and returns a descriptor.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

_WITHIN = 3.0
_LONGEST = 16 * 1024
_BACKLOG = 1024
_PRIVATE = 0o177


class User(NamedTuple):
    """User whose rights the operations use."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class UserFiles:
    """Process for the operations, usable from any thread."""

    def __init__(self, user: User) -> None:
        """Fork the process. Call before any thread exists."""
        self.user = user
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = os.fork()
        if self._process == 0:
            self._link.close()
            _dispatch(theirs, user)
        theirs.close()

    def open_file(self, path: str) -> int:
        """Open a file for reading, without following a link as its last component or blocking on a pipe."""
        return self._send("open_file", path)

    def place_socket(self, path: str) -> socket.socket:
        """Create a listening socket at a path that is free or has an abandoned socket."""
        listener = socket.socket(fileno=self._send("place_socket", path))
        # Listen again, so that clients see this process as their peer instead of the child.
        listener.listen(_BACKLOG)
        return listener

    def remove_socket(self, path: str) -> None:
        """Remove the socket at a path."""
        self._send("remove_socket", path)

    def remove_file(self, path: str) -> None:
        """Remove a regular file."""
        self._send("remove_file", path)

    def close(self) -> None:
        """Stop the forked process."""
        self._link.close()
        with suppress(ChildProcessError):
            os.waitpid(self._process, 0)

    def _send(self, act: str, path: str) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                try:
                    socket.send_fds(self._link, [json.dumps([act, path]).encode()], [theirs.fileno()])
                except OSError:
                    error = "the helper's process for file operations has ended"
                    fix = "restart the helper; the rules stay in force meanwhile"
                    raise RequestRefused("failed", error, fix) from None
            ours.settimeout(2 * _WITHIN)
            data, descriptors, _, _ = socket.recv_fds(ours, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise TimeoutError(errno.ETIMEDOUT, "the operation timed out or was killed", path)
        number, text = json.loads(data)
        if number:
            raise OSError(number, text, path)
        return descriptors[0] if descriptors else -1


def _dispatch(link: socket.socket, user: User) -> NoReturn:
    """Fork a child for each operation; do nothing else here. Ends when the helper closes its socket."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            data, descriptors, _, _ = socket.recv_fds(link, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
            if not data:
                break
            with socket.socket(fileno=descriptors[0]) as reply:
                act, path = json.loads(data)
                child = os.fork()
                if child == 0:
                    link.close()
                    _run(_ACTS[act], path, reply, user)
            _await(child)
    finally:
        os._exit(0)


def _await(child: int) -> None:
    try:
        handle = os.pidfd_open(child)
    except OSError:
        handle = -1
    if handle >= 0:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(_WITHIN * 1000):
            os.kill(child, signal.SIGKILL)
        os.close(handle)
    os.waitpid(child, 0)


def _run(act: Callable[[str], int], path: str, reply: socket.socket, user: User) -> NoReturn:
    try:
        signal.alarm(2 * int(_WITHIN))  # for kernels without process descriptors
        try:
            _become(user)
            descriptor = act(path)
        except OSError as error:
            reply.send(json.dumps([error.errno or errno.EIO, error.strerror or str(error)]).encode())
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
            reply.sendmsg([b'[0, ""]'], rights)
    finally:
        os._exit(0)


def _become(user: User) -> None:
    """Drop all privileges permanently: real, effective and saved ids, and with them all capabilities."""
    if os.geteuid() != 0 and os.getresuid() == (user.uid,) * 3:
        return  # a helper with capabilities only, which always had this id
    try:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        raise OSError(errno.EIO, f"the helper cannot switch to user {user.uid}: {error.strerror}") from None


def _open_file(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _place_socket(path: str) -> int:
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Lock the folder: of two helpers that start together, one must not remove the socket that the other has created.
    fcntl.flock(folder, fcntl.LOCK_EX)
    _clear_the_place(path)
    os.umask(_PRIVATE)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener.detach()


def _clear_the_place(path: str) -> None:
    place = Path(path)
    try:
        found = place.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise FileExistsError(errno.EEXIST, "the path is taken by another file or another user's socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        if probe.connect_ex(path) != errno.ECONNREFUSED:  # a busy listener also counts
            raise OSError(errno.EADDRINUSE, "another process listens there")
    place.unlink()


def _remove(path: str, expected: Callable[[int], bool]) -> int:
    place = Path(path)
    with suppress(FileNotFoundError):
        found = place.lstat()
        if expected(found.st_mode) and found.st_uid == os.geteuid():
            place.unlink()
    return -1


_ACTS: dict[str, Callable[[str], int]] = {
    "open_file": _open_file,
    "place_socket": _place_socket,
    "remove_socket": partial(_remove, expected=stat.S_ISSOCK),
    "remove_file": partial(_remove, expected=stat.S_ISREG),
}
