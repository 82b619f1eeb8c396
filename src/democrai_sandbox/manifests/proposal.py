"""Proposal of the smallest declarations for the observed accesses, and the manifest with these declarations."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.policy import VALID_OPERATIONS, AccessRule, InvalidInputError, Operation, ResourceType
from democrai_sandbox.policy.hosts import host_key
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.policy.paths import SHALLOWEST_FOLDER, folder_of_temporary
from democrai_sandbox.policy.rules import written_target
from democrai_sandbox.policy.text import invisible_character

from .coverage import Coverage
from .lint import Finding, lint
from .loader import manifest_to_dict, parse_manifest
from .models import LONGEST_REMARK, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from .models import Manifest

_LOOKED = "only its existence was checked; the entry also allows reading it and everything below it"
_FOLDER = "a folder; the entry allows the same for everything below it"
_BELOW_URL = "the entry allows the same for every path below the URL, with any query"
_LOOKED_UP = "only its name was resolved; the entry allows every port"
_STANDS_FOR: Mapping[str, str] = MappingProxyType({"_ctypes": "ctypes", "_cffi_backend": "cffi"})
"""Import roots that another root includes."""


class ObservedUse(NamedTuple):
    """Access that a subject made or attempted, as the guard asks about it."""

    resource_type: str
    operation: str
    target: str

    def __str__(self) -> str:
        """Return it in words, as in ``read /srv/data``."""
        return f"{IMPORT if self.resource_type == IMPORT else self.operation} {self.target}"

    @classmethod
    def of_import(cls, root: str) -> ObservedUse:
        """Return the use of a sensitive import root."""
        return cls(IMPORT, "use", root)


class Proof(StrEnum):
    """What happened when a subject was run without one operation of an entry, or without one import."""

    FAILS = "fails"
    FAILS_AGAIN = "fails_again"
    """It ended well, and failed when what it had made was there."""
    DIFFERS = "differs"
    """It ended well, and returned or wrote something else."""
    NOT_VERIFIED = "not_verified"
    """It was not run without it."""


_NOT_PROVEN: Mapping[Proof, str] = MappingProxyType(
    {
        Proof.NOT_VERIFIED: "not verified as necessary",
        Proof.DIFFERS: "without it the run succeeds, with another result",
    }
)


@dataclass(frozen=True, slots=True)
class ProposedEntry:
    """Entry of the proposed ``access`` list."""

    resource_type: ResourceType
    operations: tuple[Operation, ...]
    target: str
    """Normalized target."""
    notes: tuple[str, ...] = ()
    """Reasons why it allows more than was observed; empty if it does not."""

    @property
    def uses(self) -> tuple[ObservedUse, ...]:
        """Each operation of the entry by itself."""
        return tuple(ObservedUse(self.resource_type.value, act.value, self.target) for act in self.operations)

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        """Rules of the entry."""
        return tuple(AccessRule(self.resource_type, act, self.target, self.target) for act in self.operations)

    def to_dict(self, folder: str | None = None) -> dict[str, object]:
        """Return the manifest form of the entry, with paths relative to the manifest's folder."""
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
    """Proposed declarations for one phase of a subject.

    Every entry allows an observed access that no other entry allows. ``proofs`` states whether the subject fails
    without it, as far as a repeated run verified that, and ``review`` names every unverified entry. If an entry allows
    more than was observed, because only a rule for a whole folder or site is possible, its notes say so.
    """

    entries: tuple[ProposedEntry, ...]
    allowed_imports: tuple[str, ...]
    unread: tuple[ObservedUse, ...] = ()
    """Observed accesses for which no rule can be written."""
    proofs: Mapping[ObservedUse, Proof] = field(default_factory=dict)
    """Result of a run without each operation of an entry and each import, as far as verified."""

    @property
    def uses(self) -> tuple[ObservedUse, ...]:
        """Each operation of each entry, and each import."""
        entries = (use for entry in self.entries for use in entry.uses)
        return (*entries, *map(ObservedUse.of_import, self.allowed_imports))

    def proof(self, use: ObservedUse) -> Proof:
        """Return the result of a run without one of ``uses``."""
        return self.proofs.get(use, Proof.NOT_VERIFIED)

    @property
    def unverified(self) -> tuple[ObservedUse, ...]:
        """Those of ``uses`` whose necessity was not verified."""
        return tuple(use for use in self.uses if self.proof(use) is Proof.NOT_VERIFIED)

    @property
    def review(self) -> tuple[str, ...]:
        """One line for each unverified use and for each entry that allows more than was used."""
        uses = ((use, _NOT_PROVEN.get(self.proof(use), "")) for use in self.uses)
        lines = [_remark(str(use), why) for use, why in uses if why]
        lines += [
            _remark(entry.target, f"wider than its use: {note}") for entry in self.entries for note in entry.notes
        ]
        return tuple(dict.fromkeys(lines))

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        """Rules of all entries."""
        return tuple(rule for entry in self.entries for rule in entry.rules)

    def allows(self, observed: ObservedUse) -> bool:
        """Return whether an observed access would be allowed."""
        return bool(allowing(self.rules)(observed))


def _remark(about: str, what: str) -> str:
    """Return a line for reviewers: short enough for a manifest, with invisible characters escaped."""
    text = "".join(ascii(one)[1:-1] if invisible_character(one) else one for one in about)
    room = LONGEST_REMARK - len(what) - len(": ")
    return f"{text if len(text) <= room else text[: room - 3] + '...'}: {what}"


def allowing(rules: tuple[AccessRule, ...]) -> Callable[[ObservedUse], frozenset[int]]:
    """Return a function, built once for many calls, that finds the positions of the rules that allow an access."""
    covering = _covering(rules)

    def find(observed: ObservedUse) -> frozenset[int]:
        wanted = _wanted(observed)
        return frozenset() if wanted is None else covering(wanted)

    return find


def propose(
    observed: Iterable[ObservedUse],
    imports: Iterable[str] = (),
    *,
    most: int | None = None,
    looked: Container[ObservedUse] = (),
    folders: Container[str] = (),
) -> Proposal:
    """Return the smallest declarations that allow all observed accesses.

    With ``most``, more than this number of files in one folder, or paths of one site, are merged into their parent; a
    note says so. Without it, only names that differ in every run are merged. Paths in ``looked``, whose existence alone
    was checked, get a note, because an entry allows at least reading. So do ``folders`` above other targets, and other
    uses for which no entry is narrow enough.
    """
    seen = {one: _wanted(one) for one in dict.fromkeys(observed)}
    wanted = [one for one in seen.values() if one is not None]
    notes: dict[AccessRule, str] = {}
    notes.update((rule.rule, _LOOKED) for one, rule in seen.items() if rule is not None and one in looked)
    notes.update((one.rule, _LOOKED_UP) for one in wanted if one.lookup)
    rules = dict.fromkeys(_widened(one, notes) for one in wanted)
    while most is not None and (fewer := _together(rules, most, notes)) != rules:
        rules = fewer
    kept = _needed(tuple(rules), wanted)
    files = {one.rule.normalized_target for one in wanted if one.rule.resource_type is ResourceType.FILESYSTEM}
    above = {place for file in files for place in policy.prefixes_of(file) if place != file}
    for rule in kept:
        if note := _wider_by_nature(rule, rule.normalized_target in above or rule.normalized_target in folders):
            notes.setdefault(rule, note)
    unread = tuple(one for one, rule in seen.items() if rule is None)
    return Proposal(_entries(kept, notes), _roots(imports), unread)


class _ExactRule(NamedTuple):
    """Observed access as the rule that allows exactly this access."""

    rule: AccessRule
    ambiguous: bool = False
    """Whether servers read its path differently, so that only a rule for the whole site covers it."""
    lookup: str = ""
    """Host, if only its name was looked up; any rule for that host allows it."""


def _wanted(one: ObservedUse) -> _ExactRule | None:
    try:
        kind, act = ResourceType(one.resource_type), Operation(one.operation)
        if act not in VALID_OPERATIONS[kind]:
            return None
        if kind is ResourceType.NETWORK:
            target = policy.parse_request(one.target)
            lookup = target.host if target.kind is policy.TargetKind.HOST and target.port is None else ""
            plain = replace(target, ambiguous=False, path=()) if target.ambiguous else target
            return _ExactRule(_rule(kind, act, plain.normalized), target.ambiguous, lookup)
        return _ExactRule(_rule(kind, act, policy.normalise_target(kind, one.target)))
    except (InvalidInputError, ValueError):
        return None


def _rule(kind: ResourceType, act: Operation, target: str) -> AccessRule:
    return AccessRule(kind, act, target, target)


# ---- wider rules, with a note ----------------------------------------------------------------------------------------


def _widened(wanted: _ExactRule, notes: dict[AccessRule, str]) -> AccessRule:
    """Return the narrowest rule that also allows the access in the next run."""
    rule = wanted.rule
    if wanted.ambiguous:
        notes[rule] = "the whole site, because servers read this path differently"
    if rule.resource_type is not ResourceType.FILESYSTEM:
        return rule
    folder = folder_of_temporary(rule.normalized_target)
    if not folder:
        return rule
    wider = _rule(rule.resource_type, rule.operation, folder)
    notes[wider] = "the whole folder, because its file names change in each run"
    return wider


def _wider_by_nature(rule: AccessRule, is_folder: bool) -> str:  # noqa: FBT001 - the other half of the question
    """Return why no rule can be as narrow as the use of a target; empty if one can."""
    if rule.resource_type is ResourceType.FILESYSTEM:
        return _FOLDER if is_folder else ""
    return _BELOW_URL if rule.resource_type is ResourceType.NETWORK and "://" in rule.normalized_target else ""


def _together(rules: dict[AccessRule, None], most: int, notes: dict[AccessRule, str]) -> dict[AccessRule, None]:
    """Merge the rules of a folder or site that has many."""
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
            notes[wider[-1]] = f"replaces {len(many)} observed paths below it"
    return dict.fromkeys(rule for rule in (*rules, *wider) if rule not in replaced)


def _parent(rule: AccessRule) -> str:
    """Return the parent of a rule's target; empty if that would be far too broad."""
    parent = rule.normalized_target.rpartition("/")[0]
    if rule.resource_type is ResourceType.FILESYSTEM:
        return parent if parent.count("/") >= SHALLOWEST_FOLDER else ""
    is_path = rule.resource_type is ResourceType.NETWORK and parent.partition("://")[2].count("/") >= 1
    return parent if is_path else ""


# ---- removal of unneeded rules ---------------------------------------------------------------------------------------


def _needed(rules: tuple[AccessRule, ...], wanted: list[_ExactRule]) -> list[AccessRule]:
    """Remove rules while all observed accesses stay allowed, the broadest first."""
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
    """Return how narrow a rule is, estimated from its text: a host without a port allows every port."""
    target = rule.normalized_target
    is_host = rule.resource_type is ResourceType.NETWORK and "/" not in target
    return -1 if target == "/" else target.count("/") * 2 + (is_host and ":" in target)


def _covering(rules: tuple[AccessRule, ...]) -> Callable[[_ExactRule], frozenset[int]]:
    """Return a function that finds the rules that allow an observed access."""
    coverage = Coverage(rules)
    named: dict[str, set[int]] = {}
    for position, rule in enumerate(rules):
        if rule.resource_type is ResourceType.NETWORK:
            host = policy.parse_request(rule.normalized_target).host
            named.setdefault(host_key(host), set()).add(position)

    def find(wanted: _ExactRule) -> frozenset[int]:
        found = set(coverage.covering(wanted.rule))
        return frozenset(found | named.get(host_key(wanted.lookup), set()) if wanted.lookup else found)

    return find


# ---- manifest form ---------------------------------------------------------------------------------------------------


def _entries(rules: list[AccessRule], notes: dict[AccessRule, str]) -> tuple[ProposedEntry, ...]:
    """Merge the operations on one target, and sort the entries for easy reading."""
    merged: dict[tuple[int, str], list[AccessRule]] = {}
    for rule in sorted(rules, key=lambda one: VALID_OPERATIONS[one.resource_type].index(one.operation)):
        kind = list(ResourceType).index(rule.resource_type)
        merged.setdefault((kind, rule.normalized_target), []).append(rule)
    return tuple(
        ProposedEntry(
            same[0].resource_type,
            tuple(rule.operation for rule in same),
            target,
            tuple(dict.fromkeys(notes[rule] for rule in same if rule in notes)),
        )
        for (_, target), same in sorted(merged.items())
    )


def _roots(imports: Iterable[str]) -> tuple[str, ...]:
    found = set(imports)
    return tuple(sorted(root for root in found if _STANDS_FOR.get(root) not in found))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Suggested manifest with its proposal and the current declarations."""

    proposal: Proposal
    declared: tuple[AccessRule, ...]
    """Current rules of the manifest."""
    declared_imports: tuple[str, ...]
    unused: tuple[AccessRule, ...]
    """Current rules that allowed no observed access."""
    value: dict[str, Any]
    """Suggested manifest as JSON data; only the declarations of the phase differ from the original."""
    manifest: Manifest
    """Parsed form of the suggested manifest."""
    findings: tuple[Finding, ...]
    """Lint findings; lines are those of ``text``."""
    allowed_by: Callable[[ObservedUse], frozenset[int]] = field(repr=False, compare=False)
    """Function that finds the rules of ``declared`` that allow an access."""
    present: Manifest
    """Original manifest."""
    pointer: str = ""
    """JSON pointer of the section."""

    @property
    def text(self) -> str:
        """Suggested manifest as the text of a file."""
        return _text(self.value)

    def with_proposal(self, proposal: Proposal) -> Suggestion:
        """Return the suggestion with another proposal."""
        value, made = _made(self.present, self.pointer, proposal)
        return replace(self, proposal=proposal, value=value, manifest=made, findings=lint(made))

    def is_declared(self, observed: ObservedUse) -> bool:
        """Return whether the current manifest allows an access."""
        return bool(self.allowed_by(observed))


def suggest(
    manifest: Manifest,
    observed: Iterable[ObservedUse],
    imports: Iterable[str] = (),
    *,
    pointer: str = "",
    most: int | None = None,
    granted: tuple[AccessRule, ...] = (),
    looked: Container[ObservedUse] = (),
    folders: Container[str] = (),
) -> Suggestion:
    """Suggest a manifest whose section at ``pointer`` allows exactly the observed accesses; see ``propose``.

    ``granted`` are rights that the subject has from elsewhere; they need no entries.
    """
    elsewhere = allowing(granted)
    seen = tuple(one for one in dict.fromkeys(observed) if not elsewhere(one))
    proposal = propose(seen, imports, most=most, looked=looked, folders=folders)
    value, made = _made(manifest, pointer, proposal)
    section = section_of(manifest, pointer)
    declared = section.access
    allowed_by = allowing(declared)
    used = frozenset[int]().union(*map(allowed_by, seen))
    unused = tuple(rule for position, rule in enumerate(declared) if position not in used)
    present = (declared, section.allowed_imports, unused)
    return Suggestion(proposal, *present, value, made, lint(made), allowed_by, manifest, pointer)


def section_of(manifest: Manifest, pointer: str) -> Section:
    """Return the section of a manifest for one phase."""
    return manifest.sections.get(pointer) or Section()


def _made(manifest: Manifest, pointer: str, proposal: Proposal) -> tuple[dict[str, Any], Manifest]:
    """Return a manifest with a proposal, as JSON data and as a model."""
    value = _with(manifest, pointer, proposal)
    return value, parse_manifest(_text(value), manifest.kind, folder=manifest.source.folder, name=manifest.name)


def _with(manifest: Manifest, pointer: str, proposal: Proposal) -> dict[str, Any]:
    written = manifest.source.value
    value: dict[str, Any] = deepcopy(manifest_to_dict(manifest) if written is None else written)
    section = value.setdefault(pointer[1:], {}) if pointer else value
    folder = manifest.source.folder
    for key, new in (
        ("access", [entry.to_dict(folder) for entry in proposal.entries]),
        ("allowed_imports", list(proposal.allowed_imports)),
    ):
        if new or key in section:
            section[key] = new
    section.pop("review", None)
    if proposal.review:
        section["review"] = list(proposal.review)
    if pointer and not section and pointer[1:] not in (written or {}):
        del value[pointer[1:]]
    return value


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
