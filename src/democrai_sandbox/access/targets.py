"""What a question or a decision is about, read once: the canonical target and the keys under which it is looked up."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.policy import (
    InvalidInputError,
    NetworkTarget,
    Operation,
    ResourceType,
    covering_keys,
    normalise_target,
    parse_request,
    prefixes_of,
    read_operation,
    rule_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

LONGEST_RAW_TARGET = 8192
"""No client sends longer URLs, and no path is longer."""
_LONGEST_REMEMBERED = 512
"""What is longer is read anew each time: a subject chooses these texts, and the host's memory holds them."""
_REMEMBERED = 4096


class Wanted(NamedTuple):
    """A resource that somebody asks for."""

    resource_type: ResourceType
    operation: Operation
    target: str
    """Canonical, and part of the identity of a decision."""
    parsed: NetworkTarget | None = None
    place: tuple[str, str] = ("", "")
    """Resource type and operation as plain text, which is looked up faster than members of an enumeration."""

    @property
    def is_ambiguous(self) -> bool:
        """Whether servers may read its path differently: no approval of it could be told from one of another path."""
        return self.parsed is not None and self.parsed.ambiguous

    def keys(self, depth: int, prefixes: Collection[tuple[int, int]]) -> Iterator[str]:
        """Yield the keys of all decisions that would cover it."""
        if self.parsed is not None:
            yield from covering_keys(self.parsed, depth, prefixes)
        elif self.resource_type is ResourceType.FILESYSTEM:
            yield from prefixes_of(self.target, depth)
        else:
            yield self.target


def decision_key(resource_type: str, target: str) -> str:
    """Return the key under which a decision about this canonical target is kept."""
    return rule_key(target) if resource_type == ResourceType.NETWORK else target


def is_network(resource_type: str, key: str) -> bool:
    """Tell whether a key is that of a range of addresses."""
    return key[0] == "N" and resource_type == ResourceType.NETWORK


def prefix_of(key: str) -> tuple[int, int]:
    """Return IP version and prefix length of the key of a network."""
    version, length, _ = key[1:].split("|", 2)
    return int(version), int(length)


class Reader:
    """Reads what is asked for, and remembers what it has read.

    Each service has its own: what it remembers must not be where guarded code could get at it and change it.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._lexical = lru_cache(maxsize=_REMEMBERED)(_lexical)
        self._read = lru_cache(maxsize=_REMEMBERED)(_read)

    def read(
        self, resource_type: object, operation: object, target: object, place_of: Callable[[str], str] | None = None
    ) -> Wanted:
        """Return what is asked for, or refuse with what is wrong. ``place_of`` finds out where a path leads.

        The guard asks about where a path leads, and an approval has to be about the same.
        """
        if type(resource_type) is not str or type(operation) is not str:
            kind, act = read_operation(resource_type, operation)
            resource_type, operation = str(kind), str(act)
        if type(target) is not str:
            raise InvalidInputError.of(f"expected a text, got {type(target).__name__}", pointer="/target")
        if len(target) > LONGEST_RAW_TARGET:
            raise InvalidInputError.of(f"the target is longer than {LONGEST_RAW_TARGET} characters", pointer="/target")
        if place_of is not None and resource_type == "filesystem":
            target = _followed(
                place_of, self._lexical(target) if len(target) <= _LONGEST_REMEMBERED else _lexical(target)
            )
        return (self._read if len(target) <= _LONGEST_REMEMBERED else _read)(resource_type, operation, target)


def read_declared(resource_type: object, operation: object, target: str) -> tuple[ResourceType, Operation, str]:
    """Return what a decision is made about, in any form that a rule may have; refuse what no rule could be."""
    kind, act = read_operation(resource_type, operation)
    return kind, act, normalise_target(kind, target)


def _followed(place_of: Callable[[str], str], path: str) -> str:
    try:
        return place_of(path)
    except UnicodeEncodeError:
        raise InvalidInputError.of("no file can have this name", pointer="/target") from None


def _lexical(path: str) -> str:
    return normalise_target(ResourceType.FILESYSTEM, path)


def _read(resource_type: str, operation: str, target: str) -> Wanted:
    kind, act = read_operation(resource_type, operation)
    place = (str(kind), str(act))
    if kind is not ResourceType.NETWORK:
        return Wanted(kind, act, normalise_target(kind, target), place=place)
    parsed = parse_request(target)
    return Wanted(kind, act, parsed.normalized, parsed, place)
