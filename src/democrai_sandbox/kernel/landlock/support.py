"""Detect Landlock, its ABI, and the reason if it is unavailable."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError, KernelUnsupported

from .rights import HIGHEST_ABI, THREAD_SYNC_ABI

if TYPE_CHECKING:
    from types import ModuleType

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
        return LandlockSupport(0, 0, *_reason(native.landlock_errno()))
    limit = _limit_from_environment() if forced is None else forced
    if limit is None or limit >= kernel_abi:
        return LandlockSupport(min(kernel_abi, HIGHEST_ABI), kernel_abi)
    if limit < 1:
        return LandlockSupport(0, kernel_abi, f"{FORCED} disables it", f"remove {FORCED}", forced=True)
    return LandlockSupport(min(limit, HIGHEST_ABI), kernel_abi, forced=True)


def _reason(number: int) -> tuple[str, str]:
    unknown = f"the kernel reports {os.strerror(number)!r} for Landlock"
    return _WHY.get(number, (unknown, "check the kernel log for landlock"))


@cache
def _limit_from_environment() -> int | None:
    """Read the variable once; later changes have no effect."""
    text = os.environ.get(FORCED, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise KernelLayerError(f"{FORCED} is {text!r}, not a number", fix=f"set it to 0..{HIGHEST_ABI}, or remove it")
    return int(text)
