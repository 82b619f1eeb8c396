"""Match the observed accesses of a subject with its rules and decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.policy import (
    AccessRule,
    InvalidInputError,
    NetworkIndex,
    NetworkTarget,
    Operation,
    ResourceType,
    TargetKind,
    is_at_or_below,
    parse_declaration,
    parse_request,
)
from democrai_sandbox.policy.hosts import host_key

from .observing import ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.values import Decision

    from .observing import Observed


@dataclass(frozen=True, slots=True)
class Seen:
    """Observed access, with the rule and decision that cover it."""

    observed: Observed
    declared: AccessRule | None
    decided: Decision | None

    @property
    def is_ruled(self) -> bool:
        """Whether access rules apply to it: a file, the network, a program."""
        return self.observed.resource_type in tuple(ResourceType)

    @property
    def is_decided_since(self) -> bool:
        """Whether its decision was made after its last occurrence."""
        return self.decided is not None and self.decided.created_at > self.observed.last


def speaks_of(rule: AccessRule, target: str) -> bool:
    """Return whether a rule covers a connection to a host and port."""
    request = _read(target)
    return request is not None and _Spoken(rule).of_connection(request)


def rule_of(decision: Decision) -> AccessRule:
    """Return a decision as a rule."""
    access = decision.access
    return AccessRule(access.resource_type, access.operation, access.target, access.target)


class Matching:
    """Comparison of observed accesses with rules, with the matching of every check."""

    def __init__(self, observed: Iterable[Observed]) -> None:
        """Parse the targets once."""
        self._observed = tuple((one, _request_of(one)) for one in observed)

    def times(self, rule: AccessRule) -> int:
        """Return how often accesses covered by a rule were observed."""
        spoken = _Spoken(rule)
        return sum(one.count for one, target in self._observed if spoken.of(one, target))

    def explained(self, rules: Iterable[AccessRule], decisions: Iterable[Decision]) -> tuple[Seen, ...]:
        """Return all observed accesses with the rule and the decision that cover them."""
        declared = [(rule, _Spoken(rule)) for rule in rules]
        decided = [(one, _Spoken(rule_of(one))) for one in decisions]
        return tuple(
            Seen(
                one,
                next((rule for rule, spoken in declared if spoken.of(one, target)), None),
                next((decision for decision, spoken in decided if spoken.of(one, target)), None),
            )
            for one, target in self._observed
        )


class _Spoken:
    """Accesses that one rule covers."""

    def __init__(self, rule: AccessRule) -> None:
        self._rule = rule
        self._declared: NetworkTarget | None = None
        self._is_readable = True
        try:
            self._index = NetworkIndex([rule])
            if rule.resource_type is ResourceType.NETWORK:
                self._declared = parse_declaration(rule.normalized_target)
        except InvalidInputError:  # stored by an older version with another notation
            self._is_readable = False

    def of(self, observed: Observed, target: NetworkTarget | None) -> bool:
        rule = self._rule
        if not self._is_readable or rule.resource_type != observed.resource_type:
            return False
        if self._declared is not None:
            return target is not None and self._is_reached(observed, target)
        if rule.operation != observed.operation:
            return False
        if rule.resource_type is not ResourceType.FILESYSTEM:
            return rule.normalized_target == observed.target
        try:
            return bool(is_at_or_below(observed.target, rule.normalized_target))
        except InvalidInputError:  # code may have requested an invalid path
            return False

    def _is_reached(self, observed: Observed, target: NetworkTarget) -> bool:
        if observed.operation not in tuple(Operation):
            return False
        if self._index.allows(Operation(observed.operation), target):
            return True
        return observed.result == ALLOWED and self.of_connection(target)

    def of_connection(self, target: NetworkTarget) -> bool:
        """Return whether the rule covers an allowed connection, which is observed as host and port without its URL."""
        declared = self._declared
        if declared is None or target.kind is not TargetKind.HOST:
            return False
        if declared.kind is TargetKind.URL:
            return bool(host_key(declared.host) == host_key(target.host) and declared.port == target.port)
        return bool(self._index.allows(self._rule.operation, target))


def _request_of(observed: Observed) -> NetworkTarget | None:
    return _read(observed.target) if observed.resource_type == ResourceType.NETWORK else None


def _read(target: str) -> NetworkTarget | None:
    try:
        return parse_request(target)
    except InvalidInputError:
        return None
