"""What subjects were seen to do since this process began: permitted connections, and whatever was denied.

It is told on the threads on which things happen, so it is quick and never fails. What it keeps is bounded: subjects
choose what they try, and how often.
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
    """What was in force when something was allowed or denied."""

    DECLARED = "declared"
    INHERITED = "inherited"
    """The subject declares nothing of its own, and runs under what encloses it."""
    APPROVED = "approved"
    PENDING = "pending"
    """Not declared, and the request for it was not decided."""
    DENIED = "denied"
    """By a decision."""
    NOT_DECLARED = "not_declared"
    UNKNOWN = ""
    """Also for what no access rule is about."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One thing that a subject did or was kept from, however often."""

    operation: str
    resource_type: str
    """``network``, ``filesystem``, or one of those that no rule is about: ``process``, ``import`` and so on."""
    target: str
    result: str
    """``allowed`` or ``denied``."""
    count: int
    first: datetime
    last: datetime
    reason: Reason = Reason.UNKNOWN
    """Why, as it was when it happened; what happened for another reason is another entry."""


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
    """Told by the guard (``DenialRecorder``, ``EndpointObserver``), read by consoles and monitors."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.since = datetime.now(UTC)
        # May be entered twice: a finaliser can run at any place, also here, and do what is noted.
        self._lock = threading.RLock()
        self._subjects: OrderedDict[str, OrderedDict[_What, _Times]] = OrderedDict()
        self._grounds: Grounds | None = None
        self._totals: Counter[tuple[str, str]] = Counter()

    def explain_by(self, grounds: Grounds) -> None:
        """Keep why things happen, too, from now on."""
        self._grounds = grounds

    # ---- told --------------------------------------------------------------------------------------------------------

    def record(self, denial: SandboxDenied) -> None:
        """Take note of a denial."""
        if (denial.subject_kind, denial.subject) == _CANARY:
            return  # the host has tried whether its guard denies
        kind = _RESOURCES.get(type(denial), _OTHER)
        label, target = f"{denial.subject_kind}:{denial.subject}", _text(denial.target)
        reason = Reason.UNKNOWN
        if self._grounds is not None:
            reason = self._grounds.of_denial(label, kind, denial, target)
        self._note(label, _What(_text(denial.operation), kind, target, DENIED, reason), _text(denial.layer))

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Take note of a connection that is about to be made; the same one is told again after a minute."""
        subject, kind, host, addresses, port = endpoint
        place = host or next(iter(addresses), "")
        label, target = f"{kind}:{subject}", f"{bracketed(_text(place))}:{port}"
        reason = Reason.UNKNOWN if self._grounds is None else self._grounds.of_connection(label, target)
        self._note(label, _What("connect", "network", target, ALLOWED, reason), "guard")

    # ---- read --------------------------------------------------------------------------------------------------------

    def of(self, subject: Subject) -> tuple[Observed, ...]:
        """Return what was seen of a subject, the latest first."""
        with self._lock:
            entries = self._subjects.get(_label(subject)) or OrderedDict[_What, _Times]()
            found = [_seen(what, times) for what, times in entries.items()]
        return tuple(sorted(found, key=lambda entry: entry.last, reverse=True))

    def subjects(self) -> tuple[Subject, ...]:
        """Return of whom something was seen, as far as their names are names of subjects."""
        with self._lock:
            labels = list(self._subjects)
        return tuple(subject for label in labels if (subject := _subject(label)) is not None)

    def totals(self) -> dict[tuple[str, str], int]:
        """Return how often each layer (``guard``) came to each result since this process began."""
        with self._lock:
            return dict(self._totals)

    # ---- parts -------------------------------------------------------------------------------------------------------

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
        """Return what is known of a subject; whoever was quiet for longest is forgotten for a new one."""
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
    """Return a text to keep: of that very type, and not longer than a person could want to see."""
    return (value if type(value) is str else "")[:_LONGEST_TARGET]
