"""State of the host: its folders and files, the address of a running node, and the database with its lock."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.store.database import Database
from democrai_sandbox.access.store.database_location import SQLITE, parse_url, shown_url
from democrai_sandbox.errors import DatabaseUnreachable, StateUnusable, StoreUnavailable
from democrai_sandbox.kernel.settings import ApplicationPlaces
from democrai_sandbox.policy import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension

    from .settings import HostSettings

_PRIVATE = 0o700
READING = frozenset({Operation.READ, Operation.EXECUTE})
"""Operations that need a readable path in Landlock."""
_WRITING = frozenset({Operation.CREATE, Operation.MODIFY, Operation.DELETE})
_BESIDE = ("", "-wal", "-shm", "-journal", ".lock")
"""Suffixes of a SQLite database and its companion files."""


class CreatedPaths:
    """Folders and files created by one start, which a failed start removes again."""

    def __init__(self) -> None:
        self._files: list[Path] = []
        self._folders: list[Path] = []

    def add_file(self, path: str) -> None:
        """Record a created file."""
        self._files.append(Path(path))

    def add_folders(self, place: Path) -> None:
        """Record the folders that will be created with this one, outermost first."""
        missing = [folder for folder in (place, *place.parents) if not folder.exists()]
        self._folders += reversed(missing)

    def remove(self) -> None:
        """Remove everything that contains no other files."""
        for path in self._files:
            for end in _BESIDE:
                with suppress(OSError):
                    Path(f"{path}{end}").unlink()
        for folder in reversed(self._folders):
            with suppress(OSError):  # not empty, or the kernel layer denies access to its parent
                folder.rmdir()
        self._files, self._folders = [], []


def prepare_directories(settings: HostSettings, made: CreatedPaths | None = None) -> None:
    """Create the host's folders for its user only, before all else; raise for folders that are not usable.

    Folders and files of the host are protected from every subject, and accessible under Landlock.
    """
    made = CreatedPaths() if made is None else made
    _check_folder(_made(settings.state_dir, "state_dir", made), "state_dir")
    _check_folder(_made(settings.data_dir, "data_dir", made), "data_dir")
    _made(_folder_of(settings.key_file), "database.key_file", made)
    if database := database_file(settings):
        _check_folder(_made(_folder_of(database), "database.url", made), "database.url")
        with suppress(FileExistsError):  # a new file is for its owner only; SQLite copies its mode
            os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            made.add_file(database)


def database_file(settings: HostSettings) -> str:
    """Return the file of a SQLite database; empty for a database server."""
    url = parse_url(settings.database, needs_folder=False)
    return str(url.database) if url.get_backend_name() == SQLITE else ""


def protected_paths(settings: HostSettings) -> tuple[str, ...]:
    """Return the paths that no subject can access, except its own data folder below them."""
    keys = (model.api_key_file for model in settings.extensions.models.values())
    named = (settings.state_dir, settings.config_file, settings.key_file, settings.os.policy_file, *keys)
    database = database_file(settings)
    beside = tuple(f"{database}{end}" for end in _BESIDE) if database else ()
    return tuple(dict.fromkeys(filter(None, (*named, settings.os.helper_socket, *beside))))


def landlock_application_paths(
    settings: HostSettings, extensions: Iterable[RegisteredExtension] = ()
) -> ApplicationPlaces:
    """Return the application's paths for Landlock, including those that its extensions declare."""
    written = [_folder_of(path) for path in (settings.key_file, database_file(settings)) if path]
    if settings.stream_type == "ipc" and (events := settings.stream.get("folder")):
        written.append(str(events))
    declared = [rule for extension in extensions for rule in declared_files(extension)]
    main = (settings.modules_path, settings.engines_path, settings.extractors_path)
    more = (*settings.extra_module_dirs, *settings.extra_engine_dirs, *settings.extra_extractor_dirs)
    read = filter(None, (*main, *more, settings.config_file))
    there = [rule for rule in declared if os.path.exists(rule.normalized_target)]  # noqa: PTH110 - a str path
    return ApplicationPlaces(
        data_dir=settings.data_dir,
        state_dir=settings.state_dir,
        write=tuple(dict.fromkeys((*written, *_targets(there, _WRITING)))),
        read=tuple(dict.fromkeys((*read, *_targets(there, READING)))),
    )


def declared_files(extension: RegisteredExtension) -> Iterator[AccessRule]:
    """Yield the file rules in all sections of an extension's manifest."""
    sections = extension.manifest.sections if extension.manifest else {}
    for section in filter(None, sections.values()):
        yield from (rule for rule in section.access if rule.resource_type is ResourceType.FILESYSTEM)


def _targets(rules: Iterable[AccessRule], operations: frozenset[Operation]) -> Iterator[str]:
    return (rule.normalized_target for rule in rules if rule.operation in operations)


def _made(folder: str, setting: str, made: CreatedPaths) -> Path:
    place = Path(folder)
    try:
        made.add_folders(place)
        place.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    except FileExistsError:
        raise StateUnusable(f"{setting}: {folder} is not a folder", fix="use another path, or move the file") from None
    except OSError as error:
        raise StateUnusable(
            f"{setting}: {folder} cannot be created: {error.strerror}",
            fix=f"create it for the user of this process ({os.geteuid()}), or use another folder",
        ) from None
    return place


def _check_folder(place: Path, setting: str) -> None:
    """Raise for a folder that other users can write to, or in which this user cannot create a file."""
    found = place.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateUnusable(
            f"{setting}: others can write to {place} (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})",
            fix=f"chown {os.geteuid()} {place} && chmod 700 {place}",
        )
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StateUnusable(
            f"{setting}: no file can be created in {place}: {error.strerror}",
            fix=f"make it writable for user {os.geteuid()}, or use another folder",
        ) from None


def _folder_of(path: str) -> str:
    return str(Path(path).parent)


def own_services(settings: HostSettings) -> dict[str, str]:
    """Return the URLs of the host's database and event stream, which are used before extensions are loaded."""
    events = settings.stream.get("url", "")
    return {"database": settings.database, **({"events": str(events)} if events else {})}


_NEEDED_BYTES = 1024 * 1024
"""Bytes to reserve: the needs of the database under load."""


def full_folders(settings: HostSettings) -> tuple[str, ...]:
    """Return the host's folders on a full disk or quota."""
    database = database_file(settings)
    folders = (settings.state_dir, settings.data_dir, *((str(Path(database).parent),) if database else ()))
    return tuple(folder for folder in dict.fromkeys(folders) if not _has_room(folder))


def _has_room(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _NEEDED_BYTES)
    except OSError:
        return False
    return True


ADDRESS_FILE = "node.url"
_LONGEST_ADDRESS = 2048


class NodeAddress(NamedTuple):
    """Content of the file."""

    url: str
    is_held: bool
    """Whether the node that wrote it still runs."""


@contextmanager
def announce_node_address(folder: str, url: str) -> Iterator[None]:
    """Write an address to the file for the duration of a block; only the user of this process can read it.

    The node holds a lock on the file while it runs. So a file left by a killed node is not used: its port may belong to
    another program, which must not receive a token.
    """
    place = Path(folder) / ADDRESS_FILE
    fresh = place.with_name(f"{ADDRESS_FILE}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # left by a process with the same id
    number = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(number, fcntl.LOCK_EX)  # of this process alone: a fork does not inherit it
        os.write(number, f"{url}\n".encode())
        fresh.replace(place)
        yield
    finally:
        fresh.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            if os.path.samestat(place.stat(), os.fstat(number)):  # another node may have replaced it
                place.unlink()
        os.close(number)


def read_node_address(folder: str) -> NodeAddress | None:
    """Return the content of the file in a state folder; None without one."""
    try:
        number = os.open(Path(folder) / ADDRESS_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        is_held = _is_held(number)
        text = os.read(number, _LONGEST_ADDRESS).decode("utf-8", "replace")
    finally:
        os.close(number)
    return NodeAddress(text.partition("\n")[0].strip(), is_held)


def _is_held(number: int) -> bool:
    try:
        fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return True
        raise
    return False


_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_TOLD_EVERY = 60.0
_log = logging.getLogger("democrai_sandbox.host.database")


def await_database(settings: HostSettings, still_waiting: Callable[[], object] = lambda: None) -> None:
    """Return when the database server answers; raise ``DatabaseUnreachable`` after ``database.wait_seconds``.

    ``still_waiting`` is called before each pause. Do not wait for a database in a file, whose state is known
    immediately.
    """
    if database_file(settings):
        return
    deadline = monotonic() + settings.database_wait
    pause, said, told_at = _FIRST_PAUSE, "", 0.0
    while (reason := _unreachable_reason_now(settings.database)) is not None:
        left = deadline - monotonic()
        if left <= 0:
            raise unreachable_error(settings.database, reason)
        if reason != said or monotonic() - told_at >= _TOLD_EVERY:
            said, told_at = reason, monotonic()
            _log.warning("waiting for the database for another %.0f s: %s", left, reason)
        still_waiting()
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    if said:
        _log.info("the database answers")


def unreachable_error(url: str, reason: str) -> DatabaseUnreachable:
    """Return the error for an unusable server, with the driver's message."""
    shown = shown_url(parse_url(url, needs_folder=False))
    return DatabaseUnreachable(
        f"the database {shown} cannot be used: {reason}",
        fix="check that its server runs and accepts this user, set database.url, or raise database.wait_seconds",
    )


def unreachable_reason(error: StoreUnavailable) -> str:
    """Return in one line why a database is not usable."""
    cause = error.__cause__
    return " ".join(str(getattr(cause, "orig", None) or cause or error).split())


def _unreachable_reason_now(url: str) -> str | None:
    """Return why the server does not answer; None if it does. Keep no connection open."""
    database = Database(parse_url(url))
    try:
        database.ask(lambda connection: connection.exec_driver_sql("SELECT 1"))
    except StoreUnavailable as error:
        return unreachable_reason(error)
    finally:
        database.close()
    return None


class DatabaseLock:
    """Lock of one process. The kernel releases it when the process ends."""

    def __init__(self, database: str) -> None:
        """Take the lock, or raise with its owner. A database server needs no lock: nodes share it."""
        self._descriptor = -1
        if not database:
            return
        path = f"{database}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable(
                f"{path} cannot be opened: {error.strerror}", fix="remove it if it is not a regular file"
            ) from None
        try:
            # A lock of the process, not of the open file, so that forks do not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "another one"
            os.close(descriptor)
            raise StateUnusable(
                f"process {_process_words(holder)} already serves {database}",
                fix="stop that process, use another state_dir, or use PostgreSQL, which several nodes can share",
            ) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _process_words(pid: str) -> str:
    """Return the process id with the command line, if available."""
    if not pid.isdecimal():
        return pid
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return pid
    line = " ".join(word.decode("utf-8", "backslashreplace") for word in words if word)
    return f"{pid} ({line[:120]!r})" if line else pid
