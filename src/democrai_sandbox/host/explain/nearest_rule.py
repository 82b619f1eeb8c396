"""Find the nearest rule to an access, and the difference."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from democrai_sandbox import policy
from democrai_sandbox.policy.hosts import host_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.targets import RequestedTarget

_FAR = 0
_NAME = 1
_HOST = 10
_PLACE = 50


@dataclass(frozen=True, slots=True)
class Nearest:
    """Rule that does not cover the access, and why."""

    rule: policy.AccessRule
    why: str


def covering_rule(rules: Iterable[policy.AccessRule], wanted: RequestedTarget) -> policy.AccessRule | None:
    """Return the rule that covers the access, with the matching of every check."""
    if wanted.parsed is not None:
        return policy.NetworkIndex(rules).find(wanted.operation, wanted.parsed)
    same = [rule for rule in rules if (rule.resource_type, rule.operation) == (wanted.resource_type, wanted.operation)]
    if wanted.resource_type is policy.ResourceType.FILESYSTEM:
        covering = [
            rule for rule in same if policy.is_at_or_below(wanted.target, os.path.realpath(rule.normalized_target))
        ]
    else:
        covering = [rule for rule in same if rule.normalized_target == wanted.target]
    return max(covering, key=lambda rule: len(rule.normalized_target), default=None)


def nearest_rule(rules: Iterable[policy.AccessRule], wanted: RequestedTarget) -> Nearest | None:
    """Return the nearest rule for the same resource type; None if none is near."""
    same_kind = [rule for rule in rules if rule.resource_type is wanted.resource_type]
    if wanted.resource_type is policy.ResourceType.SYSTEM_DEPENDENCY:
        return _similar_name(same_kind, wanted)
    judge = _network if wanted.resource_type is policy.ResourceType.NETWORK else _path
    judged = [(*judge(rule, wanted), rule) for rule in same_kind]
    best = max(judged, key=lambda found: found[0], default=None)
    return None if best is None or best[0] <= _FAR else Nearest(best[2], best[1])


def _similar_name(rules: list[policy.AccessRule], wanted: RequestedTarget) -> Nearest | None:
    close = policy.nearest(wanted.target, [rule.normalized_target for rule in rules])
    found = next((rule for rule in rules if rule.normalized_target == close), None)
    return None if found is None else Nearest(found, f"the rule is for {close}")


def _path(rule: policy.AccessRule, wanted: RequestedTarget) -> tuple[int, str]:
    root = rule.normalized_target
    if policy.is_at_or_below(wanted.target, root):
        return _PLACE + root.count("/"), f"the rule is for {rule.operation}, not for {wanted.operation}"
    shared = _shared(root, wanted.target)
    if not shared or rule.operation is not wanted.operation:
        return _FAR, ""
    return shared, f"{wanted.target} is not below {root}"


def _shared(one: str, other: str) -> int:
    """Return the number of common leading folders of two paths."""
    pairs = zip(one.split("/")[1:], other.split("/")[1:], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _network(rule: policy.AccessRule, wanted: RequestedTarget) -> tuple[int, str]:
    asked = wanted.parsed
    if asked is None:
        return _FAR, ""
    declared = policy.parse_declaration(rule.normalized_target)
    if policy.NetworkIndex([rule]).allows(rule.operation, asked):
        return _PLACE + len(declared.path), f"the rule is for {rule.operation}, not for {wanted.operation}"
    if declared.kind is policy.TargetKind.UNIX or asked.kind is policy.TargetKind.UNIX:
        return _FAR, ""
    if not _is_same_host(declared, asked):
        return _other_host(declared, asked)
    lacks = list(_lacks(declared, asked))
    if rule.operation is not wanted.operation:
        lacks.append(f"the rule is for {rule.operation}, not for {wanted.operation}")
    return _HOST - len(lacks), "; ".join(lacks)


def _is_same_host(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> bool:
    if declared.kind is policy.TargetKind.WILDCARD:
        return asked.host.endswith(f".{declared.host}")
    return declared.kind is not policy.TargetKind.NETWORK and host_key(declared.host) == host_key(asked.host)


def _other_host(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> tuple[int, str]:
    """Return the difference for a misspelled or neighboring host name."""
    if declared.kind is policy.TargetKind.NETWORK:
        return _FAR, ""
    if declared.kind is policy.TargetKind.WILDCARD and asked.host == declared.host:
        return _NAME + 1, f"the pattern *.{declared.host} does not include {declared.host} itself"
    related = asked.host.endswith(f".{declared.host}") or declared.host.endswith(f".{asked.host}")
    if related or policy.nearest(asked.host, [declared.host]):
        return _NAME, f"the rule is for the host {declared.host}, not for {asked.host}"
    return _FAR, ""


def _lacks(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> Iterable[str]:
    """Yield the differences of a rule for the same host."""
    if declared.kind is policy.TargetKind.URL and asked.kind is not policy.TargetKind.URL:
        yield "the rule allows HTTP requests to URLs, not direct socket connections"
    if (
        declared.kind is policy.TargetKind.URL
        and asked.kind is policy.TargetKind.URL
        and declared.scheme != asked.scheme
    ):
        yield f"the rule has the scheme {declared.scheme}, not {asked.scheme}"
    if declared.port is not None and declared.port != asked.port:
        yield f"the rule has the port {declared.port}, not {asked.port or 'any'}"
    if declared.kind is policy.TargetKind.URL and declared.path:
        if asked.ambiguous:
            yield "servers read the requested path differently, so no rule with a path covers it"
        elif asked.kind is policy.TargetKind.URL and asked.path[: len(declared.path)] != declared.path:
            yield f"the path is not below /{'/'.join(declared.path)}"
