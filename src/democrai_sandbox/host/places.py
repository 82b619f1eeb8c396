"""The host's folders and files: made before anything else, kept from every subject, open to the host below Landlock."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.access.store.urls import SQLITE, parse_url
from democrai_sandbox.errors import StateUnusable
from democrai_sandbox.kernel.places import ApplicationPlaces
from democrai_sandbox.policy import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.extensions import Extension

    from .settings import HostSettings

_PRIVATE = 0o700
READING = frozenset({Operation.READ, Operation.EXECUTE})
"""The operations that Landlock's list of readable paths is for."""
_WRITING = frozenset({Operation.CREATE, Operation.MODIFY, Operation.DELETE})
_BESIDE = ("", "-wal", "-shm", "-journal", ".lock")
"""What the names of a SQLite database and of the files beside it end with."""


class MadePlaces:
    """Folders and files that one start has made itself, which a refused start removes again."""

    def __init__(self) -> None:
        """Begin with nothing made."""
        self._files: list[Path] = []
        self._folders: list[Path] = []

    def add_file(self, path: str) -> None:
        """Note a file that was just made."""
        self._files.append(Path(path))

    def add_folders(self, place: Path) -> None:
        """Note the folders that will be made with this one, the outermost first."""
        missing = [folder for folder in (place, *place.parents) if not folder.exists()]
        self._folders += reversed(missing)

    def remove(self) -> None:
        """Remove it all, as far as nothing else was put there since."""
        for path in self._files:
            for end in _BESIDE:
                with suppress(OSError):
                    Path(f"{path}{end}").unlink()
        for folder in reversed(self._folders):
            with suppress(OSError):  # something else is in it, or the kernel layer has closed its parent
                folder.rmdir()
        self._files, self._folders = [], []


def prepare_places(settings: HostSettings, made: MadePlaces | None = None) -> None:
    """Make the folders of the host, for its own user alone, and refuse those in which nothing can be kept."""
    made = MadePlaces() if made is None else made
    _check_folder(_made(settings.state_dir, "state_dir", made), "state_dir")
    _check_folder(_made(settings.data_dir, "data_dir", made), "data_dir")
    _made(_folder_of(settings.key_file), "database.key_file", made)
    if database := database_file(settings):
        _check_folder(_made(_folder_of(database), "database.url", made), "database.url")
        if _make_private(Path(database)):
            made.add_file(database)


def database_file(settings: HostSettings) -> str:
    """Return the file of a SQLite database; empty for a server's."""
    url = parse_url(settings.database, needs_folder=False)
    return str(url.database) if url.get_backend_name() == SQLITE else ""


def protected_paths(settings: HostSettings) -> tuple[str, ...]:
    """Return what no subject reaches, whatever it declares; of the data below it each gets its own place back."""
    keys = (model.api_key_file for model in settings.extensions.models.values())
    named = (settings.state_dir, settings.config_file, settings.key_file, settings.os.policy_file, *keys)
    database = database_file(settings)
    beside = tuple(f"{database}{end}" for end in _BESIDE) if database else ()
    return tuple(dict.fromkeys(filter(None, (*named, settings.os.helper_socket, *beside))))


def application_places(settings: HostSettings, extensions: Iterable[Extension] = ()) -> ApplicationPlaces:
    """Return what the application itself reads and writes, for Landlock, with what its extensions declare."""
    written = (_folder_of(path) for path in (settings.key_file, database_file(settings)) if path)
    declared = [rule for extension in extensions for rule in declared_files(extension)]
    there = [rule for rule in declared if os.path.exists(rule.normalized_target)]  # noqa: PTH110 - a text
    return ApplicationPlaces(
        data_dir=settings.data_dir,
        state_dir=settings.state_dir,
        write=tuple(dict.fromkeys((*written, *_stream_folders(settings), *_targets(there, _WRITING)))),
        read=tuple(dict.fromkeys((*_read(settings), *_targets(there, READING)))),
    )


def declared_files(extension: Extension) -> Iterator[AccessRule]:
    """Yield the rules for files that an extension declares in any section of its manifest."""
    sections = extension.manifest.sections if extension.manifest else {}
    for section in filter(None, sections.values()):
        yield from (rule for rule in section.access if rule.resource_type is ResourceType.FILESYSTEM)


def _targets(rules: Iterable[AccessRule], operations: frozenset[Operation]) -> Iterator[str]:
    return (rule.normalized_target for rule in rules if rule.operation in operations)


def _read(settings: HostSettings) -> Iterator[str]:
    main = (settings.modules_path, settings.engines_path, settings.extractors_path)
    yield from filter(None, main)
    yield from (*settings.extra_module_dirs, *settings.extra_engine_dirs, *settings.extra_extractor_dirs)
    if settings.config_file:
        yield settings.config_file


def _stream_folders(settings: HostSettings) -> tuple[str, ...]:
    folder = settings.stream.get("folder") if settings.stream_type == "ipc" else None
    return (str(folder),) if folder else ()


def _made(folder: str, setting: str, made: MadePlaces) -> Path:
    place = Path(folder)
    try:
        made.add_folders(place)
        place.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    except FileExistsError:
        raise StateUnusable(f"{setting}: {folder} is not a folder", fix="name another one, or move the file") from None
    except OSError as error:
        raise StateUnusable(
            f"{setting}: {folder} cannot be made: {error.strerror}",
            fix=f"make it for the user that runs this ({_user()}), or name another one",
        ) from None
    return place


def _check_folder(place: Path, setting: str) -> None:
    """Refuse a folder that others may write to, or in which this user makes no file: that shows by trying."""
    found = place.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateUnusable(
            f"{setting}: others may write to {place} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})",
            fix=f"chown {_user()} {place} && chmod 700 {place}",
        )
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StateUnusable(
            f"{setting}: nothing can be written in {place}: {error.strerror}",
            fix=f"let user {_user()} write there, or name another folder",
        ) from None


def _make_private(database: Path) -> bool:
    """Make a new database for its owner alone; SQLite gives the files beside it the same mode. Tell if it is new."""
    try:
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def _folder_of(path: str) -> str:
    return str(Path(path).parent)


def _user() -> int:
    return os.geteuid()


def own_services(settings: HostSettings) -> dict[str, str]:
    """Return where the host itself keeps decisions and hears of them: reached before any extension is known."""
    events = settings.stream.get("url", "")
    return {"database": settings.database, **({"events": str(events)} if events else {})}
