"""Requests to descriptors: fcntl and ioctl that signal other processes when a file changes."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct

from tests.guard.attacks.families.other_syscalls import child_was_killed, hold_child
from tests.guard.attacks.kit import SANDBOX, Ground, Works, attack, attacks_of

FIOASYNC, FIOSETOWN, SIOCSPGRP = 0x5452, 0x8901, 0x8902
OWN_PROCESS = 1
"""The kind of owner that struct f_owner_ex names: a process."""


def aim(ground: Ground, number: int) -> None:
    """Have the kernel kill the host's child when something happens to the descriptor."""
    fcntl.fcntl(number, fcntl.F_SETOWN, ground.held.child.pid)
    fcntl.fcntl(number, 10, signal.SIGKILL)  # F_SETSIG


def aim_by_structure(ground: Ground, number: int) -> None:
    fcntl.fcntl(number, 15, struct.pack("ii", OWN_PROCESS, ground.held.child.pid))  # F_SETOWN_EX
    fcntl.fcntl(number, 10, signal.SIGKILL)


def on_data(ground: Ground, point=aim, begin=None) -> None:
    """A byte arrives at a socket of the subject."""
    ours, theirs = socket.socketpair()
    point(ground, ours.fileno())
    if begin is None:
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    else:
        begin(ours)
    theirs.send(b"x")


def on_change(ground: Ground) -> None:
    """A file is made in a folder of the subject."""
    folder = os.open(ground.inside, os.O_RDONLY)
    aim(ground, folder)
    fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_CREATE)
    open(f"{ground.inside}/made", "w").close()


def on_lease(ground: Ground) -> None:
    """A file of the subject is opened once more."""
    path = f"{ground.inside}/own.txt"
    leased = os.open(path, os.O_RDONLY)
    aim(ground, leased)
    fcntl.fcntl(leased, 1024, fcntl.F_RDLCK)  # F_SETLEASE
    try:
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except BlockingIOError:
        pass


def by_ioctl(request: int):
    def point(ground: Ground, number: int) -> None:
        fcntl.ioctl(number, request, struct.pack("i", ground.held.child.pid))
        fcntl.fcntl(number, 10, signal.SIGKILL)

    return point


attacks_of(
    {
        "data": on_data,
        "data_by_structure": lambda ground: on_data(ground, aim_by_structure),
        "data_begun_by_ioctl": lambda ground: on_data(
            ground, begin=lambda sock: fcntl.ioctl(sock, FIOASYNC, struct.pack("i", 1))
        ),
        "data_aimed_by_ioctl": lambda ground: on_data(ground, by_ioctl(FIOSETOWN)),
        "data_aimed_at_a_group": lambda ground: on_data(ground, by_ioctl(SIOCSPGRP)),
        "change": on_change,
        "lease": on_lease,
    },
    "a process of the host is killed by a signal of the kernel: {}",
    expect=SANDBOX,
    group="signalled_by_",
    prepare=hold_child,
    after=child_was_killed,
)


@attack("flags, locks and sizes of own descriptors are used", expect=Works())
def ordinary_requests(ground: Ground) -> bool:
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_NONBLOCK)
    fcntl.fcntl(ours, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    theirs.send(b"word")
    waiting = struct.unpack("i", fcntl.ioctl(ours, 0x541B, b"\0\0\0\0"))[0]
    with open(f"{ground.inside}/locked", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    copy = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 50)
    return waiting == 4 and copy >= 50
