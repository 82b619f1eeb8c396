"""Landlock rights, the kernel ABI that introduced each, and the ABI of this machine."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError, KernelUnsupported

if TYPE_CHECKING:
    from types import ModuleType

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


class ScopeRight(IntFlag):
    """Access that is limited to the confined processes."""

    ABSTRACT_UNIX = 1 << 0
    SIGNAL = 1 << 1


class Feature(NamedTuple):
    """Rights that one ABI introduced."""

    name: str
    abi: int
    fs: FsRight = FsRight(0)
    net: NetRight = NetRight(0)
    scoped: ScopeRight = ScopeRight(0)
    without: str = ""
    """Unrestricted access on older kernels, as the end of a sentence; empty if older kernels are stricter."""


_FIRST = FsRight((1 << 13) - 1)

FEATURES = (
    Feature("files", 1, fs=_FIRST, without="nothing is restricted"),
    # Without it, the kernel refuses every rename and link between folders: stricter, not weaker.
    Feature("refer", 2, fs=FsRight.REFER),
    Feature("truncate", 3, fs=FsRight.TRUNCATE, without="files outside the lists can be truncated with truncate()"),
    Feature("tcp_ports", 4, net=NetRight.BIND_TCP | NetRight.CONNECT_TCP, without="TCP ports are not restricted"),
    Feature("device_ioctls", 5, fs=FsRight.IOCTL_DEV, without="ioctls of devices are not restricted"),
    Feature(
        "scopes",
        6,
        scoped=ScopeRight.ABSTRACT_UNIX | ScopeRight.SIGNAL,
        without="abstract unix sockets and signals reach processes outside",
    ),
)

READ = FsRight.READ_FILE | FsRight.READ_DIR
EXECUTE = READ | FsRight.EXECUTE
_MAKE = FsRight.MAKE_REG | FsRight.MAKE_DIR | FsRight.MAKE_SYM | FsRight.MAKE_SOCK | FsRight.MAKE_FIFO
_REMOVE = FsRight.REMOVE_FILE | FsRight.REMOVE_DIR
WRITE = READ | FsRight.WRITE_FILE | FsRight.TRUNCATE | _MAKE | _REMOVE | FsRight.REFER
"""Read-write path, without device nodes: creating one would give access to a disk past all file rules."""
DEVICE = FsRight.READ_FILE | FsRight.WRITE_FILE | FsRight.TRUNCATE
"""Device that may only be read and written."""


class SupportedRights(NamedTuple):
    """Rights that a kernel can restrict."""

    abi: int
    fs: FsRight
    net: NetRight
    scoped: ScopeRight
    features: tuple[Feature, ...]
    lacking: tuple[Feature, ...]


@cache
def supported(abi: int) -> SupportedRights:
    """Return the rights for this ABI; one unknown bit makes the kernel refuse the whole ruleset."""
    features = tuple(feature for feature in FEATURES if feature.abi <= abi)
    fs, net, scoped = FsRight(0), NetRight(0), ScopeRight(0)
    for feature in features:
        fs, net, scoped = fs | feature.fs, net | feature.net, scoped | feature.scoped
    lacking = tuple(feature for feature in FEATURES if feature.abi > abi)
    return SupportedRights(max(0, min(abi, HIGHEST_ABI)), fs, net, scoped, features, lacking)


FORCED = "DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI"
"""Limits the ABI, to test the behavior of an older kernel. It can only lower it; 0 disables Landlock."""

_WHY = {
    errno.ENOSYS: (
        "the kernel was built without Landlock",
        "use Linux 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK=y",
    ),
    errno.EOPNOTSUPP: (
        "the kernel has Landlock, but it was not enabled at boot",
        "add landlock to the boot parameter lsm= (or CONFIG_LSM) and reboot",
    ),
    errno.EPERM: (
        "a seccomp filter around this process blocks Landlock's system calls",
        "allow landlock_create_ruleset, landlock_add_rule, landlock_restrict_self in the container's seccomp profile",
    ),
}


@dataclass(frozen=True, slots=True)
class LandlockSupport:
    """Usable Landlock ABI, with the reason if it is unavailable."""

    abi: int
    """ABI in use: at most the newest known one, lower if forced; 0 for none."""
    kernel_abi: int
    """ABI that the kernel reports."""
    reason: str = ""
    fix: str = ""
    forced: bool = False

    @property
    def synchronises_threads(self) -> bool:
        """Whether existing threads can be restricted too."""
        return not self.forced and self.kernel_abi >= THREAD_SYNC_ABI


def native_module() -> ModuleType:
    """Return the compiled module, which exists only on Linux."""
    try:
        from democrai_sandbox.kernel import _native  # noqa: PLC0415 - optional: status works without it
    except ImportError as error:
        raise KernelUnsupported(
            "the compiled module of the kernel layer is missing",
            fix="run on Linux, and build the package there (make setup)",
        ) from error
    return _native


def landlock_support(forced: int | None = None) -> LandlockSupport:
    """Return the usable ABI; ``forced``, or else the environment variable, lowers it."""
    try:
        native = native_module()
    except KernelUnsupported as error:
        return LandlockSupport(0, 0, error.what, error.fix)
    kernel_abi = native.landlock_abi()
    if kernel_abi < 1:
        number = native.landlock_errno()
        unknown = f"the kernel reports {os.strerror(number)!r} for Landlock"
        return LandlockSupport(0, 0, *_WHY.get(number, (unknown, "check the kernel log for landlock")))
    limit = _limit_from_environment() if forced is None else forced
    if limit is None or limit >= kernel_abi:
        return LandlockSupport(min(kernel_abi, HIGHEST_ABI), kernel_abi)
    if limit < 1:
        return LandlockSupport(0, kernel_abi, f"{FORCED} disables it", f"remove {FORCED}", forced=True)
    return LandlockSupport(min(limit, HIGHEST_ABI), kernel_abi, forced=True)


@cache
def _limit_from_environment() -> int | None:
    """Read the variable once; later changes have no effect."""
    text = os.environ.get(FORCED, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise KernelLayerError(f"{FORCED} is {text!r}, not a number", fix=f"set it to 0..{HIGHEST_ABI}, or remove it")
    return int(text)
