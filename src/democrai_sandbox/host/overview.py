"""Overview of subjects and extensions, and shadow runs, which count the differences of a candidate manifest."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.store.queries import SubjectCounts, count_by_subject
from democrai_sandbox.access.values import DecisionFilter, PageRequest, RequestFilter, new_id
from democrai_sandbox.errors import ExtensionUnknown, StoreUnavailable
from democrai_sandbox.manifests import FILE_NAME, Manifest, ManifestKind, diff, lint, parse_manifest
from democrai_sandbox.manifests.document import LARGEST_MANIFEST, PlacedProblem
from democrai_sandbox.manifests.loader import open_at_once
from democrai_sandbox.policy import AccessRule, InvalidInputError, Problem, ResourceType, Subject, SubjectKind, hint_for
from democrai_sandbox.runtime.extensions.importer import Surface, described
from democrai_sandbox.runtime.installs.environments import InstallState
from democrai_sandbox.runtime.store import ShadowEffect, ShadowRun

from .host_only import require_administrator
from .observations import MatchedAccess, RuleMatcher, rule_of
from .run_modes import RunMode, modes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.access.values import Decision, StoredRequest
    from democrai_sandbox.manifests import Change, Finding
    from democrai_sandbox.runtime.calls.outcome import PrintedOutput
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
    from democrai_sandbox.runtime.installs.environments import InstallStatus
    from democrai_sandbox.runtime.store import ShadowDifference
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    from .run_modes import ModeReport
    from .sandbox import Sandbox

SURFACES = ("render", "action", "command", "task")
"""Runnable functions of a module, in display order."""
_EXTENSION_KINDS = ("module", "engine", "extractor")


class ExtensionState(StrEnum):
    """Whether an extension can be used."""

    OK = "ok"
    BROKEN = "broken"
    NOT_INSTALLED = "not_installed"
    OUTDATED = "outdated"
    """Installed for another manifest or interpreter than the current one."""
    INSTALLING = "installing"


_STATES = MappingProxyType({InstallState.MISSING: ExtensionState.NOT_INSTALLED, InstallState.READY: ExtensionState.OK})
"""States of installations with another name as the state of an extension."""


@dataclass(frozen=True, slots=True)
class ExtensionSummary:
    """Extension in a list."""

    kind: ManifestKind
    name: str
    state: ExtensionState
    version: str
    description: str
    folder: str
    isolation: str
    """``in_process``, or ``process`` for an extension with a worker."""
    mode: RunMode
    """Whether it runs in a worker, and the kernel confines it."""
    mode_reason: str
    problems: tuple[Problem, ...]
    findings: tuple[Finding, ...]
    install: InstallStatus | None
    """None for modules, which need no installation, and for broken extensions."""


@dataclass(frozen=True, slots=True)
class RunnableFunction:
    """Runnable function of a module."""

    kind: str
    name: str
    parameters: tuple[str, ...]
    """Parameter names; texts of the extension, like the hint."""
    hint: str
    """First line of its documentation."""
    every: float | None
    """Seconds between the runs of a scheduled task."""


@dataclass(frozen=True, slots=True)
class ExtensionProfile:
    """Extension with all details."""

    overview: ExtensionSummary
    manifest_file: str
    lines: tuple[str, ...]
    """Current content of the manifest; empty if it cannot be read."""
    offers: tuple[RunnableFunction, ...]
    printed: PrintedOutput
    limits: tuple[tuple[str, str, int], ...]
    """Section (``host`` for the configuration), name and number."""


def list_extensions(sandbox: Sandbox) -> tuple[ExtensionSummary, ...]:
    """List all extensions, by kind and name. Reads files, so do not call it on an event loop."""
    ordered = sorted(sandbox.runtime.extensions, key=lambda one: (_EXTENSION_KINDS.index(one.kind.value), one.name))
    mode = modes(sandbox)
    return tuple(_overview(sandbox, one, mode(one)) for one in ordered)


def find_extension(sandbox: Sandbox, kind: str, name: str) -> RegisteredExtension:
    """Return an extension, broken or not; raise ``ExtensionUnknown`` with the nearest name."""
    if kind not in _EXTENSION_KINDS:
        raise InvalidInputError.of(f"unknown kind {kind!r}: use module, engine or extractor", pointer="/kind")
    wanted = ManifestKind(kind)
    if wanted is ManifestKind.MODULE and name in sandbox.runtime.modules.extensions:
        return sandbox.runtime.modules.extensions[name]  # includes the result of the import, unlike the registry
    return sandbox.runtime.registry.get(wanted, name)


def extension_profile(sandbox: Sandbox, kind: str, name: str) -> ExtensionProfile:
    """Return one extension with all details; raise ``ExtensionUnknown``."""
    extension = find_extension(sandbox, kind, name)
    file = os.path.join(extension.folder, FILE_NAME)  # noqa: PTH118 - a str path
    return ExtensionProfile(
        _overview(sandbox, extension, modes(sandbox)(extension)),
        file,
        _lines(file),
        runnable_functions(sandbox, extension),
        sandbox.runtime.output.of(f"{extension.kind.value}:{extension.name}"),
        tuple(_limits(sandbox, extension)),
    )


def runnable_functions(sandbox: Sandbox, extension: RegisteredExtension) -> tuple[RunnableFunction, ...]:
    """Return the runnable functions of a module; empty for broken modules and other kinds."""
    if extension.kind is not ManifestKind.MODULE:
        return ()
    for module in sandbox.runtime.modules.all_loaded():
        if module.extension.name == extension.name:
            found = [_offered(surface) for surface in module.surfaces.values() if surface.kind in SURFACES]
            return tuple(sorted(found, key=lambda one: (SURFACES.index(one.kind), one.name)))
    return ()


def _overview(sandbox: Sandbox, extension: RegisteredExtension, mode: ModeReport) -> ExtensionSummary:
    manifest = extension.manifest
    runtime = sandbox.runtime.installed(extension.kind)
    install = None if runtime is None or extension.is_broken else runtime.status(extension.name)
    state = ExtensionState.OK if install is None else _STATES.get(install.state) or ExtensionState(install.state)
    return ExtensionSummary(
        extension.kind,
        extension.name,
        ExtensionState.BROKEN if extension.is_broken else state,
        getattr(manifest, "version", ""),
        getattr(manifest, "description", ""),
        extension.folder,
        "in_process" if mode.mode is RunMode.IN_PROCESS else "process",
        mode.mode,
        mode.reason,
        extension.problems,
        () if manifest is None else lint(manifest, in_process=mode.mode is RunMode.IN_PROCESS),
        install,
    )


def _offered(surface: Surface | SurfaceInfo) -> RunnableFunction:
    every = surface.options.get("every")
    seconds = float(every) if isinstance(every, int | float) else None
    parameters, hint = described(surface) if isinstance(surface, Surface) else (surface.parameters, surface.hint)
    return RunnableFunction(surface.kind, surface.name, parameters, hint, seconds)


def _limits(sandbox: Sandbox, extension: RegisteredExtension) -> Iterator[tuple[str, str, int]]:
    sections = extension.manifest.sections if extension.manifest else {}
    for pointer, section in sections.items():
        for name, number in section.limits.given() if section else ():
            yield pointer.strip("/") or "manifest", name, number
    for name, number in sandbox.settings.limits.given():
        yield "host", name, number


def _lines(file: str) -> tuple[str, ...]:
    """Return the lines of a manifest, broken or not, without blocking on a device or pipe."""
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return ()
            data = stream.read(LARGEST_MANIFEST)
    except (OSError, ValueError):
        return ()
    return tuple(data.decode("utf-8", "replace").removesuffix("\n").split("\n"))


def line_of(problem: Problem) -> int:
    """Return the line of a problem; 0 if unknown."""
    return problem.line if isinstance(problem, PlacedProblem) else 0


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
        # MCP servers and the host have no processes.
        unenforced=()
        if subject.kind in (SubjectKind.MCP, SubjectKind.CORE)
        else sandbox.runtime.confinement.unenforced_of(str(subject), (rule for _, rule in declared)),
    )


# ---- known subjects --------------------------------------------------------------------------------------------------


def _declaring(sandbox: Sandbox) -> Iterator[tuple[Subject, str, Manifest | None]]:
    """Yield the subjects that are known by registration or declaration, not by their accesses."""
    runtime = sandbox.runtime
    for extension in runtime.extensions:
        with suppress(InvalidInputError):  # a broken extension has the name of its folder, which may be any text
            yield extension.subject, "extension", extension.manifest
    with suppress(StoreUnavailable):
        for server in runtime.store.mcp_servers():
            yield server.subject, "mcp registry", server
    for asset in runtime.ai.assets:
        yield asset.declaration.subject, "declaration", asset.declaration


def _check_recorded(sandbox: Sandbox, subject: Subject, known: Iterable[Subject]) -> None:
    """Raise for an unknown subject, with the nearest name."""
    recorded = sandbox.access.store.database.read(count_by_subject)
    if (subject.kind.value, subject.name) in recorded:
        return
    hint = hint_for(subject.name, [one.name for one in known if one.kind is subject.kind])
    raise ExtensionUnknown(f"unknown subject {subject}{hint}")


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


LONGEST_CANDIDATE = 256 * 1024
_SHADOW_KINDS = (SubjectKind.MODULE, SubjectKind.ENGINE, SubjectKind.EXTRACTOR)
_INNER = (SubjectKind.TASK, SubjectKind.TOOL, SubjectKind.AGENT, SubjectKind.PIPELINE)


class ShadowOverview(NamedTuple):
    """Shadow run in a list."""

    run: ShadowRun
    denied: int
    """Number of accesses that the candidate would deny."""
    allowed: int


@dataclass(frozen=True, slots=True)
class ShadowDetail:
    """Shadow run with all details."""

    run: ShadowRun
    denied: tuple[ShadowDifference, ...]
    """Accesses that the candidate would deny, most frequent first."""
    allowed: tuple[ShadowDifference, ...]
    changes: tuple[Change, ...]
    """Differences between the manifests."""
    problem: str = ""
    """Reason why the comparison has become impossible; empty if it is possible."""

    @property
    def denies(self) -> bool:
        """Whether the candidate would deny a current access."""
        return bool(self.denied or self.run.other_denied)


def start_shadow(
    sandbox: Sandbox, subject: Subject, candidate: str, caller: Caller, *, dry_run: bool = False
) -> ShadowRun:
    """Start a shadow run of a candidate manifest on all nodes. The rights of the subject stay the same.

    With ``dry_run``, check everything without starting: the returned run has no id. Raise ``InvalidInputError`` with
    all problems, and ``EntryExists`` while another candidate is tried.
    """
    require_administrator(caller, "shadows")
    extension = _extension(sandbox, subject)
    extension.require_sound()
    _read(extension, candidate)
    made = "" if dry_run else new_id()
    run = ShadowRun(made, extension.subject, candidate, sandbox.access.node.clock(), caller.user_id)
    if not dry_run:
        sandbox.runtime.store.start_shadow(run)
        _announce(sandbox)
    return run


def end_shadow(sandbox: Sandbox, run_id: str, caller: Caller) -> ShadowRun:
    """End a run and keep its results. An ended run stays unchanged."""
    require_administrator(caller, "shadows")
    sandbox.runtime.shadows.flush()
    store = sandbox.runtime.store
    if store.end_shadow(run_id, actor=caller.user_id, now=sandbox.access.node.clock()):
        _announce(sandbox)
    return store.shadow(run_id)


def list_shadows(sandbox: Sandbox, caller: Caller) -> tuple[ShadowOverview, ...]:
    """Return all runs, active ones first."""
    require_administrator(caller, "shadows")
    store = sandbox.runtime.store
    counts = store.finding_counts()
    return tuple(ShadowOverview(run, *counts.get(run.id, (0, 0))) for run in store.shadows())


def show_shadow(sandbox: Sandbox, run_id: str, caller: Caller) -> ShadowDetail:
    """Return a run with its results so far; raise ``EntryUnknown``."""
    require_administrator(caller, "shadows")
    run = sandbox.runtime.store.shadow(run_id)
    found = sandbox.runtime.store.findings(run_id)
    denied = tuple(one for one in found if one.effect is ShadowEffect.DENIED)
    allowed = tuple(one for one in found if one.effect is ShadowEffect.ALLOWED)
    try:
        extension = _extension(sandbox, run.subject)
        if extension.manifest is None:
            return ShadowDetail(run, denied, allowed, (), f"the manifest of {extension.subject} cannot be read")
        changes = diff(extension.manifest, _read(extension, run.candidate)).changes
        return ShadowDetail(run, denied, allowed, changes)
    except (ExtensionUnknown, InvalidInputError) as error:
        return ShadowDetail(run, denied, allowed, (), str(error))


def _announce(sandbox: Sandbox) -> None:
    """Apply the change on this node and notify the others."""
    sandbox.runtime.shadows.refresh()
    sandbox.access.node.announce()


def _extension(sandbox: Sandbox, subject: Subject) -> RegisteredExtension:
    if subject.kind in _INNER:
        module = subject.name.rpartition(".")[0] or subject.name
        message = f"a {subject.kind} uses the manifest of its module"
        raise InvalidInputError.of(message, pointer="/subject", suggestion=f"module:{module}")
    if subject.kind not in _SHADOW_KINDS:
        listed = ", ".join(_SHADOW_KINDS)
        raise InvalidInputError.of(f"only these have a manifest: {listed}", pointer="/subject")
    for extension in sandbox.runtime.extensions:
        if extension.subject == subject:
            return extension
    raise ExtensionUnknown(f"unknown {subject.kind} {subject.name!r}")


def _read(extension: RegisteredExtension, candidate: str) -> Manifest:
    """Return the candidate, which must have the same kind and name; raise with all problems."""
    if len(candidate) > LONGEST_CANDIDATE:
        raise InvalidInputError.of(f"longer than {LONGEST_CANDIDATE:,} characters", pointer="/manifest")
    try:
        manifest = parse_manifest(candidate, extension.kind, folder=extension.folder, name=extension.name)
    except InvalidInputError as error:
        raise InvalidInputError(_placed(problem) for problem in error.problems) from None
    name = getattr(manifest, "name", "")
    if name != extension.name:
        message = f"the candidate is for {name!r}, not for {extension.name!r}"
        raise InvalidInputError.of(message, pointer="/manifest/name", suggestion=extension.name)
    return manifest


def _placed(problem: Problem) -> Problem:
    """Return a manifest problem as a problem of the request, with its line if known."""
    line = line_of(problem)
    where = f"line {line}: " if line else ""
    return Problem(f"/manifest{problem.pointer}", f"{where}{problem.message}", problem.suggestion)
