"""Test of each proposed entry: repeat the run without it, if repeating is harmless."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from democrai_sandbox.errors import CommandRefused
from democrai_sandbox.policy.operations import IMPORT

from .output import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.manifests.proposal import ObservedUse, Proof, Proposal, Suggestion
    from democrai_sandbox.runtime.extension_run import Recording


class MovedAsideFiles:
    """Context manager that moves files and folders aside."""

    def __init__(self, made: Iterable[str]) -> None:
        paths = sorted(set(map(Path, made)))
        self._places = [path for path in paths if not any(parent in paths for parent in path.parents)]
        self._kept: dict[Path, Path] = {}

    @property
    def are_there(self) -> bool:
        """Whether the first run created any."""
        return bool(self._kept)

    def __enter__(self) -> Self:
        """Move the files of the first run aside."""
        try:
            for place in filter(os.path.lexists, self._places):
                kept = place.with_name(f".{place.name[:200]}.record-{os.getpid()}")
                os.rename(place, kept)  # noqa: PTH104 - what is there is moved, not what a link points to
                self._kept[place] = kept
        except OSError as error:
            self._put_back()
            raise CommandRefused(
                f"what the run made cannot be moved aside to repeat it: {error}", fix="record without --check"
            ) from None
        return self

    def clear(self) -> None:
        """Remove the files of a repetition."""
        for place in filter(os.path.lexists, self._places):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the files of the first run."""
        try:
            self.clear()
        finally:
            self._put_back()

    def _put_back(self) -> None:
        for place, kept in self._kept.items():
            os.rename(kept, place)  # noqa: PTH104 - likewise


_HARMLESS = frozenset({("filesystem", "read"), ("network", "receive")})
_MOST_RUNS = 50
_MOST_SECONDS = 60.0
"""Time limit in seconds of repetitions without ``--check``."""
_CHECK = "--check repeats the run without each entry; use it where a repetition does no harm"
_MORE_INPUT = "make the run work without input, then --check repeats it without each entry"
_BY_HAND = "remove one entry at a time and run it"


class RecordedRun(NamedTuple):
    """Result of a run."""

    recording: Recording
    status: int
    """0 for success."""
    result: Any = None
    """The return value or, in a quiet run of a script, the standard output."""


class RunFunctions(NamedTuple):
    """Functions that run the code, observed or under a manifest."""

    observe: Callable[[], RecordedRun]
    under: Callable[[Manifest], RecordedRun] | None
    """Run under a manifest; None if there is nothing to run."""
    quietly: Callable[[Manifest], RecordedRun] | None = None
    """Run under a manifest without showing the output; None if it is not repeated."""
    once: str = ""
    """The reason why it is not repeated, if ``quietly`` is None."""


class EntryChecks(NamedTuple):
    """Result of the repeated runs."""

    suggestion: Suggestion
    """The proposal without unneeded entries, with proofs for the others."""
    missing: tuple[str, ...] | None
    """New denials under the proposal; None if it was not run under it."""
    left_out: tuple[str, ...] = ()
    """Unneeded entries, each as operation and target."""
    untried: str = ""
    """The reason why single entries were not tested; empty if they were."""
    fix: str = ""
    """The way to test them."""


def check(
    seen: RecordedRun,
    suggestion: Suggestion,
    runs: RunFunctions,
    looked: Callable[[], Suggestion],
    *,
    wanted: bool | None,
) -> EntryChecks:
    """Repeat the run under the proposal and without each entry in turn, if that is harmless or ``wanted``.

    ``looked`` returns a proposal that includes probes of libraries; it is used if the run fails without them.

    Files that the run created are moved aside during its repetitions, and restored at the end.

    A run that only reads is repeated by default. One that creates, changes, deletes, sends, connects, starts a program
    or uses native code is repeated on request (``--check``). Entries that were not tested are marked in the proposal.
    """
    if wanted is False:
        return EntryChecks(suggestion, None, untried="--no-check was given", fix=_CHECK)
    if runs.quietly is None or seen.status != Exit.OK:
        missing = tuple(_missing(seen, runs.under(suggestion.manifest))) if wanted and runs.under else None
        return EntryChecks(suggestion, missing, untried=runs.once or "the run fails by itself", fix=_BY_HAND)
    if not wanted and not suggestion.proposal.uses:
        return EntryChecks(suggestion, None)
    if not wanted and (acts := _acts(seen.recording)):
        return EntryChecks(suggestion, None, untried=f"the run does more than read ({', '.join(acts)})", fix=_CHECK)
    with MovedAsideFiles(seen.recording.created) as files:
        repeat = _Repetitions(runs.quietly, files, None if wanted else _MOST_SECONDS)
        found = _checked(seen, suggestion, looked, repeat)
    if found.missing is None and wanted and runs.under:
        return found._replace(missing=tuple(_missing(seen, runs.under(suggestion.manifest))))
    return found


def _checked(
    seen: RecordedRun, suggestion: Suggestion, looked: Callable[[], Suggestion], repeat: _Repetitions
) -> EntryChecks:
    first = repeat.anew(suggestion)
    if not any(_missing(seen, first)):
        return _smaller(suggestion, first, repeat)
    wider = looked()
    if suggestion.manifest != wider.manifest and not any(_missing(seen, again := repeat.anew(wider))):
        return _smaller(wider, again, repeat)
    denied = tuple(map(str, _denied(seen, first)))
    why = "the run fails under the proposal" if denied else "repeated without input, the run ends in another way"
    return EntryChecks(suggestion, denied or None, untried=why, fix=_BY_HAND if denied else _MORE_INPUT)


def _acts(recording: Recording) -> list[str]:
    """Return the operations whose repetition could do harm; empty if the run only reads."""
    more = sorted({one.operation for one in recording.accesses if one[:2] not in _HARMLESS})
    more += ["programs"] if recording.has_programs else []
    more += ["native code"] if recording.imports else []
    return more


def _missing(seen: RecordedRun, checked: RecordedRun) -> Iterator[str]:
    """Yield the new denials under the proposal."""
    kept = _denied(seen, checked)
    yield from map(str, kept)
    if checked.status != seen.status and not kept:
        yield f"it ended with {checked.status}"


def _denied(seen: RecordedRun, checked: RecordedRun) -> list[SandboxDenied]:
    observed = seen.recording
    idle = {one.target for one in observed.idle}
    new = [denial for text, denial in checked.recording.denied.items() if text not in observed.denied]
    return [denial for denial in new if not (denial.operations == ("read",) and denial.target in idle)]


class _Repetitions:
    """Repetitions of a run, limited in number and time."""

    def __init__(self, run: Callable[[Manifest], RecordedRun], files: MovedAsideFiles, seconds: float | None) -> None:
        self._run = run
        self._files = files
        self._until = None if seconds is None else monotonic() + seconds
        self._runs = 0
        self.makes_files = files.are_there

    def anew(self, suggestion: Suggestion) -> RecordedRun:
        """Run it under a proposal, without the files of earlier runs."""
        self._files.clear()
        return self.over(suggestion)

    def over(self, suggestion: Suggestion) -> RecordedRun:
        """Run it under a proposal, with the files of the run before."""
        self._runs += 1
        return self._run(suggestion.manifest)

    @property
    def is_enough(self) -> bool:
        """Whether a limit is reached."""
        return self._runs > _MOST_RUNS or (self._until is not None and monotonic() > self._until)


# ---- without each entry ----------------------------------------------------------------------------------------------


def _smaller(suggestion: Suggestion, usual: RecordedRun, repeat: _Repetitions) -> EntryChecks:
    """Remove every entry without which the run has the same result, and prove the others."""
    is_steady = usual.result == repeat.anew(suggestion).result
    repeats = repeat.makes_files and repeat.over(suggestion).status == usual.status
    left_out: list[str] = []
    proofs: dict[ObservedUse, Proof] = {}
    untried = ""
    for use in suggestion.proposal.uses:
        if repeat.is_enough:
            untried = f"the repetitions take too long; {len(proofs) + len(left_out)} operations and imports were tried"
            break
        smaller = suggestion.with_proposal(_without(use, suggestion.proposal))
        proof = _proof(smaller, usual, repeat, is_steady=is_steady, repeats=repeats)
        if proof is None:
            suggestion = smaller
            left_out.append(str(use))
        else:
            proofs[use] = proof
    proven = suggestion.with_proposal(replace(suggestion.proposal, proofs=proofs))
    return EntryChecks(proven, (), tuple(left_out), untried, _CHECK if untried else "")


def _proof(
    smaller: Suggestion, usual: RecordedRun, repeat: _Repetitions, *, is_steady: bool, repeats: bool
) -> Proof | None:
    """Return the proof that a smaller proposal is not sufficient; None if it is."""
    from democrai_sandbox.manifests.proposal import Proof  # noqa: PLC0415 - takes its time

    done = repeat.anew(smaller)
    if done.status != usual.status:
        return Proof.FAILS
    if is_steady and done.result != usual.result:
        return Proof.DIFFERS
    return Proof.FAILS_AGAIN if repeats and repeat.over(smaller).status != usual.status else None


def _without(use: ObservedUse, proposal: Proposal) -> Proposal:
    """Return a proposal without an import, or without an operation of each entry that has this use."""
    if use.resource_type == IMPORT:
        return replace(proposal, allowed_imports=tuple(one for one in proposal.allowed_imports if one != use.target))
    entries = (
        replace(entry, operations=tuple(one for one in entry.operations if one.value != use.operation))
        if use in entry.uses
        else entry
        for entry in proposal.entries
    )
    return replace(proposal, entries=tuple(entry for entry in entries if entry.operations))
