"""Measure the egress control, and convert the measurements to status texts."""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.kernel.status import ControlState, ControlStatus

if TYPE_CHECKING:
    from democrai_sandbox.errors import KernelLayerError

    from .helper_process import Way
    from .updater import AppliedAllowlist

_PROC = Path("/proc/self")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ESTABLISHED = "01"
_WORD = 8
"""Hexadecimal digits of one 32-bit word of an address."""


def internet_sockets() -> frozenset[int]:
    """Return the inodes of this process's open internet sockets."""
    found = set()
    for entry in list((_PROC / "fd").iterdir()):
        with suppress(OSError):
            number = int(entry.name)
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode) and _family(number) in _INTERNET:
                found.add(status.st_ino)
    return frozenset(found)


def connections() -> frozenset[tuple[str, int]]:
    """Return the remote address and port of each established TCP connection in this network namespace."""
    found: set[tuple[str, int]] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            lines = (_PROC / "net" / name).read_text("utf-8").splitlines()[1:]
            found.update(_far_end(fields[2]) for fields in map(str.split, lines) if fields[3] == _ESTABLISHED)
    return frozenset(found)


def own_cgroup() -> str:
    """Return the cgroup v2 path of this process; empty without one."""
    with suppress(OSError):
        for line in (_PROC / "cgroup").read_text("utf-8", "surrogateescape").splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return ""


def _family(number: int) -> int:
    copy = os.dup(number)
    try:
        with socket.socket(fileno=copy) as link:
            copy = -1
            return link.family
    finally:
        if copy >= 0:
            os.close(copy)


def _far_end(text: str) -> tuple[str, int]:
    """Decode the kernel's hexadecimal address, in words of native byte order, and port."""
    digits, _, port = text.partition(":")
    words = (digits[start : start + _WORD] for start in range(0, len(digits), _WORD))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    mapped = packed[:12] == b"\0" * 10 + b"\xff\xff"
    if len(packed) == 4 or mapped:  # noqa: PLR2004 - bytes of IPv4
        return socket.inet_ntop(socket.AF_INET, packed[-4:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, packed), int(port, 16)


CGROUP = "democrai_os_sandbox_{pid}"
_MOST_LISTED = 100
_UNSUPPORTED = frozenset({"no_cgroup2", "cgroup_read_only", "no_iptables", "no_ip6tables"})
"""Requirements that the machine lacks, by the helper's reason."""
_HELPER_FIELDS = (
    *("cgroup", "populated", "chains", "families", "sets", "children"),
    *("warnings", "unresolved", "withheld", "last_refresh"),
)
_NOT_APPLIED = "the helper was restarted and has not applied a policy yet"


@dataclass(frozen=True, slots=True)
class EgressMeasurements:
    """Measurements for one status."""

    pid: int
    refresh_seconds: int
    policy_file: str
    socket: str
    way: Way | None
    """Way in which the helper was started; None if it is not running."""
    comes_back: bool
    """Whether a helper that ends is restarted."""
    helper: dict[str, Any]
    helper_error: KernelLayerError | None
    applied: AppliedAllowlist | None
    apply_error: KernelLayerError | None
    cgroup: str
    """Current cgroup of this process."""
    older_sockets: int
    observed: int
    following: bool

    @property
    def is_inside(self) -> bool:
        """Whether this process is in the cgroup of the rules, or below it."""
        return CGROUP.format(pid=self.pid) in self.cgroup.split("/")


class _EgressProblem(NamedTuple):
    reason: str
    fix: str


def egress_status(facts: EgressMeasurements) -> ControlStatus:
    """Return the degree to which this process's packets are restricted to the allowlist."""
    state, flaws = _state(facts)
    told = flaws if state is not ControlState.ACTIVE else _remarks(facts)
    return ControlStatus(
        "egress",
        state,
        "; ".join(flaw.reason for flaw in told),
        "; ".join(dict.fromkeys(flaw.fix for flaw in told if flaw.fix)),
        _details(facts),
    )


def helper_status(facts: EgressMeasurements) -> ControlStatus:
    """Return whether the helper answers."""
    details = {
        "pid": facts.helper.get("pid"),
        "way": facts.way.value if facts.way is not None else None,
        "socket": facts.socket,
        "refresh_seconds": facts.refresh_seconds,
        "comes_back": facts.comes_back,
    }
    error = facts.helper_error
    if facts.way is None:
        lacking = getattr(error, "reason", "") in _UNSUPPORTED
        state = ControlState.UNSUPPORTED if lacking else ControlState.OFF
        return ControlStatus(
            "helper", state, error.what if error else "not started", error.fix if error else "", details
        )
    if error is not None:
        return ControlStatus("helper", ControlState.OFF, error.what, error.fix, details)
    return ControlStatus("helper", ControlState.ACTIVE, details=details)


def _state(facts: EgressMeasurements) -> tuple[ControlState, list[_EgressProblem]]:
    if facts.way is None or facts.applied is None:
        error = facts.helper_error or facts.apply_error
        state = ControlState.UNSUPPORTED if getattr(error, "reason", "") in _UNSUPPORTED else ControlState.OFF
        return state, [_EgressProblem(error.what, error.fix) if error else _EgressProblem("not applied", "")]
    if not facts.is_inside:
        place = facts.cgroup or "no cgroup v2"
        what = f"this process is in {place}, not in the cgroup of the rules"
        return ControlState.OFF, [
            _EgressProblem(what, "restart the application, and do not move its processes out of it")
        ]
    flaws = list(_flaws(facts))
    return (ControlState.PARTIAL if flaws else ControlState.ACTIVE), flaws


def _flaws(facts: EgressMeasurements) -> list[_EgressProblem]:
    """Return the problems: sockets that are not covered, and updates that fail."""
    found = []
    if facts.older_sockets:
        what = f"{facts.older_sockets} open sockets were created before the cgroup, so the rules do not apply to them"
        found.append(_EgressProblem(what, "start the kernel layer before the first socket, or close these sockets"))
    if facts.helper_error is not None:
        what = f"the rules cannot be updated: {facts.helper_error.what}"
        found.append(_EgressProblem(what, facts.helper_error.fix))
    elif facts.helper.get("in_force") is False:
        problems = facts.helper.get("problems")
        named = "; ".join(f"{name}: {text}" for name, text in problems.items()) if isinstance(problems, dict) else ""
        what = f"the rules are not in force ({named or _NOT_APPLIED})"
        found.append(_EgressProblem(what, "they are applied again at the next refresh"))
    elif facts.apply_error is not None:
        what = f"the last change was not applied: {facts.apply_error.what}"
        found.append(_EgressProblem(what, facts.apply_error.fix))
    return found


def _remarks(facts: EgressMeasurements) -> list[_EgressProblem]:
    """Return the causes of denials that the user may not expect, while the promised rules hold."""
    found = []
    failed = facts.applied.allowlist.failed_sources if facts.applied is not None else ()
    if failed:
        names = ", ".join(source.name for source in failed)
        found.append(_EgressProblem(f"{names} could not be read, so its endpoints are blocked", "see failed_sources"))
    answer = facts.applied.answer if facts.applied is not None else {}
    unresolved = facts.helper.get("unresolved", answer.get("unresolved"))
    if isinstance(unresolved, list) and unresolved:
        what = f"{len(unresolved)} hosts could not be resolved and are blocked"
        found.append(_EgressProblem(what, "correct the names, or the DNS configuration of this machine"))
    return found


def _details(facts: EgressMeasurements) -> dict[str, object]:
    applied = facts.applied
    answer = applied.answer if applied is not None else {}
    allowlist = applied.allowlist if applied is not None else None
    details: dict[str, object] = {
        "policy_file": facts.policy_file,
        "helper_socket": facts.socket,
        "helper_pid": facts.helper.get("pid"),
        "way": facts.way.value if facts.way is not None else None,
        "in_cgroup": facts.is_inside,
        "own_cgroup": facts.cgroup,
        "older_sockets": facts.older_sockets,
        "refresh_seconds": facts.refresh_seconds,
        "following": facts.following,
        "observed": facts.observed,
        "endpoints": len(allowlist.endpoints) if allowlist is not None else 0,
        "addresses": answer.get("addresses", 0),
        "not_materialised": [item._asdict() for item in allowlist.not_materialised[:_MOST_LISTED]] if allowlist else [],
        "failed_sources": [source._asdict() for source in allowlist.failed_sources] if allowlist else [],
        "last_apply": _last_apply(facts),
        "can_leave": os.geteuid() == 0,
    }
    return details | {name: facts.helper.get(name, answer.get(name)) for name in _HELPER_FIELDS}


def _last_apply(facts: EgressMeasurements) -> dict[str, object]:
    applied, error = facts.applied, facts.apply_error
    return {
        "at": datetime.fromtimestamp(applied.at, UTC).isoformat(timespec="seconds") if applied is not None else None,
        "seconds": applied.answer.get("seconds") if applied is not None else None,
        "digest": applied.digest if applied is not None else None,
        "error": str(error) if error is not None else "",
    }
