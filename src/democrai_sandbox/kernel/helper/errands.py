"""What is done with the application's user's rights: opening the policy file, placing the socket, removing both.

Root following a path that a user chose may open what the user could not, or hang for ever in a file system that the
user provides. So a process is set aside at the start, before there are threads, and makes a child for each errand. That
gives up all privileges first, has a few seconds, and hands back a descriptor.
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
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .answers import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

_WITHIN = 3.0
_LONGEST = 16 * 1024
_BACKLOG = 1024
_PRIVATE = 0o177


class User(NamedTuple):
    """Whose rights an errand has."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class Errands:
    """Sends errands out, one at a time each, from any thread."""

    def __init__(self, user: User) -> None:
        """Set the process aside. There must be no threads yet."""
        self.user = user
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = os.fork()
        if self._process == 0:
            self._link.close()
            _dispatch(theirs, user)
        theirs.close()

    def open_file(self, path: str) -> int:
        """Open a file for reading, never through a link in its last place, and never waiting for a writer."""
        return self._send("open_file", path)

    def place_socket(self, path: str) -> socket.socket:
        """Place a listening socket at a path where there is none, or one that nobody listens at any more."""
        listener = socket.socket(fileno=self._send("place_socket", path))
        # Listening once more makes this process, not the errand's, the one that clients see at the other end.
        listener.listen(_BACKLOG)
        return listener

    def remove_socket(self, path: str) -> None:
        """Remove the socket at a path."""
        self._send("remove_socket", path)

    def remove_file(self, path: str) -> None:
        """Remove a regular file."""
        self._send("remove_file", path)

    def close(self) -> None:
        """End the process that was set aside."""
        self._link.close()
        with suppress(ChildProcessError):
            os.waitpid(self._process, 0)

    def _send(self, act: str, path: str) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self._hand_over(json.dumps([act, path]).encode(), theirs)
            ours.settimeout(2 * _WITHIN)
            data, descriptors, _, _ = socket.recv_fds(ours, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise TimeoutError(errno.ETIMEDOUT, "it took too long, or was ended", path)
        number, text = json.loads(data)
        if number:
            raise OSError(number, text, path)
        return descriptors[0] if descriptors else -1

    def _hand_over(self, data: bytes, reply: socket.socket) -> None:
        try:
            socket.send_fds(self._link, [data], [reply.fileno()])
        except OSError:
            error = "the helper's process for errands has ended"
            raise Refused("failed", error, "restart the helper; the rules stay in force meanwhile") from None


def _dispatch(link: socket.socket, user: User) -> NoReturn:
    """Make a child for each errand; never do anything in it here. Ends with the helper, whose end then closes."""
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
    """Give the child its time, then end it."""
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
        signal.alarm(2 * int(_WITHIN))  # for a kernel without handles to wait by
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
    """Give up everything for good: real, effective and saved ids, and with them all capabilities."""
    if os.geteuid() != 0 and os.getresuid() == (user.uid,) * 3:
        return  # a helper with capabilities only: it has had no other ids to begin with
    try:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        raise OSError(errno.EIO, f"the helper cannot take the rights of user {user.uid}: {error.strerror}") from None


def _open_file(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _place_socket(path: str) -> int:
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Two helpers that start at once must not both find the same dead socket, and one remove what the other has placed.
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
        raise FileExistsError(errno.EEXIST, "something else is there, or another user's socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        if probe.connect_ex(path) != errno.ECONNREFUSED:  # also when it is too busy to answer
            raise OSError(errno.EADDRINUSE, "somebody listens there")
    place.unlink()


def _remove_socket(path: str) -> int:
    return _remove(path, stat.S_ISSOCK)


def _remove_file(path: str) -> int:
    return _remove(path, stat.S_ISREG)


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
    "remove_socket": _remove_socket,
    "remove_file": _remove_file,
}
