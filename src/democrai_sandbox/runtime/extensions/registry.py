"""Registry of the extensions in the configured folders. A broken one is listed with its errors; the others run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown
from democrai_sandbox.manifests import FILE_NAME, Manifest, ManifestKind, load_manifest
from democrai_sandbox.policy import InvalidInputError, Problem, Subject, SubjectKind, hint_for
from democrai_sandbox.policy.subjects import LONGEST_SUBJECT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .settings import RuntimeSettings

KINDS = (ManifestKind.MODULE, ManifestKind.ENGINE, ManifestKind.EXTRACTOR)


@dataclass(frozen=True, slots=True)
class RegisteredExtension:
    """A folder with a manifest, or the problems with it."""

    kind: ManifestKind
    name: str
    """Name from the manifest; the folder's name if the manifest cannot be read."""
    folder: str
    manifest: Manifest | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def is_broken(self) -> bool:
        """Whether problems keep it from running."""
        return bool(self.problems)

    @property
    def subject(self) -> Subject:
        """Subject that its code runs as."""
        return Subject(SubjectKind(self.kind.value), self.name)

    @property
    def entry(self) -> str:
        """File that is imported."""
        return str(Path(self.folder, getattr(self.manifest, "entry", "")))

    def broken(self, *problems: Problem) -> RegisteredExtension:
        """Return the same extension with additional problems."""
        return RegisteredExtension(self.kind, self.name, self.folder, self.manifest, (*self.problems, *problems))

    def require_sound(self) -> None:
        """Raise ``ExtensionBroken`` if the extension has problems."""
        if self.problems:
            raise ExtensionBroken(f"{self.kind} {self.name}: " + "; ".join(map(str, self.problems)))


class Registry:
    """Extensions of each kind by name. Immutable; ``discover`` creates a new one."""

    def __init__(self, extensions: Mapping[ManifestKind, Mapping[str, RegisteredExtension]]) -> None:
        self._found = MappingProxyType({kind: MappingProxyType(dict(extensions.get(kind, {}))) for kind in KINDS})
        self.modules, self.engines, self.extractors = self._found.values()
        """All extensions of a kind, by name."""

    def __iter__(self) -> Iterator[RegisteredExtension]:
        """Yield all extensions, by kind."""
        return (extension for found in self._found.values() for extension in found.values())

    def find(self, label: str) -> RegisteredExtension | None:
        """Return the extension of a subject such as ``module:reports``."""
        kind, _, name = label.partition(":")
        return next((found.get(name) for each, found in self._found.items() if each == kind), None)

    def get(self, kind: ManifestKind, name: str) -> RegisteredExtension:
        """Return an extension, broken or not; the error for an unknown name suggests the nearest one."""
        found = self._found[kind]
        if name in found:
            return found[name]
        raise ExtensionUnknown(f"unknown {kind} {name!r}{hint_for(name, found)}")


def discover(settings: RuntimeSettings) -> Registry:
    """Read the manifests in all folders. Unreadable ones are listed as broken; nothing is imported."""
    return Registry({kind: _named(_candidates(kind, settings.folders(kind))) for kind in KINDS})


def _candidates(kind: ManifestKind, folders: tuple[str, ...]) -> Iterator[RegisteredExtension]:
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        except OSError as error:
            problem = Problem(f"/{kind}s_path", f"{folder} cannot be read: {error.strerror}")
            yield RegisteredExtension(kind, _folder_name(Path(folder)), folder, None, (problem,))
            continue
        yield from (_read(kind, Path(folder, name)) for name in found)


def _read(kind: ManifestKind, folder: Path) -> RegisteredExtension:
    if _leads_out(folder / FILE_NAME, folder):
        # An error message would quote the file, and the host can read more than the owner of the link.
        problem = Problem("", f"{FILE_NAME} points outside the folder of the {kind}")
        return RegisteredExtension(kind, _folder_name(folder), str(folder), None, (problem,))
    try:
        manifest = load_manifest(folder / FILE_NAME, kind)
    except InvalidInputError as error:
        return RegisteredExtension(kind, _folder_name(folder), str(folder), None, tuple(error.problems))
    extension = RegisteredExtension(kind, manifest.name, str(folder), manifest)
    return extension.broken(*_entry_problems(extension))


def _leads_out(file: Path, folder: Path) -> bool:
    try:
        return not file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # symbolic link loop
        return True


def _folder_name(folder: Path) -> str:
    """Return the name of a folder; escaped if it is not a valid subject name."""
    try:
        return Subject(SubjectKind.MODULE, folder.name).name
    except InvalidInputError:
        return ascii(folder.name)[:LONGEST_SUBJECT_NAME]


def _entry_problems(extension: RegisteredExtension) -> Iterator[Problem]:
    """Yield a problem for an entry file that is missing or outside the folder."""
    entry = Path(extension.entry)
    if not entry.is_file():
        yield Problem("/entry", f"{entry.name} does not exist beside the manifest")
    elif _leads_out(entry, Path(extension.folder)):
        yield Problem("/entry", f"{entry.name} points outside the folder of the {extension.kind}")


def _named(candidates: Iterator[RegisteredExtension]) -> dict[str, RegisteredExtension]:
    """Return extensions by name. Two with the same name are both broken: approvals could not tell them apart."""
    found: dict[str, RegisteredExtension] = {}
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
