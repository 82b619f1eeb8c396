"""Output of ``record``: observations compared with declarations, and the proposed manifest."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandRefused

from .asking import confirm_replacing
from .exits import Exit
from .files import READABLE, whole
from .necessity import check
from .output import Mood, Output, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.manifests.proposing import Proposal
    from democrai_sandbox.manifests.suggesting import Suggestion
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.sdk.recording import Recording

    from .necessity import Checked, Run, Runs

_MOODS = {"declared": Mood.OK, "not declared": Mood.WARNING, "not used": Mood.FAINT, "never": Mood.BAD}
_FOLDER = "created by the run; under the kernel layer, declare its parent folder instead"


def report(
    options: argparse.Namespace,
    output: Output,
    manifest: Manifest,
    runs: Runs,
    *,
    pointer: str = "",
    granted: tuple[AccessRule, ...] = (),
    bare: bool = False,
) -> int:
    """Run the code and report; ``bare`` for a file that has only declarations."""
    for file in filter(None, (options.output, options.trace)):
        confirm_replacing(file, yes=options.yes)
    seen = runs.observe()
    if options.trace:
        _write(options.trace, "".join(f"{line}\n" for line in seen.recording.lines()))
    suggested = partial(_suggested, seen.recording, manifest, options, pointer=pointer, granted=granted)
    runs = runs.telling(lambda: output.progress("running it again"))
    checked = check(seen, suggested(), runs, partial(suggested, with_looks=True), wanted=options.check)
    output.progress("")
    suggestion = checked.suggestion
    failed = seen.status != Exit.OK or bool(checked.missing)
    if output.is_json:
        content = _content(seen.recording, suggestion, bare=bare)
        output.data(f"record.{options.verb}/1", {"status": seen.status, **content, **_check_content(checked)})
    else:
        _tell(options, output, seen, checked)
    text = _text(suggestion, bare=bare)
    if options.output:
        _write(options.output, text)
        output.say(f"written: {visible(options.output)}", Mood.OK)
    elif not output.is_json:
        output.line(text.rstrip("\n"))
    return Exit.FAILED if failed else Exit.OK


def _suggested(recording: Recording, manifest: Manifest, options: argparse.Namespace, **more: Any) -> Suggestion:
    from democrai_sandbox.manifests import ManifestError  # noqa: PLC0415 - takes its time

    try:
        return recording.suggestion(manifest, most=options.generalise, **more)
    except ManifestError as error:  # the manifest that would be proposed
        problem = "; ".join(one.message for one in error.problems)
        raise CommandRefused(
            f"the observations do not fit into a manifest: {problem}", fix="combine more of them: --generalise 10"
        ) from None


# ---- for people ------------------------------------------------------------------------------------------------------


def _tell(options: argparse.Namespace, output: Output, seen: Run, checked: Checked) -> None:
    suggestion = checked.suggestion
    # A pipe gets the manifest only.
    beside = output if options.output else Output(out=sys.stderr)
    rows = list(_rows(seen.recording, suggestion))
    if rows:
        beside.table(("OPERATION", "TARGET", "MANIFEST", "CALLS", "FROM"), rows, _MOODS)
    else:
        output.say("no access beyond its own files and runtime paths was observed")
    for remark in _remarks(suggestion):
        output.say(visible(remark), Mood.WARNING)
    if seen.status != Exit.OK:
        output.say(f"it ended with status {seen.status}: later accesses were not observed", Mood.BAD)
    _tell_looks(output, seen.recording, suggestion)
    _tell_check(output, seen, checked)
    _tell_necessity(output, checked)


def _tell_looks(output: Output, recording: Recording, suggestion: Suggestion) -> None:
    """Report probes of libraries. Without an entry, the paths look absent to them."""
    left = [one.target for one in recording.looked_by_libraries if not suggestion.proposal.allows(one)]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        output.say(f"omitted, because libraries only probed it: {visible(left[0])}{more}", Mood.FAINT)


def _tell_check(output: Output, seen: Run, checked: Checked) -> None:
    for text in checked.missing or ():
        output.say(f"denied under the proposal: {visible(text)}", Mood.BAD)
    if checked.missing == () and seen.status != Exit.OK:
        output.say("it ends the same way under the proposal", Mood.WARNING)
    elif checked.missing == ():
        output.say("it runs under the proposal", Mood.OK)
    for text in checked.left_out:
        output.say(f"removed, because it also runs without: {visible(text)}", Mood.OK)


def _tell_necessity(output: Output, checked: Checked) -> None:
    """Report the number of unverified entries, the reason and the fix; the manifest names each of them."""
    proposal = checked.suggestion.proposal
    every, unverified = len(proposal.uses), len(proposal.unverified)
    if unverified:
        output.say(
            f'not verified as necessary, and listed under "review": {unverified} of {every} operations and imports, '
            f"because {checked.untried}",
            Mood.WARNING,
        )
        output.say(f"to verify: {checked.fix}", Mood.FAINT)
    elif every and all(proposal.proof(use) != "differs" for use in proposal.uses):
        output.say("each entry is necessary: without it, the run fails", Mood.OK)
    elif every:
        output.say("each entry is necessary: without it, the run fails or has another result", Mood.OK)


def _remarks(suggestion: Suggestion) -> Iterator[str]:
    """Yield the notes about a proposal."""
    notes: dict[str, list[str]] = {}
    for entry in suggestion.proposal.entries:
        for note in entry.notes:
            notes.setdefault(note, []).append(entry.target)
    for note, targets in notes.items():
        more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
        yield f"wider than its use: {targets[0]}{more}: {note}"
    yield from map(str, suggestion.findings)
    if made := _made(suggestion):
        more = f" and {len(made) - 1} more" if len(made) > 1 else ""
        yield f"{made[0]}{more}: {_FOLDER}"


def _made(suggestion: Suggestion) -> list[str]:
    """Return created files that are declared one by one; they may not exist at the next run."""
    entries = (entry for entry in suggestion.proposal.entries if "create" in entry.operations)
    return [entry.target for entry in entries if not os.path.isdir(entry.target)]  # noqa: PTH112 - a text


def _rows(recording: Recording, suggestion: Suggestion) -> Iterator[tuple[object, ...]]:
    for one in sorted(recording.accesses):
        where = "declared" if suggestion.is_declared(one) else "not declared"
        yield one.operation, one.target, where, recording.times(one), _first(recording.places(one))
    for root in suggestion.proposal.allowed_imports:
        where = "declared" if root in suggestion.declared_imports else "not declared"
        yield "import", root, where, "", _first(recording.import_places(root))
    for rule in suggestion.unused:
        yield rule.operation, rule.normalized_target, "not used", "", ""
    for denial in recording.denied.values():
        yield denial.operation, denial.target, "never", "", denial.code


def _first(places: tuple[str, ...]) -> str:
    """Return the first place, with the name of its file."""
    return os.path.basename(places[0]) if places else ""  # noqa: PTH119 - a text


# ---- for programs ----------------------------------------------------------------------------------------------------


def _content(recording: Recording, suggestion: Suggestion, *, bare: bool) -> dict[str, Any]:
    return {
        "subject": str(suggestion.manifest.subject),
        "observed": [
            {
                **one._asdict(),
                "times": recording.times(one),
                "declared": suggestion.is_declared(one),
                "places": list(recording.places(one)),
            }
            for one in sorted(recording.accesses)
        ],
        "proposed": list(_proposed(suggestion.proposal)),
        "imports": list(suggestion.proposal.allowed_imports),
        "not_needed": [one._asdict() for one in sorted(recording.idle)],
        "only_looked_at": [one._asdict() for one in sorted(recording.looked_by_libraries)],
        "not_used": [rule.to_dict() for rule in suggestion.unused],
        "denied": [str(denial) for denial in recording.denied.values()],
        "notes": [
            {"target": entry.target, "notes": list(entry.notes)} for entry in suggestion.proposal.entries if entry.notes
        ],
        "findings": [str(finding) for finding in suggestion.findings],
        "manifest": _value(suggestion, bare=bare),
    }


def _proposed(proposal: Proposal) -> Iterator[dict[str, Any]]:
    """Yield each operation of each entry, and each import, with its necessity and width."""
    notes = {use: list(entry.notes) for entry in proposal.entries for use in entry.uses}
    for use in proposal.uses:
        proof = proposal.proof(use)
        verified = {"verified": proof is not proof.NOT_VERIFIED, "without_it": proof.value}
        yield {**use._asdict(), **verified, "wider": notes.get(use, [])}


def _check_content(checked: Checked) -> dict[str, Any]:
    unverified = [str(use) for use in checked.suggestion.proposal.unverified]
    necessity = {"tried": not checked.untried, "reason": checked.untried, "fix": checked.fix}
    necessity |= {"left_out": list(checked.left_out), "unverified": unverified}
    done = None if checked.missing is None else {"missing": list(checked.missing)}
    return {"check": done, "necessity": necessity}


def _value(suggestion: Suggestion, *, bare: bool) -> dict[str, Any]:
    return {name: value for name, value in suggestion.value.items() if not (bare and name == "name")}


def _text(suggestion: Suggestion, *, bare: bool) -> str:
    return json.dumps(_value(suggestion, bare=bare), indent=2) + "\n"


def _write(file: str, text: str) -> None:
    with whole(file, fix="name another file", mode=READABLE) as stream:
        stream.write(text.encode())
