"""Observed accesses of subjects since the start of this process, with their reasons, rules and decisions."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from time import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox import errors, policy
from democrai_sandbox.policy.hosts import bracketed, host_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.access.values import Decision
    from democrai_sandbox.guard import ObservedEndpoint
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.runtime import Runtime

K = TypeVar("K")
V = TypeVar("V")

ALLOWED = "allowed"
DENIED = "denied"

_MOST_SUBJECTS = 500
_MOST_ENTRIES = 200
_LONGEST_TARGET = 2000
_LONGEST_LABEL = 300
_OTHER = "other"
_CANARY = ("core", "canary")
_RESOURCES: Mapping[type[errors.SandboxDenied], str] = MappingProxyType(
    {
        errors.FilesystemDenied: "filesystem",
        errors.NetworkDenied: "network",
        errors.FilesystemFdDenied: "descriptor",
        errors.ModuleDenied: "import",
        errors.SubprocessDenied: "process",
        errors.EnvironmentDenied: "environment",
        errors.TamperDenied: "interpreter",
    }
)


class AccessReason(StrEnum):
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
class ObservedAccess:
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
    reason: AccessReason = AccessReason.UNKNOWN
    """Reason at that time; the same access with another reason is a separate entry."""


class _AccessKey(NamedTuple):
    operation: str
    resource_type: str
    target: str
    result: str
    reason: AccessReason


@dataclass(slots=True)
class _AccessCount:
    count: int
    first: float
    last: float


class Observations:
    """Written by the guard (``DenialRecorder``, ``EndpointObserver``), read by the console and metrics.

    It is called on the threads of the accesses, so it is fast and never fails. Its size is limited, because subjects
    choose their accesses.
    """

    def __init__(self) -> None:
        self.since = datetime.now(UTC)
        # Reentrant: a finalizer can run at any point, even here, and cause an access.
        self._lock = threading.RLock()
        self._subjects: OrderedDict[str, OrderedDict[_AccessKey, _AccessCount]] = OrderedDict()
        self.grounds: ReasonFinder | None = None
        """Set when the runtime exists: then reasons are recorded."""
        self._totals: Counter[tuple[str, str]] = Counter()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def record(self, denial: errors.SandboxDenied) -> None:
        """Record a denial."""
        if (denial.subject_kind, denial.subject) == _CANARY:
            return  # from the host's test of its guard
        kind = _RESOURCES.get(type(denial), _OTHER)
        label, target = f"{denial.subject_kind}:{denial.subject}", _text(denial.target)
        grounds = self.grounds
        reason = grounds.of_denial(label, kind, denial, target) if grounds else AccessReason.UNKNOWN
        self._note(label, _AccessKey(_text(denial.operation), kind, target, DENIED, reason), _text(denial.layer))

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Record a connection that is about to be opened; the guard repeats it after a minute."""
        subject, kind, host, addresses, port = endpoint
        place = host or next(iter(addresses), "")
        label, target = f"{kind}:{subject}", f"{bracketed(_text(place))}:{port}"
        reason = self.grounds.of_connection(label, target) if self.grounds else AccessReason.UNKNOWN
        self._note(label, _AccessKey("connect", "network", target, ALLOWED, reason), "guard")

    # ---- reading -----------------------------------------------------------------------------------------------------

    def of(self, subject: policy.Subject) -> tuple[ObservedAccess, ...]:
        """Return the observed accesses of a subject, latest first."""
        with self._lock:
            entries = self._subjects.get(str(subject)[:_LONGEST_LABEL])
            found = [_observed_access(what, times) for what, times in entries.items()] if entries else []
        return tuple(sorted(found, key=lambda entry: entry.last, reverse=True))

    def subjects(self) -> tuple[policy.Subject, ...]:
        """Return the observed subjects with valid names."""
        with self._lock:
            labels = list(self._subjects)
        return tuple(subject for label in labels if (subject := _valid(policy.Subject.parse, label)) is not None)

    def totals(self) -> dict[tuple[str, str], int]:
        """Return the number of results per layer (``guard``) since the start of this process."""
        with self._lock:
            return dict(self._totals)

    # ---- internal ----------------------------------------------------------------------------------------------------

    def _note(self, label: str, what: _AccessKey, layer: str) -> None:
        now = time()
        with self._lock:
            self._totals[layer, what.result] += 1
            entries = _latest(self._subjects, label[:_LONGEST_LABEL], OrderedDict, _MOST_SUBJECTS)
            times = _latest(entries, what, lambda: _AccessCount(0, now, now), _MOST_ENTRIES)
            times.count += 1
            times.last = now


def _latest(entries: OrderedDict[K, V], key: K, make: Callable[[], V], most: int) -> V:
    """Return an entry as the latest one; create it if it is missing, and drop the oldest beyond the limit."""
    found = entries.get(key)
    if found is None:
        found = entries[key] = make()
        if len(entries) > most:
            entries.popitem(last=False)
    else:
        entries.move_to_end(key)
    return found


def _observed_access(what: _AccessKey, times: _AccessCount) -> ObservedAccess:
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (times.first, times.last))
    return ObservedAccess(*what[:4], times.count, first, last, what.reason)


def _text(value: Any) -> str:
    """Return a text to store: a plain str of limited length."""
    return (value if type(value) is str else "")[:_LONGEST_TARGET]


@dataclass(frozen=True, slots=True)
class MatchedAccess:
    """Observed access, with the rule and decision that cover it."""

    observed: ObservedAccess
    declared: policy.AccessRule | None
    decided: Decision | None

    @property
    def is_ruled(self) -> bool:
        """Whether access rules apply to it: a file, the network, a program."""
        return self.observed.resource_type in tuple(policy.ResourceType)

    @property
    def is_decided_since(self) -> bool:
        """Whether its decision was made after its last occurrence."""
        return self.decided is not None and self.decided.created_at > self.observed.last


def rule_of(decision: Decision) -> policy.AccessRule:
    """Return a decision as a rule."""
    access = decision.access
    return policy.AccessRule(access.resource_type, access.operation, access.target, access.target)


class RuleMatcher:
    """Comparison of observed accesses with rules, with the matching of every check."""

    def __init__(self, observed: Iterable[ObservedAccess]) -> None:
        self._observed = tuple(
            (
                one,
                _valid(policy.parse_request, one.target) if one.resource_type == policy.ResourceType.NETWORK else None,
            )
            for one in observed
        )

    def times(self, rule: policy.AccessRule) -> int:
        """Return how often accesses covered by a rule were observed."""
        spoken = _RuleCoverage(rule)
        return sum(one.count for one, target in self._observed if spoken.of(one, target))

    def explained(self, rules: Iterable[policy.AccessRule], decisions: Iterable[Decision]) -> tuple[MatchedAccess, ...]:
        """Return all observed accesses with the rule and the decision that cover them."""
        declared = [(rule, _RuleCoverage(rule)) for rule in rules]
        decided = [(one, _RuleCoverage(rule_of(one))) for one in decisions]
        return tuple(
            MatchedAccess(
                one,
                next((rule for rule, spoken in declared if spoken.of(one, target)), None),
                next((decision for decision, spoken in decided if spoken.of(one, target)), None),
            )
            for one, target in self._observed
        )


class _RuleCoverage:
    """Accesses that one rule covers."""

    def __init__(self, rule: policy.AccessRule) -> None:
        self._rule = rule
        self._declared: policy.NetworkTarget | None = None
        self._is_readable = True
        try:
            self._index = policy.NetworkIndex([rule])
            if rule.resource_type is policy.ResourceType.NETWORK:
                self._declared = policy.parse_declaration(rule.normalized_target)
        except policy.InvalidInputError:  # stored by an older version with another notation
            self._is_readable = False

    def of(self, observed: ObservedAccess, target: policy.NetworkTarget | None) -> bool:
        rule = self._rule
        if not self._is_readable or rule.resource_type != observed.resource_type:
            return False
        if self._declared is not None:
            return target is not None and self._is_reached(observed, target)
        if rule.operation != observed.operation:
            return False
        if rule.resource_type is not policy.ResourceType.FILESYSTEM:
            return rule.normalized_target == observed.target
        try:
            return bool(policy.is_at_or_below(observed.target, rule.normalized_target))
        except policy.InvalidInputError:  # code may have requested an invalid path
            return False

    def _is_reached(self, observed: ObservedAccess, target: policy.NetworkTarget) -> bool:
        if observed.operation not in tuple(policy.Operation):
            return False
        if self._index.allows(policy.Operation(observed.operation), target):
            return True
        return observed.result == ALLOWED and self.of_connection(target)

    def of_connection(self, target: policy.NetworkTarget) -> bool:
        """Return whether the rule covers an allowed connection, which is observed as host and port without its URL."""
        declared = self._declared
        if declared is None or target.kind is not policy.TargetKind.HOST:
            return False
        if declared.kind is policy.TargetKind.URL:
            return bool(host_key(declared.host) == host_key(target.host) and declared.port == target.port)
        return bool(self._index.allows(self._rule.operation, target))


def _valid(parse: Callable[[str], V], text: str) -> V | None:
    """Return the value of a text; None if the text is invalid."""
    try:
        return parse(text)
    except policy.InvalidInputError:
        return None


_MOST_KEPT = 4096


class ReasonFinder:
    """Lookup of reasons. It uses memory only, because it runs on the threads of the accesses."""

    def __init__(self, runtime: Runtime, service: AccessService) -> None:
        self._runtime = runtime
        self._service = service
        # Cached, because declarations do not change while the process runs.
        self.of_connection = lru_cache(_MOST_KEPT)(self._of_connection)

    def of_denial(self, label: str, resource: str, denial: errors.SandboxDenied, target: str) -> AccessReason:
        """Return the reason of a denial, from the denial itself or the decisions in force."""
        if resource not in tuple(policy.ResourceType):
            return AccessReason.UNKNOWN
        decision = getattr(denial, "decision", None)
        if type(decision) is policy.AccessDecision:
            codes = {policy.DecisionCode.DENIED: AccessReason.DENIED, policy.DecisionCode.PENDING: AccessReason.PENDING}
            return codes.get(decision.code, AccessReason.NOT_DECLARED)
        subject = _valid(policy.Subject.parse, label)
        if subject is None:
            return AccessReason.NOT_DECLARED
        standing = self._service.standing(subject, resource, denial.operation, target)
        return AccessReason.DENIED if standing == policy.DecisionCode.DENIED else AccessReason.NOT_DECLARED

    def _of_connection(self, label: str, target: str) -> AccessReason:
        """Return why a subject may connect."""
        subject = _valid(policy.Subject.parse, label)
        if subject is None:
            return AccessReason.UNKNOWN
        if subject.kind is policy.SubjectKind.MCP:
            return AccessReason.DECLARED  # the registry contains the server's only endpoint
        request = _valid(policy.parse_request, target)
        for manifest in self._manifests(subject):
            sections = tuple(manifest.sections.values())
            rules = (rule for section in sections if section for rule in section.access)
            if request is not None and any(_RuleCoverage(rule).of_connection(request) for rule in rules):
                return AccessReason.DECLARED
            if None in sections:
                return AccessReason.INHERITED
        return AccessReason.APPROVED

    def _manifests(self, subject: policy.Subject) -> Iterable[Manifest]:
        for extension in self._runtime.extensions:
            if (extension.kind.value, extension.name) == (subject.kind.value, subject.name) and extension.manifest:
                yield extension.manifest
        for asset in self._runtime.ai.assets:
            if asset.declaration.subject == subject:
                yield asset.declaration
