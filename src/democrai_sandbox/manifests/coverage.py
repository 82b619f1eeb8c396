"""Coverage of rules by other rules, matched as in every check."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, TypeAlias

from democrai_sandbox.policy import (
    AccessRule,
    NetworkTarget,
    Operation,
    ResourceType,
    TargetKind,
    covering_keys,
    parse_declaration,
    prefixes_of,
    rule_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
                key = rule_key(key)
                self._measure(parse_declaration(rule.normalized_target))
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

    def _measure(self, target: NetworkTarget) -> None:
        """Record path depths and network prefix lengths, so that only existing ones are looked up."""
        self._depth = max(self._depth, len(target.path))
        if target.kind is TargetKind.NETWORK:
            network = ipaddress.ip_network(target.host)
            self._prefixes.add((network.version, network.prefixlen))

    def _keys(self, rule: AccessRule) -> Iterator[str]:
        if rule.resource_type is ResourceType.FILESYSTEM:
            yield from prefixes_of(rule.normalized_target)
        elif rule.resource_type is ResourceType.NETWORK:
            yield from self._network_keys(parse_declaration(rule.normalized_target))
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
                    yield rule_key(str(network.supernet(new_prefix=length)))
            if network.num_addresses > 1:
                return
            target = NetworkTarget(TargetKind.HOST, host=str(network.network_address))
        yield from covering_keys(target, self._depth, self._prefixes)


def covers(broad: AccessRule, narrow: AccessRule) -> bool:
    """Return whether ``broad`` alone allows everything ``narrow`` allows."""
    return Coverage([broad]).covers(narrow)


def _wildcard_keys(target: NetworkTarget) -> Iterator[str]:
    labels = target.host.split(".")
    # A wildcard over a single label is rejected by every parser of rules.
    for begin in range(len(labels) - 1):
        name = ".".join(labels[begin:])
        yield f"W{name}|*"
        if target.port is not None:
            yield f"W{name}|{target.port}"
