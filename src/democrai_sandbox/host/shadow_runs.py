"""Shadow runs: the current manifest decides, and the differences of a candidate manifest are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.values import new_id
from democrai_sandbox.errors import ExtensionUnknown
from democrai_sandbox.manifests import Manifest, diff, parse_manifest
from democrai_sandbox.policy import InvalidInputError, Problem, Subject, SubjectKind
from democrai_sandbox.runtime.store import ShadowEffect, ShadowRun

from .extension_overview import line_of
from .host_only import require_administrator

if TYPE_CHECKING:
    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.manifests import Change
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
    from democrai_sandbox.runtime.store import ShadowDifference

    from .sandbox import Sandbox

LONGEST_CANDIDATE = 256 * 1024
_KINDS = (SubjectKind.MODULE, SubjectKind.ENGINE, SubjectKind.EXTRACTOR)
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
        return ShadowDetail(run, denied, allowed, _changes(_extension(sandbox, run.subject), run.candidate))
    except (ExtensionUnknown, InvalidInputError) as error:
        return ShadowDetail(run, denied, allowed, (), str(error))


def _changes(extension: RegisteredExtension, candidate: str) -> tuple[Change, ...]:
    if extension.manifest is None:
        raise ExtensionUnknown(f"the manifest of {extension.subject} cannot be read")
    return diff(extension.manifest, _read(extension, candidate)).changes


def _announce(sandbox: Sandbox) -> None:
    """Apply the change on this node and notify the others."""
    sandbox.runtime.shadows.refresh()
    sandbox.access.node.announce()


def _extension(sandbox: Sandbox, subject: Subject) -> RegisteredExtension:
    if subject.kind in _INNER:
        module = subject.name.rpartition(".")[0] or subject.name
        message = f"a {subject.kind} uses the manifest of its module"
        raise InvalidInputError.of(message, pointer="/subject", suggestion=f"module:{module}")
    if subject.kind not in _KINDS:
        listed = ", ".join(_KINDS)
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
