"""Parsed targets of questions and decisions: the canonical form and the keys for lookups."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.policy import InvalidInputError, NetworkTarget, Operation, ResourceType, normalise_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

LONGEST_RAW_TARGET = 8192
"""Longer than any URL that clients send and any path."""
_LONGEST_REMEMBERED = 512
"""Longer targets are not cached, because subjects choose them and the host's memory holds them."""
_REMEMBERED = 4096


class RequestedTarget(NamedTuple):
    """Requested resource."""

    resource_type: ResourceType
    operation: Operation
    target: str
    """Canonical target, part of the identity of a decision."""
    parsed: NetworkTarget | None = None
    place: tuple[str, str] = ("", "")
    """Resource type and operation as plain text, which is looked up faster than enumeration members."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether servers may interpret its path differently, so that an approval could also cover another path."""
        return self.parsed is not None and self.parsed.ambiguous

    def keys(self, depth: int, prefixes: Collection[tuple[int, int]]) -> Iterator[str]:
        """Yield the keys of all decisions that would cover the target."""
        if self.parsed is not None:
            yield from policy.covering_keys(self.parsed, depth, prefixes)
        elif self.resource_type is ResourceType.FILESYSTEM:
            yield from policy.prefixes_of(self.target, depth)
        else:
            yield self.target


def decision_key(resource_type: str, target: str) -> str:
    """Return the key of a decision about this canonical target."""
    return policy.rule_key(target) if resource_type == ResourceType.NETWORK else target


class TargetParser:
    """Parser of requested resources, one for each service, so that guarded code cannot reach and change its cache."""

    def __init__(self) -> None:
        self._lexical = lru_cache(maxsize=_REMEMBERED)(_lexical)
        self._read = lru_cache(maxsize=_REMEMBERED)(_read)

    def read(
        self, resource_type: object, operation: object, target: object, place_of: Callable[[str], str] | None = None
    ) -> RequestedTarget:
        """Parse a requested resource, or raise with the problem. ``place_of`` resolves the links of a path.

        The guard asks about the resolved path, so an approval must name the same path.
        """
        if type(resource_type) is not str or type(operation) is not str:
            kind, act = policy.read_operation(resource_type, operation)
            resource_type, operation = str(kind), str(act)
        if type(target) is not str:
            raise InvalidInputError.of(f"expected a text, got {type(target).__name__}", pointer="/target")
        if len(target) > LONGEST_RAW_TARGET:
            raise InvalidInputError.of(f"the target is longer than {LONGEST_RAW_TARGET} characters", pointer="/target")
        if place_of is not None and resource_type == "filesystem":
            path = (self._lexical if len(target) <= _LONGEST_REMEMBERED else _lexical)(target)
            try:
                target = place_of(path)
            except UnicodeEncodeError:
                message = "the path contains characters that no file name has"
                raise InvalidInputError.of(message, pointer="/target") from None
        return (self._read if len(target) <= _LONGEST_REMEMBERED else _read)(resource_type, operation, target)


def _lexical(path: str) -> str:
    return normalise_target(ResourceType.FILESYSTEM, path)


def _read(resource_type: str, operation: str, target: str) -> RequestedTarget:
    kind, act = policy.read_operation(resource_type, operation)
    place = (str(kind), str(act))
    if kind is not ResourceType.NETWORK:
        return RequestedTarget(kind, act, normalise_target(kind, target), place=place)
    parsed = policy.parse_request(target)
    return RequestedTarget(kind, act, parsed.normalized, parsed, place)
