"""Coverage of rules by other rules, matched as in every check, and the rights that a new version adds or drops."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from democrai_sandbox import policy
from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, ResourceType, TargetKind, pointer_to
from democrai_sandbox.policy.network_rules import prefix_of

from .limits import LARGEST, NO_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.policy import NetworkTarget

    from .limits import Limits
    from .models import Manifest, Section

_Key: TypeAlias = "tuple[ResourceType, Operation, str]"


class Coverage:
    """Index of rules. The cost of a lookup does not depend on their number."""

    def __init__(self, rules: Iterable[AccessRule]) -> None:
        """Index the rules; of several equal rules, keep the first."""
        self._positions: dict[_Key, int] = {}
        self._depth = 0
        self._prefixes: set[tuple[int, int]] = set()
        for position, rule in enumerate(rules):
            key = rule.normalized_target
            if rule.resource_type is ResourceType.NETWORK:
                key = policy.rule_key(key)
                target = policy.parse_declaration(rule.normalized_target)
                # Only path depths and prefix lengths that exist are looked up.
                self._depth = max(self._depth, len(target.path))
                if target.kind is TargetKind.NETWORK:
                    self._prefixes.add(prefix_of(key))
            self._positions.setdefault((rule.resource_type, rule.operation, key), position)

    def covering(self, rule: AccessRule) -> Iterator[int]:
        """Yield the positions of the rules that allow everything ``rule`` allows, including itself."""
        for key in self._keys(rule):
            position = self._positions.get((rule.resource_type, rule.operation, key))
            if position is not None:
                yield position

    def covers(self, rule: AccessRule) -> bool:
        """Return whether one of the rules allows everything ``rule`` allows."""
        return any(True for _ in self.covering(rule))

    def _keys(self, rule: AccessRule) -> Iterator[str]:
        if rule.resource_type is ResourceType.FILESYSTEM:
            yield from policy.prefixes_of(rule.normalized_target)
        elif rule.resource_type is ResourceType.NETWORK:
            yield from self._network_keys(policy.parse_declaration(rule.normalized_target))
        else:
            yield rule.normalized_target

    def _network_keys(self, target: NetworkTarget) -> Iterator[str]:
        """Yield the keys of rules that cover a target. A target with a single address is looked up as a host."""
        if target.kind is TargetKind.WILDCARD:
            yield from _wildcard_keys(target)
            return
        if target.kind is TargetKind.NETWORK:
            network = ipaddress.ip_network(target.host)
            for version, length in self._prefixes:
                if version == network.version and length <= network.prefixlen:
                    yield policy.rule_key(str(network.supernet(new_prefix=length)))
            if network.num_addresses > 1:
                return
            target = policy.NetworkTarget(TargetKind.HOST, host=str(network.network_address))
        yield from policy.covering_keys(target, self._depth, self._prefixes)


def covers(broad: AccessRule, narrow: AccessRule) -> bool:
    """Return whether ``broad`` alone allows everything ``narrow`` allows."""
    return Coverage([broad]).covers(narrow)


def common_rules(asking: Iterable[AccessRule], other: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
    """Return rules that allow only what both lists allow.

    A list without programs permits all of them: the result has those of ``asking``, or of ``other`` if it has none.
    """
    first, second = tuple(asking), tuple(other)
    one, two = Coverage(first), Coverage(second)
    both = [rule for rule in first if two.covers(rule)] + [rule for rule in second if one.covers(rule)]
    programs = [rule for rule in first if _is_program(rule)] or [rule for rule in second if _is_program(rule)]
    return tuple(dict.fromkeys((*(rule for rule in both if not _is_program(rule)), *programs)))


def _is_program(rule: AccessRule) -> bool:
    return rule.resource_type is ResourceType.SYSTEM_DEPENDENCY


def _wildcard_keys(target: NetworkTarget) -> Iterator[str]:
    labels = target.host.split(".")
    # A wildcard over a single label is rejected by every parser of rules.
    for begin in range(len(labels) - 1):
        name = ".".join(labels[begin:])
        yield f"W{name}|*"
        if target.port is not None:
            yield f"W{name}|{target.port}"


_LISTS = ("allowed_imports", "allowed_config_urls", "requirements")
"""Lists of names, each of which grants something."""

_INHERITS = "the rights of its caller"


class ChangeEffect(StrEnum):
    """Effect of a change on the subject's rights."""

    ADDED = "added"
    WIDENED = "widened"
    NARROWED = "narrowed"
    DROPPED = "dropped"

    @property
    def adds_power(self) -> bool:
        """Whether the change adds rights."""
        return self in (ChangeEffect.ADDED, ChangeEffect.WIDENED)


@dataclass(frozen=True, slots=True)
class Change:
    """Difference between two versions."""

    effect: ChangeEffect
    pointer: str
    """JSON pointer of the changed list."""
    before: tuple[str, ...] = ()
    """Entries of the old version; for a widened or narrowed rule, its counterparts."""
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the change on one line."""
        old, new = ", ".join(self.before), ", ".join(self.after)
        return f"{self.effect} {self.pointer}: {f'{old} -> {new}' if old and new else old or new}"


@dataclass(frozen=True, slots=True)
class Difference:
    """All changes between two versions, those that add rights first."""

    changes: tuple[Change, ...] = ()

    @property
    def adds_power(self) -> bool:
        """Whether the new version has rights that the old one did not have."""
        return any(change.effect.adds_power for change in self.changes)

    def __str__(self) -> str:
        """Return one change per line."""
        return "\n".join(map(str, self.changes))


def diff(old: Manifest, new: Manifest) -> Difference:
    """Return the rights that a new version adds and drops. Relative filesystem targets are compared as written."""
    if old.kind is not new.kind:
        raise InvalidInputError.of(f"cannot compare a manifest of kind {old.kind} with one of kind {new.kind}")
    changes: list[Change] = []
    for pointer in dict.fromkeys((*old.sections, *new.sections)):
        before, after = old.sections.get(pointer), new.sections.get(pointer)
        changes += _access_changes(before, _rebased(after, new, old), pointer_to(pointer, "access"))
        for name in _LISTS:
            names = getattr(before, name, ()), getattr(after, name, ())
            changes += _list_changes(*names, pointer_to(pointer, name))
        limits = getattr(before, "limits", NO_LIMITS), getattr(after, "limits", NO_LIMITS)
        changes += _limit_changes(*limits, pointer_to(pointer, "limits"))
    return Difference(tuple(sorted(changes, key=lambda change: tuple(ChangeEffect).index(change.effect))))


def rule_text(rule: AccessRule) -> str:
    """Return a short text of a rule, with its target as written."""
    return f"{rule.resource_type} {rule.operation} {rule.target}"


def _access_changes(old: Section | None, new: Section | None, pointer: str) -> Iterator[Change]:
    if old is None or new is None:
        if old is not None:
            yield Change(ChangeEffect.WIDENED, pointer, _texts(old.access), (_INHERITS,))
        if new is not None:
            yield Change(ChangeEffect.NARROWED, pointer, (_INHERITS,), _texts(new.access))
        return
    for rule, parts in _uncovered(new.access, old.access):
        yield Change(ChangeEffect.WIDENED if parts else ChangeEffect.ADDED, pointer, parts, (rule_text(rule),))
    for rule, parts in _uncovered(old.access, new.access):
        yield Change(ChangeEffect.NARROWED if parts else ChangeEffect.DROPPED, pointer, (rule_text(rule),), parts)


def _uncovered(
    rules: tuple[AccessRule, ...], others: tuple[AccessRule, ...]
) -> Iterator[tuple[AccessRule, tuple[str, ...]]]:
    """Yield the rules that ``others`` does not cover, each with the texts of the others that it covers."""
    coverage, reach = Coverage(others), Coverage(rules)
    parts: dict[int, list[AccessRule]] = {}
    for other in others:
        for position in reach.covering(other):
            parts.setdefault(position, []).append(other)
    for position, rule in enumerate(rules):
        if not coverage.covers(rule):
            yield rule, _texts(parts.get(position, ()))


def _list_changes(old: tuple[str, ...], new: tuple[str, ...], pointer: str) -> Iterator[Change]:
    yield from (Change(ChangeEffect.ADDED, pointer, after=(name,)) for name in new if name not in old)
    yield from (Change(ChangeEffect.DROPPED, pointer, before=(name,)) for name in old if name not in new)


def _limit_changes(old: Limits, new: Limits, pointer: str) -> Iterator[Change]:
    """Yield the limits that differ; a raised or removed limit adds rights."""
    for name in LARGEST:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            widened = after is None or (before is not None and after > before)
            effect = ChangeEffect.WIDENED if widened else ChangeEffect.NARROWED
            yield Change(effect, pointer_to(pointer, name), (_limit(before),), (_limit(after),))


def _limit(number: int | None) -> str:
    return "no limit" if number is None else str(number)


def _rebased(section: Section | None, manifest: Manifest, other: Manifest) -> Section | None:
    """Return a section with its relative targets resolved against the folder of the other version."""
    folder = other.source.folder
    if section is None or folder is None or manifest.source.folder is None:
        return section
    return replace(section, access=tuple(_moved(rule, folder) for rule in section.access))


def _moved(rule: AccessRule, folder: str) -> AccessRule:
    if rule.resource_type is not ResourceType.FILESYSTEM or rule.target.startswith("/"):
        return rule
    return replace(rule, normalized_target=policy.normalise_target(rule.resource_type, rule.target, base=folder))


def _texts(rules: Iterable[AccessRule]) -> tuple[str, ...]:
    return tuple(map(rule_text, rules))
