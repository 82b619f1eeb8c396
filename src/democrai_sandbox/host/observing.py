"""Observed accesses of subjects since the start of this process: permitted connections and all denials.

It is called on the threads of the accesses, so it is fast and never fails. Its size is limited, because subjects choose
their accesses.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import (
    EnvironmentDenied,
    FilesystemDenied,
    FilesystemFdDenied,
    ModuleDenied,
    NetworkDenied,
    SubprocessDenied,
    TamperDenied,
)
from democrai_sandbox.policy import InvalidInputError, Subject
from democrai_sandbox.policy.hosts import bracketed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import ObservedEndpoint

    from .grounds import Grounds

ALLOWED = "allowed"
DENIED = "denied"

_MOST_SUBJECTS = 500
_MOST_ENTRIES = 200
_LONGEST_TARGET = 2000
_LONGEST_LABEL = 300
_OTHER = "other"
_CANARY = ("core", "canary")
_RESOURCES: Mapping[type[SandboxDenied], str] = MappingProxyType(
    {
        FilesystemDenied: "filesystem",
        NetworkDenied: "network",
        FilesystemFdDenied: "descriptor",
        ModuleDenied: "import",
        SubprocessDenied: "process",
        EnvironmentDenied: "environment",
        TamperDenied: "interpreter",
    }
)


class Reason(StrEnum):
    """Reason of an allowed or denied access."""

    DECLARED = "declared"
    INHERITED = "inherited"
    """The subject declares nothing and has the rights of its caller."""
    APPROVED = "approved"
    PENDING = "pending"
    """Not declared, and its request is undecided."""
    DENIED = "denied"
    """Recorded decision."""
    NOT_DECLARED = "not_declared"
    UNKNOWN = ""
    """Also for accesses without access rules."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Access that a subject made or was denied, with its count."""

    operation: str
    resource_type: str
    """``network``, ``filesystem``, or a type without rules: ``process``, ``import`` and so on."""
    target: str
    result: str
    """``allowed`` or ``denied``."""
    count: int
    first: datetime
    last: datetime
    reason: Reason = Reason.UNKNOWN
    """Reason at that time; the same access with another reason is a separate entry."""


class _What(NamedTuple):
    operation: str
    resource_type: str
    target: str
    result: str
    reason: Reason


@dataclass(slots=True)
class _Times:
    count: int
    first: float
    last: float


class Observations:
    """Written by the guard (``DenialRecorder``, ``EndpointObserver``), read by the console and metrics."""

    def __init__(self) -> None:
        """Start empty."""
        self.since = datetime.now(UTC)
        # Reentrant: a finalizer can run at any point, even here, and cause an access.
        self._lock = threading.RLock()
        self._subjects: OrderedDict[str, OrderedDict[_What, _Times]] = OrderedDict()
        self._grounds: Grounds | None = None
        self._totals: Counter[tuple[str, str]] = Counter()

    def explain_by(self, grounds: Grounds) -> None:
        """Record reasons from now on."""
        self._grounds = grounds

    # ---- writing -----------------------------------------------------------------------------------------------------

    def record(self, denial: SandboxDenied) -> None:
        """Record a denial."""
        if (denial.subject_kind, denial.subject) == _CANARY:
            return  # from the host's test of its guard
        kind = _RESOURCES.get(type(denial), _OTHER)
        label, target = f"{denial.subject_kind}:{denial.subject}", _text(denial.target)
        reason = Reason.UNKNOWN
        if self._grounds is not None:
            reason = self._grounds.of_denial(label, kind, denial, target)
        self._note(label, _What(_text(denial.operation), kind, target, DENIED, reason), _text(denial.layer))

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Record a connection that is about to be opened; the guard repeats it after a minute."""
        subject, kind, host, addresses, port = endpoint
        place = host or next(iter(addresses), "")
        label, target = f"{kind}:{subject}", f"{bracketed(_text(place))}:{port}"
        reason = Reason.UNKNOWN if self._grounds is None else self._grounds.of_connection(label, target)
        self._note(label, _What("connect", "network", target, ALLOWED, reason), "guard")

    # ---- reading -----------------------------------------------------------------------------------------------------

    def of(self, subject: Subject) -> tuple[Observed, ...]:
        """Return the observed accesses of a subject, latest first."""
        with self._lock:
            entries = self._subjects.get(_label(subject)) or OrderedDict[_What, _Times]()
            found = [_seen(what, times) for what, times in entries.items()]
        return tuple(sorted(found, key=lambda entry: entry.last, reverse=True))

    def subjects(self) -> tuple[Subject, ...]:
        """Return the observed subjects with valid names."""
        with self._lock:
            labels = list(self._subjects)
        return tuple(subject for label in labels if (subject := _subject(label)) is not None)

    def totals(self) -> dict[tuple[str, str], int]:
        """Return the number of results per layer (``guard``) since the start of this process."""
        with self._lock:
            return dict(self._totals)

    # ---- internal ----------------------------------------------------------------------------------------------------

    def _note(self, label: str, what: _What, layer: str) -> None:
        now = time()
        with self._lock:
            self._totals[layer, what.result] += 1
            entries = self._entries(label[:_LONGEST_LABEL])
            times = entries.get(what)
            if times is None:
                entries[what] = _Times(1, now, now)
                if len(entries) > _MOST_ENTRIES:
                    entries.popitem(last=False)
                return
            times.count += 1
            times.last = now
            entries.move_to_end(what)

    def _entries(self, label: str) -> OrderedDict[_What, _Times]:
        """Return the entries of a subject; for a new subject, drop the least recently active one."""
        found = self._subjects.get(label)
        if found is None:
            found = self._subjects[label] = OrderedDict()
            if len(self._subjects) > _MOST_SUBJECTS:
                self._subjects.popitem(last=False)
        else:
            self._subjects.move_to_end(label)
        return found


def _seen(what: _What, times: _Times) -> Observed:
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (times.first, times.last))
    return Observed(*what[:4], times.count, first, last, what.reason)


def _label(subject: Subject) -> str:
    return str(subject)[:_LONGEST_LABEL]


def _subject(label: str) -> Subject | None:
    try:
        return Subject.parse(label)
    except InvalidInputError:
        return None


def _text(value: Any) -> str:
    """Return a text to store: a plain str of limited length."""
    return (value if type(value) is str else "")[:_LONGEST_TARGET]
