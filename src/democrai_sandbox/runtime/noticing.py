"""What a subject reaches for while it is recorded: told by the guard in its process, with the line that led there.

Everything is asked of the decider there, because nothing is declared. Imports are not asked about, the guard knows by
itself: there, the functions that import are wrapped, and every root is allowed.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import _core
from democrai_sandbox.guard.callback_log import logged
from democrai_sandbox.guard.probes import facade_files
from democrai_sandbox.guard.runtime_paths import CODE, code_entries
from democrai_sandbox.guard.settings import SENSITIVE_ROOTS
from democrai_sandbox.policy import Operation, ResourceType, prefixes_of
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.policy.paths import folder_of_temporary

from . import doors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from democrai_sandbox.guard import AccessQuestion, Decider
    from democrai_sandbox.policy import AccessDecision

__all__ = ["DECLARED", "Noticed", "NoticingDecider", "Whence", "needed", "recorded"]

OWN, LIBRARY, IMPORTING, DECLARED = "own", "library", "import", "declared"
_CHANGES = frozenset({Operation.CREATE, Operation.MODIFY, Operation.DELETE})
_MACHINERY = "<frozen importlib"
_DOOR = "noticed.import"


class Noticed(NamedTuple):
    """Something that was reached for."""

    resource_type: str
    operation: str
    target: str
    by: str = OWN
    """Whose code asked: the subject's ``own``, a ``library``, or the ``import`` of a module; ``declared`` for what
    a tool, an agent or a pipeline of the subject declares, which its manifest has to cover."""
    place: str = ""
    """File and line of the subject's own code that led there, or the part of it that declares this."""
    exists: bool = True
    """Whether there was such a file or folder, and the process could read it if that was wanted."""
    probe: bool = False
    """Whether it was only looked at, by ``stat`` and the like."""


def needed(noticed: Iterable[Noticed]) -> Iterator[Noticed]:
    """Yield what has to be declared. A library that looks for a file is told that there is none, and goes on.

    So does an import that looks into a folder; of those, the ones are needed from which something was read. The folders
    above what is declared can be looked at, which is all that a library needs that makes a folder and those around it.

    Whether a library would have failed without what it only looked at is not known here: it can be tried.
    """
    every = list(_without_looks(list(noticed)))
    made = {one.target for one in every if one.operation == Operation.CREATE}
    found = [
        one
        for one in every
        if one.exists or one.by in (OWN, DECLARED) or one.operation != Operation.READ or one.target in made
    ]
    changed = {one.target for one in found if one.operation == Operation.MODIFY}
    # Whoever opens a file to write is asked for both. One that was there is not made by it.
    found = [one for one in found if not (one.operation == Operation.CREATE and one.exists and one.target in changed)]
    read = {one.target for one in found if _is_looked_at(one) and os.path.isfile(one.target)}  # noqa: PTH113 - a text
    leading = {place for file in read for place in prefixes_of(file)}
    above = _above_folders(made)
    found = [
        one for one in found if not (one.by == LIBRARY and one.operation == Operation.READ and one.target in above)
    ]
    yield from (one for one in found if not _is_looked_at(one) or one.target in leading)


def _without_looks(noticed: list[Noticed]) -> Iterator[Noticed]:
    """Leave out what libraries only looked at, and what lies above a file or folder that is declared anyway."""
    files = [one for one in noticed if one.resource_type == ResourceType.FILESYSTEM]
    looks = {one for one in files if one.probe and one.by != IMPORTING}
    kept = {one.target for one in files if one not in looks or one.by == OWN}
    kept = {(target.startswith("/") and folder_of_temporary(target)) or target for target in kept}
    above = {place for target in kept for place in prefixes_of(target) if place != target}
    for one in noticed:
        if one not in looks or (one.by == OWN and one.target not in above):
            yield one


def _above_folders(made: set[str]) -> set[str]:
    """Return what lies above the folders that were made, and was there before."""
    folders = [place for place in made if os.path.isdir(place)]  # noqa: PTH112 - a text
    return {place for folder in folders for place in prefixes_of(folder)} - made


def _is_looked_at(one: Noticed) -> bool:
    return one.by == IMPORTING and one.resource_type == ResourceType.FILESYSTEM


class Whence:
    """Finds out who asks. Made before the first guard."""

    def __init__(self) -> None:
        """Know which code is a library's."""
        # The guard calls a decider by way of a function that logs its failures.
        self._facade = facade_files() | {logged.__code__.co_filename}
        self._roots = tuple(f"{os.fsdecode(path)}/" for path, mask in code_entries() if mask & CODE)
        self._above = {place for root in self._roots for place in prefixes_of(root.rstrip("/"))}

    def is_above_code(self, target: str) -> bool:
        """Tell whether libraries lie below a folder. They look at it to find themselves, and do without an answer."""
        return target in self._above

    def of(self, frame: FrameType | None) -> tuple[str, str]:
        """Return whose code asked, and the place of the subject's own code on the way there."""
        by = ""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_MACHINERY):
                by = by or IMPORTING
            elif self._is_library(file):
                by = by or ("" if file in self._facade else LIBRARY)
            else:
                return by or OWN, f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return by or LIBRARY, ""

    def _is_library(self, file: str) -> bool:
        return file.startswith(("<frozen ", *self._roots))


class NoticingDecider:
    """Tells what is asked, then has it decided."""

    def __init__(self, decider: Decider | None, tell: Callable[[list[Any]], None], whence: Whence) -> None:
        """Without a decider everything is allowed; what the guard keeps shut never comes here."""
        self._decider = decider
        self._tell = tell
        self._whence = whence
        # Native, and taken before the subject's code is there: it could put others into these modules, and questions
        # are answered outside of the guard.
        self._look, self._frame = os.lstat, sys._getframe  # noqa: SLF001 - whoever asks is on the stack
        self._access, self._readable, self._writable, self._is_probe = os.access, os.R_OK, os.W_OK, _core.is_probe
        self._own = f"/proc/{os.getpid()}/"

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer one question."""
        is_file = question.resource_type == ResourceType.FILESYSTEM
        if is_file and self._is_of_others(question.target):
            return False
        probe = is_file and self._is_probe()
        by, place = self._whence.of(self._frame(1))
        exists = not is_file or self._is_there(
            question.target, reads=not probe and question.operation == Operation.READ
        )
        is_vain = is_file and by == LIBRARY and self._is_vain(question.operation, question.target)
        if not is_vain:
            self._tell([question.resource_type, question.operation, question.target, by, place, exists, probe])
        return True if self._decider is None else self._decider.decide(question)

    def _is_of_others(self, target: str) -> bool:
        """Return whether it is the variables of another process: those of the host, or of whoever records."""
        return target.startswith("/proc/") and target.endswith("/environ") and not target.startswith(self._own)

    def _is_vain(self, operation: str, target: str) -> bool:
        """Tell whether a library is answered the same without an entry.

        It does without an answer about the folders around itself. The kernel refuses to change what the process may not
        write, with the error that the guard has.
        """
        if self._whence.is_above_code(target) or operation not in _CHANGES:
            return self._whence.is_above_code(target)
        changed = target if operation == Operation.MODIFY else target.rpartition("/")[0] or "/"
        return self._is_there(changed, reads=False) and not self._access(changed, self._writable)

    def _is_there(self, target: str, *, reads: bool) -> bool:
        """Tell whether there is such a file. One that the kernel keeps from the process fails in any case."""
        try:
            self._look(target)
        except (OSError, ValueError):
            return False
        return not reads or self._access(target, self._readable)


def recorded(decider: Decider | None, send: Callable[[list[Any]], None], sensitive: Iterable[str] = ()) -> Decider:
    """Return a decider that tells what is asked, and have imports told too. Before the first guard."""
    whence = Whence()
    _core.tell_probes()
    doors.install({_DOOR: lambda _view, *facts: send(["noticed", [IMPORT, "use", *facts]])})
    _watch_imports(SENSITIVE_ROOTS | frozenset(sensitive), whence)
    return NoticingDecider(decider, lambda facts: send(["noticed", facts]), whence)


def _watch_imports(roots: frozenset[str], whence: Whence) -> None:
    """Have the imports of sensitive roots told that the subject's own code makes.

    They then come from a frame of ours, and so from a library: the guard lets them pass.
    """
    through, by_name = builtins.__import__, importlib.import_module

    def notice(name: object, frame: FrameType) -> None:
        root = name.partition(".")[0] if type(name) is str else ""
        if root in roots:
            by, place = whence.of(frame)
            if by == OWN:
                doors.call(_DOOR, root, OWN, place)

    def noticing(name: str, *rest: Any, **named: Any) -> Any:
        notice(name, sys._getframe(1))  # noqa: SLF001 - likewise
        return through(name, *rest, **named)

    def import_module(name: str, package: str | None = None) -> Any:
        notice(name, sys._getframe(1))  # noqa: SLF001 - likewise
        return by_name(name, package)

    builtins.__import__ = noticing
    importlib.import_module = import_module
