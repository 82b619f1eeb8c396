"""Shadow runs: subjects of this process that have a candidate manifest, and the differences found."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.checks import ANSWERS
from democrai_sandbox.access.targets import TargetParser
from democrai_sandbox.policy import InvalidInputError, SandboxError, Subject
from democrai_sandbox.runtime.access_environment import question_of
from democrai_sandbox.runtime.store.registration_rows import MOST_FINDINGS, ShadowDifference, ShadowEffect

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from democrai_sandbox.access.node import AccessNode
    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.runtime.store import RuntimeStore, ShadowRun

    Apply = Callable[[Subject, str | None], str]
    Wish = tuple[str, str, str]
    """Resource type, operation and target."""

_log = logging.getLogger(__name__)
_LONGEST_TARGET = 2000
_LONGEST_CHAIN = 24
_LONGEST_NAME = 300
"""Limits the stored texts, which come from workers."""
_MOST_SEEN = 2 * MOST_FINDINGS
_IMPORT = "import"
_PATIENCE = 1.0
_ASSETS = ("tool", "agent", "pipeline", "skill", "task")


class _ShadowSubject(NamedTuple):
    """An observed difference, with the subject and user of the access, to look up approvals."""

    run_id: str
    allowed: bool
    resource_type: str
    operation: str
    target: str
    subject: tuple[str, str]
    user_id: str
    session_key: str


@dataclass(slots=True)
class _SeenDifferences:
    count: int
    first: datetime
    last: datetime
    chain: tuple[str, ...]


class ShadowRuns:
    """Shadow runs of this process. Guards call ``saw`` from any thread; the host calls the rest.

    The guard decides by the current manifest and reports here where the candidate would decide differently. Approvals
    apply to both, so only a changed result is a finding. Findings go to the store in bounded batches, because a subject
    controls how many accesses it makes.
    """

    def __init__(self, store: RuntimeStore, node: AccessNode, apply: Apply) -> None:
        """Take ``apply``, which compares a subject with the text of a candidate, or ends the comparison.

        It returns the rules of the candidate as JSON, for the host's own checks.
        """
        self._store = store
        self._node = node
        self._apply = apply
        self._reader = TargetParser()
        self._runs: dict[str, ShadowRun] = {}
        """By the label of the subject."""
        self._candidates: dict[str, str] = {}
        """Rules of the candidates as JSON, by the label of the subject."""
        self._seen: dict[_ShadowSubject, _SeenDifferences] = {}
        self._refreshing = Lock()
        self._writing = Lock()
        self._counting = Lock()
        self._behind = False

    def saw(self, question: AccessQuestion, allowed: bool) -> None:  # noqa: FBT001 - as the guard calls it
        """Record a check in this process that the candidate decides differently."""
        for label in reversed(question.subject_chain):
            run = self._run_of(label)
            if run is not None:
                self._count(run, question, allowed=allowed, times=1)
                return

    def saw_in(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Record checks in a worker, which reports for its own subject only."""
        run = self._run_of(label)
        if run is not None:
            self._count(run, question, allowed=allowed, times=times)

    def compare(self, view: RawView, what: Wish, allowed: Callable[[RawView], bool]) -> bool:
        """Return the result of a check that the host makes itself; compare it with the candidate's.

        ``allowed`` decides for a view. The result for ``view`` itself counts.
        """
        present = allowed(view)
        try:
            other = self._beside(view)
            if other is not None and allowed(other) is not present:
                self.saw(question_of(view.actor, view.labels, what, view.identity, register=False), present)
        except Exception:  # noqa: BLE001 - a failing candidate must not affect the check
            _log.exception("the check of a candidate failed")
        return present

    def _beside(self, view: RawView) -> RawView | None:
        """Return a view with the rules of candidates instead of the current ones; None if no candidate applies."""
        if not self._candidates:
            return None
        links = tuple(
            (kind, name, self._candidates.get(f"{kind}:{name}", declared), mode)
            for kind, name, declared, mode in view.links
        )
        return None if links == view.links else view._replace(links=links)

    def _run_of(self, label: str) -> ShadowRun | None:
        kind, _, name = label.partition(":")
        return self._runs.get(f"module:{name.rpartition('.')[0]}" if kind in _ASSETS and "." in name else label)

    def _count(self, run: ShadowRun, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        about = _ShadowSubject(
            run.id,
            allowed,
            question.resource_type[:_LONGEST_NAME],
            question.operation[:_LONGEST_NAME],
            question.target[:_LONGEST_TARGET],
            (question.subject_kind[:_LONGEST_NAME], question.subject[:_LONGEST_NAME]),
            str(question.user_id or ""),
            str(question.session_key or ""),
        )
        # With a timeout: a finalizer of a subject may run on the very thread that holds the lock.
        if not self._counting.acquire(timeout=_PATIENCE):
            return
        try:
            chain = tuple([label[:_LONGEST_NAME] for label in question.subject_chain[-_LONGEST_CHAIN:]])
            self._note(about, chain, times)
        finally:
            self._counting.release()

    def _note(self, about: _ShadowSubject, chain: tuple[str, ...], times: int) -> None:
        now = self._node.clock()
        seen = self._seen.setdefault(self._room_for(about), _SeenDifferences(0, now, now, chain))
        seen.count += times
        seen.last = now

    def _room_for(self, about: _ShadowSubject) -> _ShadowSubject:
        """Return the key to count under; beyond the maximum number of keys, a generic one, as in the store."""
        if about in self._seen or len(self._seen) < _MOST_SEEN:
            return about
        return _ShadowSubject(about.run_id, about.allowed, "", "", "", ("", ""), "", "")

    def changed(self) -> None:
        """Read the running trials again with the next chore."""
        self._behind = True

    def refresh(self) -> None:
        """Read the running trials. If the store is down, retry with the next chore."""
        with self._refreshing:
            self._behind = False
            try:
                running = {str(run.subject): run for run in self._store.shadows(running=True)}
            except SandboxError as error:
                self._behind = True
                _log.warning("the running shadow runs could not be read: %s", error)
                return
            self._follow(running)

    def _follow(self, running: dict[str, ShadowRun]) -> None:
        before, self._runs = self._runs, running
        for label in before.keys() | running.keys():
            old, new = before.get(label), running.get(label)
            run = new or old
            if run is not None and (old is None or new is None or old.id != new.id):
                self._hold(run.subject, new.candidate if new else None)

    def _hold(self, subject: Subject, candidate: str | None) -> None:
        self._candidates.pop(str(subject), None)
        try:
            declared = self._apply(subject, candidate)
            if candidate is not None and declared:
                self._candidates[str(subject)] = declared
        except SandboxError as error:
            _log.warning("%s cannot be compared with its candidate: %s", subject, error.diagnostics())
        except Exception:  # noqa: BLE001 - one failing candidate must not affect the others
            _log.exception("%s cannot be compared with its candidate", subject)

    def chore(self) -> None:
        """Store new findings; called about once per poll."""
        if self._behind:
            self.refresh()
        self.flush()

    def flush(self) -> None:
        """Store the findings since the last call. On failure, keep them for the next call."""
        with self._writing:
            fresh: dict[_ShadowSubject, _SeenDifferences] = {}
            with self._counting:
                seen, self._seen = self._seen, fresh
            found: dict[str, dict[str, ShadowDifference]] = {}
            for about, times in seen.items():
                if not self._is_approved(about):
                    _add(found.setdefault(about.run_id, {}), _finding(about, times))
            written: set[str] = set()
            try:
                for run_id, findings in found.items():
                    self._store.add_findings(run_id, findings.values())
                    written.add(run_id)
            except SandboxError as error:
                _log.warning("the findings of shadow runs could not be stored: %s", error)
                self._put_back({about: one for about, one in seen.items() if about.run_id not in written})

    def _put_back(self, seen: dict[_ShadowSubject, _SeenDifferences]) -> None:
        with self._counting:
            for about, times in seen.items():
                known = self._seen.setdefault(self._room_for(about), times)
                if known is not times:
                    known.count += times.count
                    known.first = min(known.first, times.first)
                    known.last = max(known.last, times.last)

    def _is_approved(self, about: _ShadowSubject) -> bool:
        """Return whether an approval allows the access under both manifests, so that nothing would change."""
        if about.resource_type == _IMPORT or not about.target:
            return False
        try:
            wanted = self._reader.read(about.resource_type, about.operation, about.target)
            found = self._node.snapshot.find(about.subject, wanted, about.session_key, time_ns() // 1000)
        except InvalidInputError:
            return False  # an invalid target cannot have been approved
        return found is not None and ANSWERS[found.code].allowed


def _finding(about: _ShadowSubject, seen: _SeenDifferences) -> ShadowDifference:
    effect = ShadowEffect.DENIED if about.allowed else ShadowEffect.ALLOWED
    what = (effect, about.resource_type, about.operation, about.target)
    return ShadowDifference(*what, seen.count, seen.first, seen.last, about.user_id, seen.chain)


def _add(found: dict[str, ShadowDifference], finding: ShadowDifference) -> None:
    """Merge findings that differ only in the user."""
    known = found.get(finding.digest)
    if known is not None:
        first, last = min(known.first_seen, finding.first_seen), max(known.last_seen, finding.last_seen)
        latest = finding if finding.last_seen >= known.last_seen else known
        finding = replace(latest, count=known.count + finding.count, first_seen=first, last_seen=last)
    found[finding.digest] = finding
