"""Earlier decisions that are similar to a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, ResourceType, is_at_or_below, parse_declaration
from democrai_sandbox.policy.hosts import host_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .values import AccessTuple, Decision


def similar_first(access: AccessTuple, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Return decisions about the same access, then about nearby targets, then of other subjects; each newest first.

    Unrelated ones among ``decisions`` are left out.
    """
    near = [decision for decision in decisions if decision.access == access or _is_near(access, decision.access)]
    near.sort(key=lambda decision: decision.created_at, reverse=True)
    return tuple(sorted(near, key=lambda decision: _distance(access, decision.access)))


def _distance(access: AccessTuple, other: AccessTuple) -> int:
    if other == access:
        return 0
    return 1 if other.subject == access.subject else 2


def _is_near(access: AccessTuple, other: AccessTuple) -> bool:
    """Return whether a decision is about the same target, URL host or folder."""
    if other.resource_type is not access.resource_type:
        return False
    if other.target == access.target:
        return True
    if other.subject != access.subject:
        return False
    if access.resource_type is ResourceType.NETWORK:
        host = _host(access.target)
        return host is not None and host == _host(other.target)
    if access.resource_type is ResourceType.FILESYSTEM:
        folder = access.target.rpartition("/")[0] or "/"
        return is_at_or_below(access.target, other.target) or (folder != "/" and is_at_or_below(other.target, folder))
    return False


def _host(target: str) -> str | None:
    try:
        parsed = parse_declaration(target)
    except InvalidInputError:
        return None
    return host_key(parsed.host) if parsed.host else parsed.socket
