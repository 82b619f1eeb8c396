"""Putting a filter over this process, and saying how far it reaches."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel.states import ControlState, ControlStatus

from .filters import FIX_ARCHITECTURE, program, rows
from .syscalls import Action, Architecture, this_architecture
from .threads import threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .filters import Profile
    from .threads import Thread

try:
    from democrai_sandbox.kernel import _native
except ImportError:  # pragma: no cover - built on Linux only
    _BUILT = False
else:
    _BUILT = True

NAME = "seccomp"
_TSYNC = 1  # SECCOMP_FILTER_FLAG_TSYNC
_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")
_NEEDED = frozenset({"kill_process", "errno", "allow"})
_LACKING = frozenset({errno.EINVAL, errno.ENOSYS})
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_FIX_KERNEL = "run a kernel of 4.14 or newer with CONFIG_SECCOMP_FILTER, or set sandbox.os.seccomp.enabled to false"
_FIX_OUTER = "let the container or service manager around this process permit seccomp(2) and no_new_privs"
_FIX_PROC = "let this process read /proc/self"
_FIX_THREADS = "apply the filter before any library starts threads or filters of its own"


def support() -> ControlStatus:
    """Say whether a filter could be applied here; nothing is applied. ``OFF`` means that it could."""
    if not _BUILT:
        return _unsupported("the kernel layer is built on Linux only", "run on Linux")
    arch = this_architecture()
    if arch is None:
        return _unsupported(f"there is no table of system calls for {os.uname().machine}", FIX_ARCHITECTURE)
    details = {"architecture": arch.value}
    try:
        available = frozenset(_ACTIONS.read_text("utf-8", "replace").split())
    except OSError:
        # A kernel without filters has no such file, and does not count them. Where the file is only out of reach, or
        # nothing of /proc can be read, trying tells.
        if any(thread.filters is None for thread in threads().values()):
            return _unsupported("the kernel has no seccomp filters", _FIX_KERNEL, details)
        available = _NEEDED
    if missing := _NEEDED - available:
        return _unsupported(f"the kernel's seccomp lacks {', '.join(sorted(missing))}", _FIX_KERNEL, details)
    return ControlStatus(NAME, ControlState.OFF, "not applied", "set sandbox.os.seccomp.enabled to true", details)


def apply(profile: Profile) -> ControlStatus:
    """Put the profile's filter over all threads of this process, or at least over this one; it cannot be undone."""
    possible = support()
    arch = this_architecture()
    if possible.state is ControlState.UNSUPPORTED or arch is None:
        return possible
    code = program(profile, arch)
    try:
        offender = _native.seccomp_install(code, _TSYNC)
        if offender:  # the number of a thread that cannot follow: nothing at all has been installed
            _alone(code)
    except OSError as error:
        return _failed(error, arch)
    current, own = threads(), threading.get_native_id()
    # That another thread is filtered says nothing then: the filter it has is the one for which it could not follow.
    left_out = frozenset(current.keys() - {own}) if offender else frozenset()
    details = {
        "architecture": arch.value,
        "syscalls": _by_action(profile, arch),
        "filters": current[own].filters if current else None,
        "synchronised": not offender,
    }
    return _measured(current, left_out, details)


def now(applied: ControlStatus) -> ControlStatus:
    """Measure again what an earlier :func:`apply` reached.

    Where threads did not follow it stays partial: they may have started others, which nothing tells from ours.
    """
    if applied.state not in {ControlState.ACTIVE, ControlState.PARTIAL}:
        return applied
    left_out = applied.details.get("threads_not_covered")
    return _measured(threads(), frozenset(left_out if isinstance(left_out, tuple) else ()), applied.details)


def _alone(code: bytes) -> None:
    """Put the filter over the calling thread, and over those it starts from now on."""
    if result := _native.seccomp_install(code, 0):  # pragma: no cover - without TSYNC there is no thread to name
        raise KernelLayerError(f"the kernel answered {result} to a filter for one thread", fix=_FIX_KERNEL)


def _measured(current: Mapping[int, Thread], left_out: frozenset[int], details: Mapping[str, object]) -> ControlStatus:
    """Say which threads have the filter: those that were not left out, and have as many as the one that applied it."""
    least = details.get("filters")
    least = least if isinstance(least, int) else 0
    bare = tuple(
        tid
        for tid, thread in sorted(current.items())
        if tid in left_out or not thread.filtered or (thread.filters or 0) < least
    )
    details = {
        **details,
        "threads": len(current),
        "threads_covered": len(current) - len(bare),
        "threads_not_covered": bare,
    }
    if not current:
        reason = "the kernel took the filter, but /proc/self/task cannot be read to count the threads that have it"
        return ControlStatus(NAME, ControlState.PARTIAL, reason, _FIX_PROC, details)
    reason = f"{len(bare)} of {len(current)} threads are not covered"
    if not details.get("synchronised"):
        reason += ": a thread had a filter of its own, so only the one that applied ours, and those it starts, have it"
    elif not bare:
        return ControlStatus(NAME, ControlState.ACTIVE, details=details)
    return ControlStatus(NAME, ControlState.PARTIAL, reason, _FIX_THREADS, details)


def _by_action(profile: Profile, arch: Architecture) -> dict[str, tuple[str, ...]]:
    """Return the names of what is refused, or looked at, in each way."""
    decided = rows(profile, arch)
    found = {action.value: tuple(row.name for row in decided if row.action is action) for action in Action}
    return {action: names for action, names in found.items() if names}


def _failed(error: OSError, arch: Architecture) -> ControlStatus:
    """Tell what cannot be done here from what went wrong."""
    details: dict[str, object] = {"architecture": arch.value, "errno": errno.errorcode.get(error.errno or 0, "")}
    if error.errno in _LACKING:
        return _unsupported(f"the kernel does not take the filter: {error.strerror}", _FIX_KERNEL, details)
    if error.errno in _REFUSED:
        return _unsupported(f"this process may not install filters: {error.strerror}", _FIX_OUTER, details)
    raise KernelLayerError(
        f"the seccomp filter could not be installed: {error}", fix="apply it once, at the start, in a fresh process"
    ) from error


def _unsupported(reason: str, fix: str, details: Mapping[str, object] | None = None) -> ControlStatus:
    return ControlStatus(NAME, ControlState.UNSUPPORTED, reason, fix, details or {})
