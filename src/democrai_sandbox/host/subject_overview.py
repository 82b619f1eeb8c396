"""Overview of subjects: their declarations, decisions and observed accesses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.store.queries import SubjectCounts, count_by_subject
from democrai_sandbox.access.values import DecisionFilter, PageRequest, RequestFilter
from democrai_sandbox.errors import ExtensionUnknown, StoreUnavailable
from democrai_sandbox.policy import AccessRule, InvalidInputError, ResourceType, Subject, SubjectKind, nearest

from .observations import MatchedAccess, RuleMatcher, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.access.values import Decision, StoredRequest
    from democrai_sandbox.manifests import Manifest

    from .sandbox import Sandbox

_MOST_DECISIONS = 200
_RECENT = 10
_KINDS = tuple(SubjectKind)


class SubjectSummary(NamedTuple):
    """Subject in a list."""

    subject: Subject
    source: str
    """Origin: ``extension``, ``mcp registry``, ``declaration``, ``records`` or ``observation``."""
    declared: int
    """Number of declared rules."""
    counts: SubjectCounts
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """Declared rule of a subject."""

    rule: AccessRule
    section: str
    """``runtime``, ``install``, or empty for the top level."""
    line: int
    """Line in the manifest; 0 without a file."""
    times_seen: int
    """Number of observed uses. Allowed connections are observed; allowed file accesses are not."""

    @property
    def is_observable(self) -> bool:
        """Whether its uses are observed."""
        return self.rule.resource_type is ResourceType.NETWORK


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """Approval or denial in force, and whether it was used."""

    decision: Decision
    times_seen: int

    @property
    def is_unused(self) -> bool:
        """Whether it was never used."""
        return self.decision.last_used is None and not self.times_seen


@dataclass(frozen=True, slots=True)
class SubjectProfile:
    """Subject with all details."""

    subject: Subject
    manifest: Manifest | None
    inherits: bool
    """Whether it declares nothing and has the rights of its caller."""
    problems: tuple[str, ...]
    declared: tuple[SubjectRule, ...]
    approvals: tuple[RecordedDecision, ...]
    denials: tuple[RecordedDecision, ...]
    observed: tuple[MatchedAccess, ...]
    requests: tuple[StoredRequest, ...]
    unenforced: tuple[str, ...]
    """Rules that the kernel does not enforce for its worker and its children, in words."""

    @property
    def manifest_file(self) -> str:
        """File with the declarations; empty without one."""
        return "" if self.manifest is None else self.manifest.source.path

    @property
    def never_observed(self) -> tuple[SubjectRule, ...]:
        """Declared and observable access that was not observed."""
        return tuple(one for one in self.declared if one.is_observable and not one.times_seen)

    @property
    def not_declared(self) -> tuple[MatchedAccess, ...]:
        """Observed access that no manifest declares."""
        return tuple(one for one in self.observed if one.is_ruled and one.declared is None)

    @property
    def unused(self) -> tuple[RecordedDecision, ...]:
        """Approvals that were never used."""
        return tuple(one for one in self.approvals if one.is_unused)


def known_subjects(sandbox: Sandbox) -> tuple[SubjectSummary, ...]:
    """List all known subjects, by kind and name. The caller must check who may see the list."""
    counts = sandbox.access.store.database.read(count_by_subject)
    found = {subject: (source, manifest) for subject, source, manifest in _declaring(sandbox)}
    broken = {extension.subject for extension in sandbox.runtime.extensions if extension.is_broken}
    for kind, name in counts:
        found.setdefault(Subject(SubjectKind(kind), name), ("records", None))
    for subject in sandbox.observations.subjects():
        found.setdefault(subject, ("observation", None))
    listed = (
        SubjectSummary(
            subject,
            source,
            sum(1 for _ in _rules(manifest)),
            counts.get((subject.kind.value, subject.name), SubjectCounts()),
            subject in broken,
        )
        for subject, (source, manifest) in found.items()
    )
    return tuple(sorted(listed, key=lambda one: (_KINDS.index(one.subject.kind), one.subject.name)))


def subject_profile(sandbox: Sandbox, subject: Subject) -> SubjectProfile:
    """Return one subject with all details. Call it for a user who may decide; it refuses others."""
    administration = sandbox.access.administration
    about = DecisionFilter(subject=subject)
    page = PageRequest(limit=_MOST_DECISIONS)
    approvals = administration.approvals(about, page).items
    denials = administration.denials(about, page).items
    requests = administration.pending_requests(RequestFilter(subject=subject), PageRequest(limit=_RECENT)).items
    observed = sandbox.observations.of(subject)
    known = {found: manifest for found, _, manifest in _declaring(sandbox)}
    if subject not in known and not (approvals or denials or requests or observed):
        _check_recorded(sandbox, subject, known)
    manifest = known.get(subject)
    declared = tuple(_rules(manifest))
    match = RuleMatcher(observed)
    return SubjectProfile(
        subject,
        manifest,
        inherits=manifest is not None and None in manifest.sections.values(),
        problems=tuple(
            str(problem)
            for one in sandbox.runtime.extensions
            if (one.kind.value, one.name) == (subject.kind.value, subject.name)
            for problem in one.problems
        ),
        declared=tuple(
            SubjectRule(rule, section.strip("/"), _line_of(manifest, section, rule), match.times(rule))
            for section, rule in declared
        ),
        approvals=tuple(RecordedDecision(one, match.times(rule_of(one))) for one in approvals),
        denials=tuple(RecordedDecision(one, match.times(rule_of(one))) for one in denials),
        observed=match.explained([rule for _, rule in declared], (*denials, *approvals)),
        requests=requests,
        unenforced=sandbox.runtime.confinement.unenforced_of(str(subject), (rule for _, rule in declared)),
    )


# ---- known subjects --------------------------------------------------------------------------------------------------


def _declaring(sandbox: Sandbox) -> Iterator[tuple[Subject, str, Manifest | None]]:
    """Yield the subjects that are known by registration or declaration, not by their accesses."""
    runtime = sandbox.runtime
    for extension in runtime.extensions:
        try:
            yield extension.subject, "extension", extension.manifest
        except InvalidInputError:  # a broken extension has the name of its folder, which may be any text
            continue
    try:
        for server in runtime.store.mcp_servers():
            yield server.subject, "mcp registry", server
    except StoreUnavailable:
        pass
    for asset in runtime.ai.declared:
        yield asset.declaration.subject, "declaration", asset.declaration


def _check_recorded(sandbox: Sandbox, subject: Subject, known: Iterable[Subject]) -> None:
    """Raise for an unknown subject, with the nearest name."""
    recorded = sandbox.access.store.database.read(count_by_subject)
    if (subject.kind.value, subject.name) in recorded:
        return
    close = nearest(subject.name, [one.name for one in known if one.kind is subject.kind])
    raise ExtensionUnknown(f"unknown subject {subject}" + (f"; did you mean {close!r}?" if close else ""))


# ---- declarations ----------------------------------------------------------------------------------------------------


def _rules(manifest: Manifest | None) -> Iterator[tuple[str, AccessRule]]:
    for pointer, section in (manifest.sections if manifest else {}).items():
        for rule in section.access if section else ():
            yield pointer, rule


def _line_of(manifest: Manifest | None, pointer: str, rule: AccessRule) -> int:
    """Return the line of the manifest entry of a rule: the first with its target and operation."""
    if manifest is None or manifest.source.document is None:
        return 0
    whole = manifest.source.value
    section = whole.get(pointer[1:], {}) if pointer else whole
    for position, entry in enumerate(section.get("access") or ()):
        operations = entry["operation"] if isinstance(entry["operation"], list) else [entry["operation"]]
        same = entry["target"] == rule.target and entry["resource_type"] == rule.resource_type
        if same and rule.operation in operations:
            place = manifest.source.place(f"{pointer}/access/{position}")
            return 0 if place is None else place.line
    return 0


def count_by_kind(listed: Iterable[SubjectSummary]) -> Mapping[SubjectKind, int]:
    """Return the number of subjects of each kind."""
    return Counter(one.subject.kind for one in listed)
