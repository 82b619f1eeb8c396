"""Whether this kernel has Landlock, which one, and why not."""

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
"""Treats the kernel as an older one, to see what one does there. It only ever lowers; 0 stands for none at all."""

_WHY = {
    errno.ENOSYS: (
        "the kernel was built without Landlock",
        "use Linux 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK=y",
    ),
    errno.EOPNOTSUPP: (
        "the kernel has Landlock, but it was not enabled at boot",
        "add landlock to the list of the boot parameter lsm= (or CONFIG_LSM) and boot again",
    ),
    errno.EPERM: (
        "a filter around this process refuses Landlock's system calls",
        "let the container's seccomp profile allow landlock_create_ruleset, landlock_add_rule, landlock_restrict_self",
    ),
}


@dataclass(frozen=True, slots=True)
class LandlockSupport:
    """What can be used of Landlock, and the reason where that is nothing."""

    abi: int
    """The one to work by: no higher than what is known here, lower when that was forced. 0 for none."""
    kernel_abi: int
    """The one that the kernel names."""
    reason: str = ""
    fix: str = ""
    forced: bool = False

    @property
    def synchronises_threads(self) -> bool:
        """Whether threads that exist already can be restricted too."""
        return not self.forced and self.kernel_abi >= THREAD_SYNC_ABI


def native_module() -> ModuleType:
    """Return the compiled module; it is there on Linux only."""
    try:
        from democrai_sandbox.kernel import _native  # noqa: PLC0415 - the rest works, and reports, without it
    except ImportError as error:
        raise KernelUnsupported(
            "the compiled part of the kernel layer is not there",
            fix="run on Linux, and build the package there (make setup)",
        ) from error
    return _native


def landlock_support(forced: int | None = None) -> LandlockSupport:
    """Return what can be used; ``forced``, or else the environment variable, lowers it."""
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
        return LandlockSupport(0, kernel_abi, f"{FORCED} turns it off", f"remove {FORCED}", forced=True)
    return LandlockSupport(min(limit, HIGHEST_ABI), kernel_abi, forced=True)


def _reason(number: int) -> tuple[str, str]:
    unknown = f"the kernel answers {os.strerror(number)!r} when asked for Landlock"
    return _WHY.get(number, (unknown, "look into the kernel's log for what concerns landlock"))


@cache
def _limit_from_environment() -> int | None:
    """Read the variable once: what is set later, by whatever code, changes nothing."""
    text = os.environ.get(FORCED, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise KernelLayerError(f"{FORCED} is {text!r}, not a number", fix=f"set it to 0..{HIGHEST_ABI}, or remove it")
    return int(text)
