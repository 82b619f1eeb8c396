"""Whether each proposed entry is needed: the run is repeated without it, where repeating it does no harm.

A run that only reads can be repeated as often as wanted. One that creates, changes, deletes, sends, connects, starts a
program or uses native code is repeated once, to see that the proposal is enough; which entries are needed is then not
known, and said so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.manifests.proposing import Entry, Proposal
    from democrai_sandbox.manifests.suggesting import Suggestion
    from democrai_sandbox.sdk.recording import Recording

_HARMLESS = frozenset({("filesystem", "read"), ("network", "receive")})
_MOST_RUNS = 50
NOT_TRIED = "whether each entry is needed was not tried"


class Run(NamedTuple):
    """How a run went."""

    recording: Recording
    status: int
    """0 if it went well."""
    result: Any = None
    """What it returned or, in a quiet run of a script, wrote to its standard output."""


class Runs(NamedTuple):
    """How something is run: observed, or under a manifest."""

    observe: Callable[[], Run]
    under: Callable[[Manifest], Run]
    quietly: Callable[[Manifest], Run] | None = None
    """Under a manifest, without showing what it says; None where repeating it takes too long."""


class Checked(NamedTuple):
    """What came of running it again."""

    suggestion: Suggestion
    """Without the entries that turned out not to be needed."""
    missing: tuple[str, ...]
    """What was denied under the proposal that had not been denied before; nothing, if it is enough."""
    left_out: tuple[str, ...] = ()
    """The entries without which it runs just as well, each as operation and target."""
    untried: str = ""
    """Why it is not known whether each entry is needed; empty if it is known."""


def check(seen: Run, suggestion: Suggestion, runs: Runs, looked: Callable[[], Suggestion]) -> Checked:
    """Run it again under the proposal and, if that does no harm, without each entry in turn.

    ``looked`` gives a proposal with what libraries only looked at; it is tried if the run fails without.
    """
    reason = _reason(seen, runs)
    if runs.quietly is None or reason:
        return Checked(suggestion, tuple(_missing(seen, runs.under(suggestion.manifest))), untried=reason)
    for one in (suggestion, looked()):
        if not any(_missing(seen, runs.quietly(one.manifest))):
            return _smaller(one, runs.quietly)
    missing = tuple(_missing(seen, runs.under(suggestion.manifest)))
    why = "it does not run under the proposal" if missing else "repeated without input, it ends in another way"
    return Checked(suggestion, missing, untried=why)


def _reason(seen: Run, runs: Runs) -> str:
    """Return why a run is not repeated for each entry; empty where it can be."""
    if runs.quietly is None:
        return "an installation is not repeated for each entry"
    if seen.status != Exit.OK:
        return "it fails by itself"
    recording = seen.recording
    more = sorted({one.operation for one in recording.accesses if one[:2] not in _HARMLESS})
    more += ["programs"] if recording.has_programs else []
    more += ["native code"] if recording.imports else []
    return f"it would have to be repeated, and it does more than read ({', '.join(more)})" if more else ""


def _missing(seen: Run, checked: Run) -> Iterator[str]:
    """Yield what was denied under the proposal that had not been denied before: nothing, if it is enough."""
    observed = seen.recording
    idle = {one.target for one in observed.idle}
    new = [denial for text, denial in checked.recording.denied.items() if text not in observed.denied]
    kept = [denial for denial in new if not (denial.operations == ("read",) and denial.target in idle)]
    yield from (str(denial) for denial in kept)
    if checked.status != seen.status and not kept:
        yield f"it ended with {checked.status}"


# ---- without each entry ----------------------------------------------------------------------------------------------


def _smaller(suggestion: Suggestion, run: Callable[[Manifest], Run]) -> Checked:
    """Leave out every entry without which it ends in the same way and comes to the same."""
    usual, again = run(suggestion.manifest), run(suggestion.manifest)
    is_steady = usual.result == again.result
    left_out: list[str] = []
    for tried, (text, without) in enumerate(_parts(suggestion.proposal)):
        if tried == _MOST_RUNS:
            why = f"only the first {_MOST_RUNS} were tried"
            return Checked(suggestion, (), tuple(left_out), why)
        smaller = suggestion.with_proposal(without(suggestion.proposal))
        done = run(smaller.manifest)
        if done.status == usual.status and (not is_steady or done.result == usual.result):
            suggestion = smaller
            left_out.append(text)
    return Checked(suggestion, (), tuple(left_out))


def _parts(proposal: Proposal) -> Iterator[tuple[str, Callable[[Proposal], Proposal]]]:
    """Yield each operation of each entry, and each import, with what takes it away."""
    for entry in proposal.entries:
        for operation in entry.operations:
            yield f"{operation} {entry.target}", _without_operation(entry, operation)
    for root in proposal.allowed_imports:
        yield f"import {root}", _without_import(root)


def _without_operation(entry: Entry, operation: Any) -> Callable[[Proposal], Proposal]:
    def take_away(proposal: Proposal) -> Proposal:
        kept = []
        for one in proposal.entries:
            if (one.resource_type, one.target) == (entry.resource_type, entry.target):
                left = tuple(other for other in one.operations if other != operation)
                kept += [replace(one, operations=left)] if left else []
            else:
                kept.append(one)
        return replace(proposal, entries=tuple(kept))

    return take_away


def _without_import(root: str) -> Callable[[Proposal], Proposal]:
    def take_away(proposal: Proposal) -> Proposal:
        return replace(proposal, allowed_imports=tuple(one for one in proposal.allowed_imports if one != root))

    return take_away
