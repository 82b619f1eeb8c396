"""Landlock rights, and the kernel ABI that introduced each."""

from __future__ import annotations

from enum import IntFlag
from functools import cache
from typing import NamedTuple

from .building import FILE_MASK

HIGHEST_ABI = 7
"""Newest ABI with known rights; a newer kernel is used like this one."""
THREAD_SYNC_ABI = 8
"""First ABI that can restrict existing threads together with the calling one."""
THREAD_SYNC = 1 << 3
"""Flag for it, which older kernels refuse."""


class FsRight(IntFlag):
    """File operation."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    """Rename or link into another folder."""
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


class NetRight(IntFlag):
    """Operation on a TCP port."""

    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1


class Scope(IntFlag):
    """Access that is limited to the confined processes."""

    ABSTRACT_UNIX = 1 << 0
    SIGNAL = 1 << 1


class Feature(NamedTuple):
    """Rights that one ABI introduced."""

    name: str
    abi: int
    fs: FsRight = FsRight(0)
    net: NetRight = NetRight(0)
    scoped: Scope = Scope(0)
    without: str = ""
    """Unrestricted access on older kernels, as the end of a sentence; empty if older kernels are stricter."""


_FIRST = FsRight((1 << 13) - 1)

FEATURES = (
    Feature("files", 1, fs=_FIRST, without="nothing is restricted"),
    # Without it, the kernel refuses every rename and link between folders: stricter, not weaker.
    Feature("refer", 2, fs=FsRight.REFER),
    Feature("truncate", 3, fs=FsRight.TRUNCATE, without="files outside the lists can be truncated with truncate()"),
    Feature(
        "tcp_ports",
        4,
        net=NetRight.BIND_TCP | NetRight.CONNECT_TCP,
        without="TCP ports are not restricted",
    ),
    Feature("device_ioctls", 5, fs=FsRight.IOCTL_DEV, without="ioctls of devices are not restricted"),
    Feature(
        "scopes",
        6,
        scoped=Scope.ABSTRACT_UNIX | Scope.SIGNAL,
        without="abstract unix sockets and signals reach processes outside",
    ),
)

READ = FsRight.READ_FILE | FsRight.READ_DIR
EXECUTE = READ | FsRight.EXECUTE
WRITE = (
    READ
    | FsRight.WRITE_FILE
    | FsRight.TRUNCATE
    | FsRight.MAKE_REG
    | FsRight.MAKE_DIR
    | FsRight.MAKE_SYM
    | FsRight.MAKE_SOCK
    | FsRight.MAKE_FIFO
    | FsRight.REMOVE_FILE
    | FsRight.REMOVE_DIR
    | FsRight.REFER
)
"""Read-write path, without device nodes: creating one would give access to a disk past all file rules."""
DEVICE = FsRight.READ_FILE | FsRight.WRITE_FILE | FsRight.TRUNCATE
"""Device that may only be read and written."""
FILE_RIGHTS = FsRight(FILE_MASK)
"""Rights of a rule on anything other than a folder."""


class Supported(NamedTuple):
    """Rights that a kernel can restrict."""

    abi: int
    fs: FsRight
    net: NetRight
    scoped: Scope
    features: tuple[Feature, ...]
    lacking: tuple[Feature, ...]


@cache
def supported(abi: int) -> Supported:
    """Return the rights for this ABI; one unknown bit makes the kernel refuse the whole ruleset."""
    features = tuple(feature for feature in FEATURES if feature.abi <= abi)
    fs, net, scoped = FsRight(0), NetRight(0), Scope(0)
    for feature in features:
        fs, net, scoped = fs | feature.fs, net | feature.net, scoped | feature.scoped
    lacking = tuple(feature for feature in FEATURES if feature.abi > abi)
    return Supported(max(0, min(abi, HIGHEST_ABI)), fs, net, scoped, features, lacking)
