"""Which files are meant by a file or a folder, and what kind of manifest each one is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

from .document import LARGEST_MANIFEST
from .loading import FILE_NAME, open_at_once
from .models import ManifestKind
from .tables import SCHEMA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEEPEST = 2
"""How far below a folder manifests are looked for: ``modules/reports`` below the folder of all extensions."""
_FOLDERS = tuple((f"{kind}s", kind) for kind in (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR))


class Located(NamedTuple):
    """A file, and what it is."""

    file: str
    kind: ManifestKind


def locate(places: Iterable[str], kind: ManifestKind | None = None) -> tuple[Located, ...]:
    """Return the manifests that are meant: a file by itself, of a folder all that lie in it or just below.

    Without ``kind`` it is what ``$schema`` names, else what the folder around it is called (``modules``, ``engines``,
    ``extractors``). Raises ``InvalidInputError`` for a folder without any, and a file whose kind cannot be told.
    """
    files = [file for place in places for file in _files(place)]
    return tuple(Located(file, kind or _kind_of(file)) for file in dict.fromkeys(files))


def _files(place: str) -> list[str]:
    if not os.path.isdir(place):  # noqa: PTH112 - a text
        return [place]
    found = list(_below(place, _DEEPEST))
    if not found:
        raise InvalidInputError.of(f"there is no {FILE_NAME} in {shown(place)}, nor in the folders below it")
    return found


def _below(folder: str, depth: int) -> Iterator[str]:
    """Yield the manifest of a folder, or those of the folders in it; nothing is told of folders that are shut."""
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
        raise InvalidInputError.of(f"there is no file or folder {shown(file)}")
    names = _schema_of(file)
    for kind in ManifestKind:
        if names.endswith((f"/{kind}.schema.json", f":manifest:{kind}:1")) or names == f"{kind}.schema.json":
            return kind
    around = Path(os.path.abspath(file)).parent.parent.name  # noqa: PTH100 - resolving links would lead elsewhere
    for name, kind in _FOLDERS:
        if around == name:
            return kind
    raise InvalidInputError.of(f"{shown(file)}: its kind cannot be told from its folder, nor from its {SCHEMA_KEY}")


def _schema_of(file: str) -> str:
    """Return what the file says it is; nothing where it cannot be read: whoever loads it says why."""
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            value = json.loads(stream.read(LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return ""
    named = value.get(SCHEMA_KEY) if isinstance(value, dict) else None
    return named if isinstance(named, str) else ""
