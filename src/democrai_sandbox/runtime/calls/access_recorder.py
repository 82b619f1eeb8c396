"""Recorder of the accesses of a subject, with the line of its code that led to each."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import AccessQuestion, Decider, _core
from democrai_sandbox.guard.callback_log import logged
from democrai_sandbox.guard.configuration import SENSITIVE_ROOTS
from democrai_sandbox.guard.runtime_paths import CODE, code_entries
from democrai_sandbox.guard.stdlib_patches import facade_files
from democrai_sandbox.policy import AccessDecision, Operation, ResourceType, prefixes_of
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.policy.paths import folder_of_temporary
from democrai_sandbox.runtime import sdk_services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType


OWN, LIBRARY, IMPORTING, DECLARED = "own", "library", "import", "declared"
_CHANGES = frozenset({Operation.CREATE, Operation.MODIFY, Operation.DELETE})
_MACHINERY = "<frozen importlib"
_IMPORT_SERVICE = "noticed.import"


class RecordedAccess(NamedTuple):
    """A recorded access."""

    resource_type: str
    operation: str
    target: str
    by: str = OWN
    """Origin of the access: the subject's ``own`` code, a ``library``, the ``import`` of a module, or ``declared`` for
    an entry of a tool, agent or pipeline, which the manifest of the subject has to cover.
    """
    place: str = ""
    """File and line of the subject's own code that led to the access, or the asset that declares it."""
    exists: bool = True
    """Whether the file or folder existed, and was readable if the access was a read."""
    probe: bool = False
    """Whether the access was only a probe, such as ``stat``."""


def needed(noticed: Iterable[RecordedAccess]) -> Iterator[RecordedAccess]:
    """Yield the accesses that have to be declared.

    A library that looks for an undeclared file sees that it does not exist, and continues. The same applies to an
    import that searches a folder; of those, only the ones are needed from which a file was read. Ancestor folders of
    declared paths can be probed, which is enough for a library that creates a folder and its parents.

    Whether a library fails without a path that it only probed is not known here: a trial run shows it.
    """
    every = list(_without_looks(list(noticed)))
    made = {one.target for one in every if one.operation == Operation.CREATE}
    found = [
        one
        for one in every
        if one.exists or one.by in (OWN, DECLARED) or one.operation != Operation.READ or one.target in made
    ]
    changed = {one.target for one in found if one.operation == Operation.MODIFY}
    # Opening a file for writing asks for both operations. A file that existed was not created.
    found = [one for one in found if not (one.operation == Operation.CREATE and one.exists and one.target in changed)]
    read = {one.target for one in found if _is_looked_at(one) and os.path.isfile(one.target)}  # noqa: PTH113 - a text
    leading = {place for file in read for place in prefixes_of(file)}
    # Ancestors of created folders existed before.
    folders = [place for place in made if os.path.isdir(place)]  # noqa: PTH112 - a text
    above = {place for folder in folders for place in prefixes_of(folder)} - made
    found = [
        one for one in found if not (one.by == LIBRARY and one.operation == Operation.READ and one.target in above)
    ]
    yield from (one for one in found if not _is_looked_at(one) or one.target in leading)


def _without_looks(noticed: list[RecordedAccess]) -> Iterator[RecordedAccess]:
    """Omit probes by libraries, and ancestors of paths that are declared anyway."""
    files = [one for one in noticed if one.resource_type == ResourceType.FILESYSTEM]
    looks = {one for one in files if one.probe and one.by != IMPORTING}
    kept = {one.target for one in files if one not in looks or one.by == OWN}
    kept = {(target.startswith("/") and folder_of_temporary(target)) or target for target in kept}
    above = {place for target in kept for place in prefixes_of(target) if place != target}
    for one in noticed:
        if one not in looks or (one.by == OWN and one.target not in above):
            yield one


def _is_looked_at(one: RecordedAccess) -> bool:
    return one.by == IMPORTING and one.resource_type == ResourceType.FILESYSTEM


class AccessOrigin:
    """Finds the code that asks. Create it before the first guard."""

    def __init__(self) -> None:
        # The guard calls a decider through a function that logs its failures.
        self._facade = facade_files() | {logged.__code__.co_filename}
        self._roots = tuple(f"{os.fsdecode(path)}/" for path, mask in code_entries() if mask & CODE)
        self.above = {place for root in self._roots for place in prefixes_of(root.rstrip("/"))}
        """Folders around libraries, which probe them to find themselves, and work without an answer."""

    def of(self, frame: FrameType | None) -> tuple[str, str]:
        """Return the origin of an access, and the line of the subject's own code that led to it."""
        by = ""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_MACHINERY):
                by = by or IMPORTING
            elif file.startswith(("<frozen ", *self._roots)):
                by = by or ("" if file in self._facade else LIBRARY)
            else:
                return by or OWN, f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return by or LIBRARY, ""


class RecordingDecider:
    """Reports each access question, then lets the decider answer it.

    While recording, nothing is declared, so the guard asks the decider about every access except imports; for them, the
    import functions are wrapped and every root is allowed.
    """

    def __init__(self, decider: Decider | None, tell: Callable[[list[Any]], None], origins: AccessOrigin) -> None:
        """Allow everything without a decider; paths that the guard protects are never asked about."""
        self._decider = decider
        self._tell = tell
        self._origins = origins
        # Saved before the subject's code is loaded: it could replace the functions in these modules, and questions are
        # answered outside the guard.
        self._look, self._frame = os.lstat, sys._getframe  # noqa: SLF001 - the asking code is on the stack
        self._access, self._readable, self._writable, self._is_probe = os.access, os.R_OK, os.W_OK, _core.is_probe
        self._own = f"/proc/{os.getpid()}/"

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer one question."""
        is_file = question.resource_type == ResourceType.FILESYSTEM
        target = question.target
        if is_file and target.startswith("/proc/") and target.endswith("/environ") and not target.startswith(self._own):
            return False  # the environment of another process, such as the host
        probe = is_file and self._is_probe()
        by, place = self._origins.of(self._frame(1))
        reads = not probe and question.operation == Operation.READ
        exists = not is_file or self._is_there(target, reads=reads)
        if not (is_file and by == LIBRARY and self._is_vain(question.operation, target)):
            self._tell([question.resource_type, question.operation, target, by, place, exists, probe])
        return True if self._decider is None else self._decider.decide(question)

    def _is_vain(self, operation: str, target: str) -> bool:
        """Tell whether a library is answered the same without an entry.

        It does without an answer about the folders around itself. The kernel refuses to change what the process may not
        write, with the error that the guard has.
        """
        if target in self._origins.above or operation not in _CHANGES:
            return target in self._origins.above
        changed = target if operation == Operation.MODIFY else target.rpartition("/")[0] or "/"
        return self._is_there(changed, reads=False) and not self._access(changed, self._writable)

    def _is_there(self, target: str, *, reads: bool) -> bool:
        """Return whether a file exists and, for reads, is readable: an unreadable one fails in any case."""
        try:
            self._look(target)
        except (OSError, ValueError):
            return False
        return not reads or self._access(target, self._readable)


def recorded(decider: Decider | None, send: Callable[[list[Any]], None], sensitive: Iterable[str] = ()) -> Decider:
    """Return a decider that reports each question, and report imports too. Call it before the first guard."""
    origins = AccessOrigin()
    _core.tell_probes()
    sdk_services.install({_IMPORT_SERVICE: lambda _view, *facts: send(["noticed", [IMPORT, "use", *facts]])})
    _watch_imports(SENSITIVE_ROOTS | frozenset(sensitive), origins)
    return RecordingDecider(decider, lambda facts: send(["noticed", facts]), origins)


def _watch_imports(roots: frozenset[str], origins: AccessOrigin) -> None:
    """Report imports of sensitive roots by the subject's own code.

    The imports then come from a frame of ours, which counts as a library, so the guard allows them.
    """
    through, by_name = builtins.__import__, importlib.import_module

    def notice(name: object, frame: FrameType) -> None:
        root = name.partition(".")[0] if type(name) is str else ""
        if root in roots:
            by, place = origins.of(frame)
            if by == OWN:
                sdk_services.call(_IMPORT_SERVICE, root, OWN, place)

    def noticing(name: str, *rest: Any, **named: Any) -> Any:
        notice(name, sys._getframe(1))  # noqa: SLF001 - likewise
        return through(name, *rest, **named)

    def import_module(name: str, package: str | None = None) -> Any:
        notice(name, sys._getframe(1))  # noqa: SLF001 - likewise
        return by_name(name, package)

    builtins.__import__ = noticing
    importlib.import_module = import_module
