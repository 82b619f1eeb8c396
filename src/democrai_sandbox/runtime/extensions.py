"""The registry: what lies in the folders of extensions. A broken one is listed with its errors; the others go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown
from democrai_sandbox.manifests import FILE_NAME, Manifest, ManifestError, ManifestKind, load_manifest
from democrai_sandbox.policy import InvalidInputError, Problem, Subject, SubjectKind, nearest
from democrai_sandbox.policy.subjects import LONGEST_SUBJECT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .settings import RuntimeSettings

KINDS = (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR)


@dataclass(frozen=True, slots=True)
class Extension:
    """A folder with a manifest, or what is wrong with it."""

    kind: ManifestKind
    name: str
    """As the manifest says; the folder's name when there is none to read."""
    folder: str
    manifest: Manifest | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether it cannot run."""
        return bool(self.problems)

    @property
    def subject(self) -> Subject:
        """The subject that its code runs as."""
        return Subject(SubjectKind(self.kind.value), self.name)

    @property
    def entry(self) -> str:
        """The file that is imported."""
        return str(Path(self.folder, getattr(self.manifest, "entry", "")))

    def broken(self, *problems: Problem) -> Extension:
        """Return the same extension with something wrong with it."""
        return Extension(self.kind, self.name, self.folder, self.manifest, (*self.problems, *problems))

    def require_sound(self) -> None:
        """Raise what is wrong with it, if something is."""
        if self.problems:
            raise ExtensionBroken(f"{self.kind} {self.name}: " + "; ".join(map(str, self.problems)))


class Registry:
    """The extensions of each kind by name. Immutable; ``discover`` makes a new one."""

    def __init__(self, extensions: Mapping[ManifestKind, Mapping[str, Extension]]) -> None:
        """Take over what was found."""
        self._found = MappingProxyType({kind: MappingProxyType(dict(extensions.get(kind, {}))) for kind in KINDS})

    @property
    def modules(self) -> Mapping[str, Extension]:
        """The modules."""
        return self._found[ManifestKind.MODULE]

    @property
    def engines(self) -> Mapping[str, Extension]:
        """The engines."""
        return self._found[ManifestKind.ENGINE]

    @property
    def extractors(self) -> Mapping[str, Extension]:
        """The extractors."""
        return self._found[ManifestKind.EXTRACTOR]

    def __iter__(self) -> Iterator[Extension]:
        """Yield all extensions, by kind."""
        return (extension for found in self._found.values() for extension in found.values())

    def get(self, kind: ManifestKind, name: str) -> Extension:
        """Return an extension, broken or not; one that is not there is an error that names the nearest."""
        found = self._found[kind]
        if name in found:
            return found[name]
        close = nearest(name, found)
        raise ExtensionUnknown(f"there is no {kind} {name!r}" + (f"; did you mean {close!r}?" if close else ""))


def discover(settings: RuntimeSettings) -> Registry:
    """Read the manifests in all folders. What cannot be read is listed as broken; nothing is imported."""
    return Registry({kind: _named(_candidates(kind, settings.folders(kind))) for kind in KINDS})


def _candidates(kind: ManifestKind, folders: tuple[str, ...]) -> Iterator[Extension]:
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        except OSError as error:
            problem = Problem(f"/{kind}s_path", f"{folder} cannot be read: {error.strerror}")
            yield Extension(kind, _folder_name(Path(folder)), folder, None, (problem,))
            continue
        yield from (_read(kind, Path(folder, name)) for name in found)


def _read(kind: ManifestKind, folder: Path) -> Extension:
    if _leads_out(folder / FILE_NAME, folder):
        # What is wrong with it is told with a piece of it, and the host can read more than who put the link there.
        problem = Problem("", f"{FILE_NAME} leads out of the folder of the {kind}")
        return Extension(kind, _folder_name(folder), str(folder), None, (problem,))
    try:
        manifest = load_manifest(folder / FILE_NAME, kind)
    except ManifestError as error:
        return Extension(kind, _folder_name(folder), str(folder), None, tuple(error.problems))
    except InvalidInputError as error:
        return Extension(kind, _folder_name(folder), str(folder), None, error.problems)
    extension = Extension(kind, manifest.name, str(folder), manifest)
    return extension.broken(*_entry_problems(extension))


def _leads_out(file: Path, folder: Path) -> bool:
    try:
        return not file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links in a circle
        return True


def _folder_name(folder: Path) -> str:
    """Return the name of a folder; quoted, and with nothing hidden in it, where no subject could be called that."""
    try:
        return Subject(SubjectKind.MODULE, folder.name).name
    except InvalidInputError:
        return ascii(folder.name)[:LONGEST_SUBJECT_NAME]


def _entry_problems(extension: Extension) -> Iterator[Problem]:
    """A link out of the folder, or no file at all, is found before anything runs."""
    entry = Path(extension.entry)
    if not entry.is_file():
        yield Problem("/entry", f"there is no file {entry.name} beside the manifest")
    elif _leads_out(entry, Path(extension.folder)):
        yield Problem("/entry", f"{entry.name} leads out of the folder of the {extension.kind}")


def _named(candidates: Iterator[Extension]) -> dict[str, Extension]:
    """Of two with one name neither runs: which of them an approval was given to could not be told."""
    found: dict[str, Extension] = {}
    for extension in candidates:
        other = found.get(extension.name)
        if other is None:
            found[extension.name] = extension
            continue
        problem = Problem(
            "/name", f"two {extension.kind}s are named {extension.name!r}: {other.folder}, {extension.folder}"
        )
        found[extension.name] = other.broken(problem)
    return found
