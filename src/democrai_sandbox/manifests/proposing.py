"""From what a subject was seen to do to the smallest declarations under which it does the same. Pure: nothing is read.

Every entry of a proposal is needed: without it something that was seen would be denied. What a proposal allows beyond
what was seen is said in the notes of the entry, because only a rule for a whole folder or site could stand there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.policy import (
    VALID_OPERATIONS,
    AccessRule,
    InvalidInputError,
    Operation,
    ResourceType,
    TargetKind,
    normalise_target,
    parse_request,
)
from democrai_sandbox.policy.hosts import host_key
from democrai_sandbox.policy.paths import SHALLOWEST_FOLDER, folder_of_temporary
from democrai_sandbox.policy.rules import written_target

from .covering import Coverage

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

__all__ = ["Entry", "Observed", "Proposal", "allowing", "propose"]

_ORDER = tuple((kind, operation) for kind, operations in VALID_OPERATIONS.items() for operation in operations)
_LOOKED = "it is only looked at, not opened; an entry lets it be read with everything below it"
_STANDS_FOR: Mapping[str, str] = MappingProxyType({"_ctypes": "ctypes", "_cffi_backend": "cffi"})
"""Roots that another one allows as well."""


class Observed(NamedTuple):
    """Something that a subject did, or would have done: as the guard asks about it."""

    resource_type: str
    operation: str
    target: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the proposed ``access`` list."""

    resource_type: ResourceType
    operations: tuple[Operation, ...]
    target: str
    """Normalised."""
    notes: tuple[str, ...] = ()
    """Why it allows more than what was seen; empty where it does not."""

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        """What the entry says, as rules."""
        return tuple(AccessRule(self.resource_type, act, self.target, self.target) for act in self.operations)

    def to_dict(self, folder: str | None = None) -> dict[str, object]:
        """Return the entry as it is written into a manifest, whose own folder makes paths relative."""
        acts = [str(act) for act in self.operations]
        target = self.target
        if folder and self.resource_type is ResourceType.FILESYSTEM and f"{target}/".startswith(f"{folder}/"):
            target = target.removeprefix(folder).strip("/") or "."
        return {
            "resource_type": str(self.resource_type),
            "operation": acts if len(acts) > 1 else acts[0],
            "target": written_target(self.resource_type, target),
        }


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is to be declared for one phase of a subject."""

    entries: tuple[Entry, ...]
    allowed_imports: tuple[str, ...]
    unread: tuple[Observed, ...] = ()
    """What was seen and no rule can be written for."""

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        """What all entries say, as rules."""
        return tuple(rule for entry in self.entries for rule in entry.rules)

    def allows(self, observed: Observed) -> bool:
        """Tell whether something that was seen would be allowed."""
        return bool(allowing(self.rules)(observed))


def allowing(rules: tuple[AccessRule, ...]) -> Callable[[Observed], frozenset[int]]:
    """Return what tells the positions of the rules that allow something that was seen. Made once for many questions."""
    covering = _covering(rules)

    def find(observed: Observed) -> frozenset[int]:
        wanted = _wanted(observed)
        return frozenset() if wanted is None else covering(wanted)

    return find


def propose(
    observed: Iterable[Observed],
    imports: Iterable[str] = (),
    *,
    most: int | None = None,
    looked: Container[Observed] = (),
) -> Proposal:
    """Return the smallest declarations that allow everything that was seen.

    With ``most``, more than so many files of one folder, or paths of one site, are put together into what they have in
    common; a note says so. Without it that is done for names that will be others in the next run, and nothing else.
    What was only ``looked`` at, as by ``stat``, gets a note: an entry allows no less than reading it.
    """
    seen = {one: _wanted(one) for one in dict.fromkeys(observed)}
    wanted = [one for one in seen.values() if one is not None]
    notes: dict[AccessRule, str] = {}
    notes.update((rule.rule, _LOOKED) for one, rule in seen.items() if rule is not None and one in looked)
    rules = dict.fromkeys(_widened(one, notes) for one in wanted)
    while most is not None and (fewer := _together(rules, most, notes)) != rules:
        rules = fewer
    kept = _needed(tuple(rules), wanted)
    unread = tuple(one for one, rule in seen.items() if rule is None)
    return Proposal(_entries(kept, notes), _roots(imports), unread)


class _Wanted(NamedTuple):
    """What was seen, as the rule that allows just that."""

    rule: AccessRule
    ambiguous: bool = False
    """Servers read its path in different ways: only a rule for the whole site covers it."""
    lookup: str = ""
    """The host, where nothing but its name was looked up: a rule of any sort for that host allows it."""


def _wanted(one: Observed) -> _Wanted | None:
    try:
        kind, act = ResourceType(one.resource_type), Operation(one.operation)
        if act not in VALID_OPERATIONS[kind]:
            return None
        if kind is ResourceType.NETWORK:
            target = parse_request(one.target)
            lookup = target.host if target.kind is TargetKind.HOST and target.port is None else ""
            plain = replace(target, ambiguous=False, path=()) if target.ambiguous else target
            return _Wanted(_rule(kind, act, plain.normalized), target.ambiguous, lookup)
        return _Wanted(_rule(kind, act, normalise_target(kind, one.target)))
    except (InvalidInputError, ValueError):
        return None


def _rule(kind: ResourceType, act: Operation, target: str) -> AccessRule:
    return AccessRule(kind, act, target, target)


# ---- allowing more than was seen, with a note ------------------------------------------------------------------------


def _widened(wanted: _Wanted, notes: dict[AccessRule, str]) -> AccessRule:
    """Return the narrowest rule that allows it in the next run, too."""
    rule = wanted.rule
    if wanted.ambiguous:
        notes[rule] = "the whole site: a path that servers read in different ways is covered by nothing less"
    if rule.resource_type is not ResourceType.FILESYSTEM:
        return rule
    folder = folder_of_temporary(rule.normalized_target)
    if not folder:
        return rule
    wider = _rule(rule.resource_type, rule.operation, folder)
    notes[wider] = "the whole folder: names in it are others in each run"
    return wider


def _together(rules: dict[AccessRule, None], most: int, notes: dict[AccessRule, str]) -> dict[AccessRule, None]:
    """Put the rules of a folder, or a site, together where there are many."""
    siblings: dict[tuple[ResourceType, Operation, str], list[AccessRule]] = {}
    for rule in rules:
        parent = _parent(rule)
        if parent:
            siblings.setdefault((rule.resource_type, rule.operation, parent), []).append(rule)
    replaced: set[AccessRule] = set()
    wider = []
    for (kind, act, parent), many in siblings.items():
        if len(many) > most:
            replaced.update(many)
            wider.append(_rule(kind, act, parent))
            notes[wider[-1]] = f"stands for {len(many)} that were seen below it"
    return dict.fromkeys(rule for rule in (*rules, *wider) if rule not in replaced)


def _parent(rule: AccessRule) -> str:
    """Return what a rule has in common with its siblings; empty where that would be far too much."""
    parent = rule.normalized_target.rpartition("/")[0]
    if rule.resource_type is ResourceType.FILESYSTEM:
        return parent if parent.count("/") >= SHALLOWEST_FOLDER else ""
    is_path = rule.resource_type is ResourceType.NETWORK and parent.partition("://")[2].count("/") >= 1
    return parent if is_path else ""


# ---- nothing that is not needed --------------------------------------------------------------------------------------


def _needed(rules: tuple[AccessRule, ...], wanted: list[_Wanted]) -> list[AccessRule]:
    """Leave out rules as long as all that was seen stays allowed, the broadest first."""
    covering = _covering(rules)
    allowing = [covering(one) for one in wanted]
    users: dict[int, list[int]] = {}
    for place, positions in enumerate(allowing):
        for position in positions:
            users.setdefault(position, []).append(place)
    left = [len(positions) for positions in allowing]
    kept = set(range(len(rules)))
    for position in sorted(kept, key=lambda at: (_narrowness(rules[at]), at)):
        places = users.get(position, [])
        if all(left[place] > 1 for place in places):
            kept.discard(position)
            for place in places:
                left[place] -= 1
    return [rules[position] for position in sorted(kept)]


def _narrowness(rule: AccessRule) -> int:
    """Return how little a rule allows, as far as that shows in its text: a name alone opens every port."""
    target = rule.normalized_target
    is_host = rule.resource_type is ResourceType.NETWORK and "/" not in target
    return -1 if target == "/" else target.count("/") * 2 + (is_host and ":" in target)


def _covering(rules: tuple[AccessRule, ...]) -> Callable[[_Wanted], frozenset[int]]:
    """Return what tells which of the rules allow something that was seen."""
    coverage = Coverage(rules)
    named: dict[str, set[int]] = {}
    for position, rule in enumerate(rules):
        if rule.resource_type is ResourceType.NETWORK:
            host = parse_request(rule.normalized_target).host
            named.setdefault(host_key(host), set()).add(position)

    def find(wanted: _Wanted) -> frozenset[int]:
        found = set(coverage.covering(wanted.rule))
        return frozenset(found | named.get(host_key(wanted.lookup), set()) if wanted.lookup else found)

    return find


# ---- as it is written ------------------------------------------------------------------------------------------------


def _entries(rules: list[AccessRule], notes: dict[AccessRule, str]) -> tuple[Entry, ...]:
    """Put the operations on one target together, in the order in which manifests are easiest to read."""
    merged: dict[tuple[ResourceType, str], list[AccessRule]] = {}
    for rule in sorted(
        rules, key=lambda one: (_ORDER.index((one.resource_type, one.operation)), one.normalized_target)
    ):
        merged.setdefault((rule.resource_type, rule.normalized_target), []).append(rule)
    return tuple(
        Entry(kind, tuple(rule.operation for rule in same), target, tuple(_notes(same, notes)))
        for (kind, target), same in sorted(
            merged.items(), key=lambda item: (list(ResourceType).index(item[0][0]), item[0][1])
        )
    )


def _notes(rules: list[AccessRule], notes: dict[AccessRule, str]) -> Iterator[str]:
    yield from dict.fromkeys(notes[rule] for rule in rules if rule in notes)


def _roots(imports: Iterable[str]) -> tuple[str, ...]:
    found = set(imports)
    return tuple(sorted(root for root in found if _STANDS_FOR.get(root) not in found))
