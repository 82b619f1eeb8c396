"""Result of a run in observe mode: all accesses, and the manifest proposal derived from them."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from democrai_sandbox.manifests.proposal import ObservedUse, Suggestion, suggest
from democrai_sandbox.policy import InvalidInputError, Operation, ResourceType
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.runtime.calls.access_recorder import DECLARED, RecordedAccess, needed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule

__all__ = ["Installation", "Recording"]

_MOST = 100_000
_MOST_DENIED = 10_000
_MOST_LETTERS = 64 * 1024 * 1024
_TYPES = (str, str, str, str, str, bool, bool)
_USUAL = ("", "", "", "own", "", True, False)


class Recording:
    """All accesses of one or more runs, in the order of their first occurrence."""

    def __init__(self) -> None:
        self.seen: Counter[RecordedAccess] = Counter()
        """Number of questions about each access: at most one per call of an extension, even in a loop."""
        self.denied: dict[str, SandboxDenied] = {}
        """Denials in spite of observe mode, by text: the host's own limits."""
        self.refused: set[ObservedUse] = set()
        """Accesses that were asked about and refused."""
        self.granted: set[ObservedUse] = set()
        """Accesses that were allowed at least once: a tool may be refused an access that its module has."""
        self.has_programs = False
        """Whether programs were started, whose accesses are not recorded."""
        self.is_full = False
        """Whether a limit was exceeded, so that a proposal is not possible."""
        self._room = _MOST_LETTERS
        self._times: Counter[tuple[ObservedUse, bool]] = Counter()
        self._places: dict[ObservedUse, dict[str, None]] = {}

    def notice(self, facts: Iterable[Any]) -> None:
        """Record a report of a process. The process belongs to the subject, and may report anything."""
        told = tuple(facts)
        given = (*told, *_USUAL[len(told) :])
        if len(given) != len(_TYPES) or any(type(one) is not kind for one, kind in zip(given, _TYPES, strict=True)):
            raise ValueError("malformed observation")
        noticed = RecordedAccess(*given)
        if noticed in self.seen or (len(self.seen) < _MOST and self._has_room(given[:-2])):
            self._add(noticed, 1)
        else:
            self.is_full = True

    def _add(self, noticed: RecordedAccess, times: int) -> None:
        about = ObservedUse(*noticed[:3])
        self.seen[noticed] += times
        self._times[about, noticed.probe] += times
        places = self._places.setdefault(about, {})
        if noticed.place:
            places[noticed.place] = None

    def _has_room(self, texts: Iterable[str]) -> bool:
        self._room -= sum(map(len, texts))
        return self._room >= 0

    def deny(self, denial: SandboxDenied) -> None:
        """Record a denial, up to a limit."""
        text = str(denial)
        if text not in self.denied and len(self.denied) < _MOST_DENIED and self._has_room([text]):
            self.denied[text] = denial

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def accesses(self) -> tuple[ObservedUse, ...]:
        """Accesses to declare, without mere probes by libraries."""
        refused = self.refused - self.granted
        kept = (one for one in needed(self.seen) if one.resource_type != IMPORT)
        return tuple(
            dict.fromkeys(
                ObservedUse(*one[:3]) for one in kept if one.by == DECLARED or ObservedUse(*one[:3]) not in refused
            )
        )

    @property
    def looked(self) -> frozenset[ObservedUse]:
        """Files and folders that were only probed, as by ``stat``: never opened, listed or changed."""
        used = {ObservedUse(*one[:3]) for one in self.seen if not one.probe}
        return frozenset(ObservedUse(*one[:3]) for one in self.seen if one.probe) - used

    @property
    def looked_by_libraries(self) -> tuple[ObservedUse, ...]:
        """Existing paths that libraries only probed: whether they are needed is not known."""
        there = {ObservedUse(*one[:3]) for one in self.seen if one.probe and one.exists}
        return tuple(one for one in self.idle if one in there)

    @property
    def idle(self) -> tuple[ObservedUse, ...]:
        """Accesses that need no declaration: libraries continue when such a file looks absent."""
        kept = self.refused.union(self.accesses)
        all_seen = (ObservedUse(*one[:3]) for one in self.seen if one.resource_type != IMPORT)
        return tuple(dict.fromkeys(one for one in all_seen if one not in kept))

    @property
    def created(self) -> frozenset[str]:
        """Files and folders that it was about to make, because they were not there."""
        made = (one for one in self.seen if one.operation == Operation.CREATE and not one.exists)
        return frozenset(one.target for one in made if one.resource_type == ResourceType.FILESYSTEM)

    @property
    def imports(self) -> tuple[str, ...]:
        """Sensitive roots that the subject's own code imported."""
        return tuple(dict.fromkeys(one.target for one in self.seen if one.resource_type == IMPORT))

    def places(self, observed: ObservedUse) -> tuple[str, ...]:
        """Return the lines of the subject's own code that led to an access."""
        return tuple(self._places.get(observed, ()))

    def import_places(self, root: str) -> tuple[str, ...]:
        """Return the lines of the subject's own code that import a root."""
        return self.places(ObservedUse.of_import(root))

    def times(self, observed: ObservedUse) -> int:
        """Return the larger of the numbers of probes and uses of an access."""
        return max(self._times[observed, probe] for probe in (False, True))

    def suggestion(
        self,
        manifest: Manifest,
        *,
        pointer: str = "",
        most: int | None = None,
        granted: tuple[AccessRule, ...] = (),
        with_looks: bool = False,
    ) -> Suggestion:
        """Return the smallest manifest with the same behavior, without rules that are ``granted`` anyway.

        Probes by libraries are omitted unless ``with_looks``: the paths then look absent to them.
        """
        if self.is_full:
            kept = f"{_MOST:,} different accesses with {_MOST_LETTERS:,} characters"
            raise InvalidInputError.of(f"too many accesses to record (limit: {kept}): record less at a time")
        wanted = (*self.accesses, *(self.looked_by_libraries if with_looks else ()))
        files = {one.target for one in wanted if one.resource_type == ResourceType.FILESYSTEM}
        folders = frozenset(filter(os.path.isdir, files))
        return suggest(
            manifest,
            wanted,
            self.imports,
            pointer=pointer,
            most=most,
            granted=granted,
            looked=self.looked,
            folders=folders,
        )

    # ---- traces ------------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield all observations as JSON, one per line."""
        for one, times in self.seen.items():
            yield json.dumps({**one._asdict(), "times": times}, ensure_ascii=True)

    def read(self, lines: Iterable[str]) -> None:
        """Add observations that ``lines`` has written."""
        read = 0
        try:
            for line in lines:
                self._read(json.loads(line))
                read += 1
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidInputError.of(
                "expected an observation written by record --trace", pointer=f"/{read + 1}"
            ) from None

    def _read(self, value: Any) -> None:
        times = value.pop("times")
        value.setdefault("probe", False)  # earlier versions did not write it
        if type(times) is not int or times < 1 or value.keys() != set(RecordedAccess._fields):
            raise ValueError("malformed observation")
        noticed = RecordedAccess(**value)
        self.notice(noticed)
        self._add(noticed, times - 1)


class Installation:
    """Decides about a recorded installation: its HTTP requests are allowed, all else follows the manifest."""

    def __init__(self, recording: Recording) -> None:
        """Record the HTTP requests."""
        self._recording = recording

    def decide(self, question: AccessQuestion) -> bool:
        """Answer one question."""
        is_request = question.resource_type == ResourceType.NETWORK
        if is_request:
            self._recording.notice((question.resource_type, question.operation, question.target))
        return is_request
