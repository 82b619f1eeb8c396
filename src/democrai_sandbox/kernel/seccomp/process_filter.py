"""Apply a filter to this process, and report its coverage of the threads."""

from __future__ import annotations

import errno
import os
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel.status import ControlState, ControlStatus

from .filters import FIX_ARCHITECTURE, NO_EXEC, program, rows
from .syscalls import Action, Architecture, this_architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .filters import Profile

_TASKS = Path("/proc/self/task")
_MODE_FILTER = "2"


class ThreadFilterState(NamedTuple):
    """State of one thread."""

    filtered: bool
    """Whether it has any filter."""
    filters: int | None
    """Number of filters; ``None`` on kernels before 5.9."""


def threads() -> dict[int, ThreadFilterState]:
    """Return the threads of this process by id, without those that end meanwhile; empty if ``/proc`` is unreadable."""
    found: dict[int, ThreadFilterState] = {}
    try:
        entries = list(_TASKS.iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            text = (entry / "status").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return {}  # an incomplete list is not a count
        found[int(entry.name)] = parsed(text)
    return found


def parsed(text: str) -> ThreadFilterState:
    """Parse a ``status`` file. A thread chooses its name, so only the last line of a key is trustworthy."""
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    count = fields.get("Seccomp_filters", "").strip()
    filtered = fields.get("Seccomp", "").strip() == _MODE_FILTER
    return ThreadFilterState(filtered, int(count) if count.isdecimal() else None)


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
_FIX_OUTER = "permit seccomp(2) and no_new_privs in the container or service manager"
_FIX_PROC = "give this process read access to /proc/self"
_FIX_THREADS = "apply the filter before any library starts threads or installs filters"


def support() -> ControlStatus:
    """Return whether a filter can be applied here, without applying it. ``OFF`` means yes."""
    if not _BUILT:
        return _unsupported("the kernel layer is built on Linux only", "run on Linux")
    arch = this_architecture()
    if arch is None:
        return _unsupported(f"the system calls of {os.uname().machine} are not supported", FIX_ARCHITECTURE)
    details = {"architecture": arch.value}
    if _native.probe("seccomp") in _REFUSED:
        return _unsupported("this process may not install filters", _FIX_OUTER, details)
    try:
        available = frozenset(_ACTIONS.read_text("utf-8", "replace").split())
    except OSError:
        # A kernel without filters lacks this file and the filter count. If the file or /proc is unreadable, only an
        # attempt can tell.
        if any(thread.filters is None for thread in threads().values()):
            return _unsupported("the kernel does not support seccomp filters", _FIX_KERNEL, details)
        available = _NEEDED
    if missing := _NEEDED - available:
        return _unsupported(f"the kernel's seccomp lacks {', '.join(sorted(missing))}", _FIX_KERNEL, details)
    return ControlStatus(NAME, ControlState.OFF, "not applied", "set sandbox.os.seccomp.enabled to true", details)


def apply(profile: Profile) -> ControlStatus:
    """Apply the profile's filter to all threads of this process, or at least to this one. It cannot be undone."""
    possible = support()
    arch = this_architecture()
    if possible.state is ControlState.UNSUPPORTED or arch is None:
        return possible
    code = program(profile, arch)
    try:
        offender = _native.seccomp_install(code, _TSYNC)
        if offender:  # id of a thread that cannot be covered: nothing was installed
            _alone(code)
    except OSError as error:
        return _failed(error, arch)
    current, own = threads(), threading.get_native_id()
    # The filters of other threads do not count then: they are the reason why these threads could not be covered.
    left_out = frozenset(current.keys() - {own}) if offender else frozenset()
    decided = rows(profile, arch)
    calls = {action.value: tuple(row.name for row in decided if row.action is action) for action in Action}
    details = {
        "architecture": arch.value,
        "syscalls": {action: names for action, names in calls.items() if names},
        "filters": current[own].filters if current else None,
        "synchronised": not offender,
    }
    return _measured(current, left_out, details)


@cache
def no_exec_program() -> bytes:
    """Return the filter that kills a process which starts a program; empty on an unknown architecture."""
    arch = this_architecture()
    return b"" if arch is None else program(NO_EXEC, arch)


def give_up_programs() -> str:
    """Make the kernel kill this process if it ever starts a program. Call on its only thread.

    Return the reason of a failure; empty also where filters cannot be applied, which the status shows.
    """
    code = no_exec_program()
    try:
        if code:
            _alone(code)
    except OSError as error:
        return "" if error.errno in _LACKING | _REFUSED else os.strerror(error.errno or errno.EIO)
    return ""


def now(applied: ControlStatus) -> ControlStatus:
    """Measure the coverage of an earlier :func:`apply` again.

    If threads were not covered, it stays partial: they may have started other threads that look covered.
    """
    if applied.state not in {ControlState.ACTIVE, ControlState.PARTIAL}:
        return applied
    left_out = applied.details.get("threads_not_covered")
    return _measured(threads(), frozenset(left_out if isinstance(left_out, tuple) else ()), applied.details)


def _alone(code: bytes) -> None:
    """Apply the filter to the calling thread and the threads that it starts."""
    if result := _native.seccomp_install(code, 0):  # pragma: no cover - without TSYNC the result is always 0
        raise KernelLayerError(f"the kernel returned {result} for a single-thread filter", fix=_FIX_KERNEL)


def _measured(
    current: Mapping[int, ThreadFilterState], left_out: frozenset[int], details: Mapping[str, object]
) -> ControlStatus:
    """Return the coverage: threads that were not left out and have as many filters as the applying thread."""
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
        reason = "the filter is installed, but /proc/self/task cannot be read to count the covered threads"
        return ControlStatus(NAME, ControlState.PARTIAL, reason, _FIX_PROC, details)
    reason = f"{len(bare)} of {len(current)} threads are not covered"
    if not details.get("synchronised"):
        reason += ": a thread had another filter, so ours covers only the applying thread and those that it starts"
    elif not bare:
        return ControlStatus(NAME, ControlState.ACTIVE, details=details)
    return ControlStatus(NAME, ControlState.PARTIAL, reason, _FIX_THREADS, details)


def _failed(error: OSError, arch: Architecture) -> ControlStatus:
    """Return the status if filters are unsupported; raise for other errors."""
    details: dict[str, object] = {"architecture": arch.value, "errno": errno.errorcode.get(error.errno or 0, "")}
    if error.errno in _LACKING:
        return _unsupported(f"the kernel rejects the filter: {error.strerror}", _FIX_KERNEL, details)
    if error.errno in _REFUSED:
        return _unsupported(f"this process may not install filters: {error.strerror}", _FIX_OUTER, details)
    raise KernelLayerError(
        f"the seccomp filter could not be installed: {error}", fix="apply it once, at the start of a new process"
    ) from error


def _unsupported(reason: str, fix: str, details: Mapping[str, object] | None = None) -> ControlStatus:
    return ControlStatus(NAME, ControlState.UNSUPPORTED, reason, fix, details or {})
