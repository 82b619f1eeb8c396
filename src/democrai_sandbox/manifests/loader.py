"""Loader of manifests from files, texts or plain data. Any problem rejects the whole manifest."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, overload

from democrai_sandbox.policy import AccessRule, InvalidInputError, Problem, nearest
from democrai_sandbox.policy.rules import written_target
from democrai_sandbox.policy.text import exact_str, shown

from . import document as documents
from .document import LARGEST_MANIFEST, ManifestError, PlacedProblem, read_document
from .models import Manifest, ManifestKind, Source
from .schema import MANIFEST_SHAPES, SCHEMA_KEY
from .shapes import ParseState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AnyManifest = TypeVar("AnyManifest", bound=Manifest)
Folder: TypeAlias = "str | os.PathLike[str] | None"

FILE_NAME = "manifest.json"
"""File name of the manifest of a module, engine or extractor."""


@overload
def load_manifest(path: str | os.PathLike[str], kind: type[AnyManifest], *, name: str = "") -> AnyManifest: ...
@overload
def load_manifest(path: str | os.PathLike[str], kind: ManifestKind | str, *, name: str = "") -> Manifest: ...
def load_manifest(
    path: str | os.PathLike[str], kind: ManifestKind | str | type[Manifest], *, name: str = ""
) -> Manifest:
    """Load a manifest file; relative filesystem targets are relative to the file's folder.

    ``name`` applies to a module, engine or extractor whose manifest has none; it defaults to the name of the folder.
    ``kind`` is the name of a kind, or its model (``ModuleManifest``). Raises ``ManifestError`` for any problem of the
    file or its content.
    """
    wanted = _checked_kind(kind)
    file = Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would lead to another folder
    try:
        return _parsed(_contents(file), wanted, str(file.parent), name, str(file))
    except ManifestError as error:
        raise ManifestError(error.problems, str(file)) from None


@overload
def parse_manifest(
    data: str | bytes, kind: type[AnyManifest], *, folder: Folder = None, name: str = ""
) -> AnyManifest: ...
@overload
def parse_manifest(
    data: str | bytes, kind: ManifestKind | str, *, folder: Folder = None, name: str = ""
) -> Manifest: ...
def parse_manifest(
    data: str | bytes, kind: ManifestKind | str | type[Manifest], *, folder: Folder = None, name: str = ""
) -> Manifest:
    """Parse a manifest from a JSON text, like ``load_manifest``; without a ``folder``, paths must be absolute."""
    wanted = _checked_kind(kind)
    base = _checked_folder(folder)
    if not isinstance(data, str | bytes | bytearray):
        raise ManifestError([Problem("", f"expected a JSON text, got {shown(data)}")])
    return _parsed(data if isinstance(data, str) else bytes(data), wanted, base, name)


@overload
def make_manifest(value: object, kind: type[AnyManifest], *, folder: Folder = None) -> AnyManifest: ...
@overload
def make_manifest(value: object, kind: ManifestKind | str, *, folder: Folder = None) -> Manifest: ...
def make_manifest(value: object, kind: ManifestKind | str | type[Manifest], *, folder: Folder = None) -> Manifest:
    """Build a manifest from plain data, such as arguments of a decorator or a row of a registry.

    ``access`` may contain ``AccessRule`` objects, and tuples count as lists. The data is copied first, so that an
    object that returns different values each time gains nothing.
    """
    wanted = _checked_kind(kind)
    base = _checked_folder(folder)
    copied = _PlainCopier().copy(value)
    reading = ParseState(base, _last(base))
    manifest: Manifest = MANIFEST_SHAPES[wanted].read(copied, "", reading)
    if reading.problems:
        raise ManifestError(reading.problems)
    return replace(manifest, source=Source("", base, copied))


def manifest_to_dict(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as JSON data that parses to an equal one: paths are absolute, defaults omitted."""
    return MANIFEST_SHAPES[manifest.kind].plain(manifest)


def _parsed(data: bytes | str, kind: ManifestKind, folder: str | None, name: str, path: str = "") -> Manifest:
    document = read_document(data)
    reading = ParseState(folder, name or _last(folder))
    manifest: Manifest = MANIFEST_SHAPES[kind].read(document.value, "", reading)
    known = {problem.pointer for problem in document.problems if problem.pointer}
    further = [problem for problem in reading.problems if problem.pointer not in known]
    problems = [PlacedProblem.at(problem, document.place(problem.pointer)) for problem in further]
    problems += document.problems
    if problems:
        # In the order of the text, which is the order in which problems are fixed.
        problems.sort(key=lambda problem: (problem.line, problem.column))
        raise ManifestError(problems)
    return replace(manifest, source=Source(path, folder, document.value, document))


def _contents(file: Path) -> bytes:
    """Return the bytes of a regular file, at most one more than the limit."""
    problem = Problem("", "expected a regular file, got a device, pipe or socket")
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return stream.read(LARGEST_MANIFEST + 1)
    except FileNotFoundError:
        problem = Problem("", f"the file {file.name} does not exist")
    except IsADirectoryError:
        problem = Problem("", "expected a file, got a folder", str(file / FILE_NAME))
    except OSError as error:
        problem = Problem("", f"unreadable: {error.strerror}")
    except ValueError as error:
        problem = Problem("", f"not a path: {error}")
    raise ManifestError([problem])


def open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking on a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _checked_kind(kind: object) -> ManifestKind:
    text = exact_str(getattr(kind, "kind", None) if isinstance(kind, type) else kind) or ""
    if text in tuple(ManifestKind):
        return ManifestKind(text)
    message = f"expected a manifest kind ({', '.join(ManifestKind)}), got {shown(kind)}"
    raise InvalidInputError.of(message, pointer="/kind", suggestion=nearest(text, ManifestKind))


def _checked_folder(folder: Folder) -> str | None:
    if folder is None:
        return None
    path = os.fspath(folder)
    if type(path) is not str or not path.startswith("/") or "\0" in path:
        raise InvalidInputError.of(f"expected an absolute path, got {shown(path)}", pointer="/folder")
    return path


def _last(folder: str | None) -> str:
    """Return the name of a folder."""
    return Path(folder).name if folder else ""


class _PlainCopier:
    """Copy of data as exact dictionaries, lists and texts. Other values are kept, so that the parser can name them."""

    def __init__(self) -> None:
        self.values = 0

    def copy(self, value: Any, depth: int = 0) -> Any:
        self.values += 1
        if self.values > documents.MOST_VALUES or depth > documents.DEEPEST_NESTING:
            most, deepest = documents.MOST_VALUES, documents.DEEPEST_NESTING
            message = f"more than {most:,} values, or nested more than {deepest} levels deep"
            raise ManifestError([Problem("", message)])
        kind = type(value)
        if kind is AccessRule:
            # Copied, because code with a reference to the rule can change even a frozen dataclass.
            value = {
                "resource_type": value.resource_type,
                "operation": value.operation,
                "target": written_target(value.resource_type, value.normalized_target),
            }
            return self._members(value, depth)
        if issubclass(kind, dict):
            return self._members(value, depth)
        if issubclass(kind, list | tuple):
            # Methods of the type itself, because a subclass may override them.
            items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
            return [self.copy(item, depth + 1) for item in items]
        text = exact_str(value)
        return value if text is None else text

    def _members(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, item in list(dict.items(value)):
            key = exact_str(name)
            if key is None or len(key) > documents.LONGEST_KEY or key in members:
                message = f"expected unique keys of at most {documents.LONGEST_KEY} characters, got {shown(name)}"
                raise ManifestError([Problem("", message)])
            members[key] = self.copy(item, depth + 1)
        return members


_DEEPEST = 2
"""Search depth below a folder: ``modules/reports`` below the folder of all extensions."""
_FOLDERS = tuple((f"{kind}s", kind) for kind in (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR))


class Located(NamedTuple):
    """Manifest file with its kind."""

    file: str
    kind: ManifestKind


def locate(places: Iterable[str], kind: ManifestKind | None = None) -> tuple[Located, ...]:
    """Return the manifests at the given places: a file, or all manifests in a folder and up to two levels below.

    Without ``kind``, ``$schema`` determines it, else the name of the parent folder (``modules``, ``engines``,
    ``extractors``). Raises ``InvalidInputError`` for a folder without manifests and for a file of unknown kind.
    """
    files = [file for place in places for file in _files(place)]
    return tuple(Located(file, kind or _kind_of(file)) for file in dict.fromkeys(files))


def _files(place: str) -> list[str]:
    if not os.path.isdir(place):  # noqa: PTH112 - a text
        return [place]
    found = list(_below(place, _DEEPEST))
    if not found:
        raise InvalidInputError.of(f"{shown(place)} contains no {FILE_NAME}, and neither do the folders below it")
    return found


def _below(folder: str, depth: int) -> Iterator[str]:
    """Yield the manifest of a folder, or those of its subfolders."""
    file = str(Path(folder, FILE_NAME))
    if os.path.lexists(file):
        yield file
    elif depth:
        try:
            with os.scandir(folder) as entries:
                inner = sorted(each.path for each in entries if each.is_dir() and not each.name.startswith("."))
        except OSError as error:
            raise InvalidInputError.of(f"the folder {shown(folder)} cannot be read: {error.strerror}") from None
        for each in inner:
            yield from _below(each, depth - 1)


def _kind_of(file: str) -> ManifestKind:
    if not os.path.lexists(file):
        raise InvalidInputError.of(f"the file or folder {shown(file)} does not exist")
    names = _schema_of(file)
    for kind in ManifestKind:
        if names.endswith((f"/{kind}.schema.json", f":manifest:{kind}:1")) or names == f"{kind}.schema.json":
            return kind
    around = Path(os.path.abspath(file)).parent.parent.name  # noqa: PTH100 - resolving links would lead elsewhere
    for name, kind in _FOLDERS:
        if around == name:
            return kind
    raise InvalidInputError.of(f"{shown(file)}: neither its folder nor its {SCHEMA_KEY} tells its kind")


def _schema_of(file: str) -> str:
    """Return the ``$schema`` of a file, or an empty text if it cannot be read; loading it reports the problem."""
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            value = json.loads(stream.read(LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return ""
    named = value.get(SCHEMA_KEY) if isinstance(value, dict) else None
    return named if isinstance(named, str) else ""
