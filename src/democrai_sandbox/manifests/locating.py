"""Discovery of manifest files and their kinds."""

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
