"""Where the environments of one extension are, which one counts, and who uses it.

An environment is built in the folder in which it stays, because programs and packages remember where they were
installed. It counts only when ``current`` names it, a small file that is replaced in one step after the environment was
verified: a folder that ``current`` does not name is a leftover, whatever ended the process that was building it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, pointer_to

from .interface import InstallBusy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from democrai_sandbox.policy import Subject

MOST_FILES = 20_000
_SCHEME = 1
_VERSION_CONTROL = re.compile(r"\b(?:git|hg|svn|bzr)\+|\bgit:", re.IGNORECASE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be installed, and the mark by which a finished environment is known to be for it."""

    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    """Those of the requirements that are folders beside the manifest, relative to it."""
    folder: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Installed:
    """A finished environment."""

    fingerprint: str
    folder: str
    packages: tuple[str, ...]


def make_plan(requirements: Sequence[str], folder: str) -> Plan:
    """Return the plan for the requirements of a manifest; ``./folder`` counts with everything that is in it."""
    local = tuple(_local_packages(requirements, Path(folder)))
    mark = hashlib.sha256()
    for fact in (f"scheme {_SCHEME}", sys.version, sys.base_prefix, sys.implementation.cache_tag, *requirements):
        mark.update(f"{len(fact or '')}:{fact}".encode())
    for package in local:
        _add_contents(mark, Path(folder, package))
    return Plan(tuple(requirements), local, folder, mark.hexdigest()[:16])


class Place:
    """The folder in which everything about the installation of one extension is kept.

    Not the folder of its data: that one can be written while the extension serves, and this one must not.
    """

    def __init__(self, data_dir: str, subject: Subject) -> None:
        """Name the place; nothing is made until something is installed."""
        self.root = Path(data_dir, "installs", f"{subject.kind}s", subject.name)
        self.environments = self.root / "environments"
        self.cache = self.root / "cache"
        self.tools = Path(data_dir, "installs", "tools")
        """What all installations use and none writes."""
        self._current = self.root / "current"

    def installed(self) -> Installed | None:
        """Return the environment that counts; None when there is none, or it was taken away."""
        try:
            told = json.loads(self._current.read_bytes())
            found = Installed(told["fingerprint"], told["folder"], tuple(told["packages"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # never half used: what cannot be read is installed again
        return found if Path(found.folder, "pyvenv.cfg").is_file() else None

    def new_environment(self, plan: Plan) -> Path:
        """Return the name of an environment to be built."""
        self.environments.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.environments / f"{plan.fingerprint}-{secrets.token_hex(4)}"

    def finish(self, installed: Installed) -> None:
        """Let an environment count from now on, in one step, also if the machine stops in the middle of it."""
        unfinished = self.root / f"current.{os.getpid()}"
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(asdict(installed), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._current)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Be the only one who builds here, in all processes; yields the descriptor that holds the lock.

        A process that was told the descriptor keeps the lock for as long as it lives.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InstallBusy(f"another process is installing in {self.root}") from None
            yield descriptor
        finally:
            os.close(descriptor)

    def is_busy(self) -> bool:
        """Tell whether somebody builds here, in this process or another."""
        try:
            descriptor = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def sweep(self) -> list[str]:
        """Remove every environment that neither counts nor is used; to be called with the lock held."""
        installed = self.installed()
        kept = None if installed is None else Path(installed.folder)
        found = sorted(self.environments.iterdir()) if self.environments.is_dir() else []
        return [folder.name for folder in found if folder != kept and _remove_unused(folder)]


class Use:
    """Keeps an environment from being removed while a worker runs on it; ends with the process at the latest."""

    def __init__(self, folder: str) -> None:
        """Take a share in the environment; raises ``FileNotFoundError`` when it is gone."""
        self._descriptor: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def end(self) -> None:
        """Give the share back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def remove(path: Path) -> bool:
    """Remove what an installation made, whatever it is. What cannot be removed is in nobody's way, and is told."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except (OSError, RecursionError) as error:
        _log.warning("%s is left over and could not be removed: %s", path, error)
        return False
    return True


def _remove_unused(path: Path) -> bool:
    """Remove a folder unless somebody has a share in it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return remove(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return remove(path)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _local_packages(requirements: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the requirements that are folders or archives beside the manifest; what leads elsewhere is refused."""
    for index, requirement in enumerate(requirements):
        place = pointer_to("/install/requirements", index)
        if _VERSION_CONTROL.search(requirement):
            # The program that fetches it is not Python: no rule for the network would be asked about where it goes.
            raise InvalidInputError.of(
                "a package is not installed from version control: give an archive", pointer=place
            )
        if not requirement.startswith("./"):
            continue
        path = requirement.partition("[")[0].rstrip()
        found = (folder / path).resolve()
        if not found.is_relative_to(folder.resolve()) or found == folder.resolve():
            raise InvalidInputError.of(f"{path} is not below the folder of the manifest", pointer=place)
        if not found.exists():
            raise InvalidInputError.of(f"there is no {path} beside the manifest", pointer=place)
        yield path.removeprefix("./")


def _add_contents(mark: hashlib._Hash, package: Path) -> None:
    """Add names and contents of all files. Links count by where they lead, and are not followed."""
    for count, file in enumerate(_files(package)):
        if count >= MOST_FILES:
            raise InvalidInputError.of(f"{package} has more than {MOST_FILES} files", pointer="/install/requirements")
        name = os.fsencode(file.relative_to(package.parent))
        mark.update(b"%d:%b" % (len(name), name))
        if file.is_symlink():
            mark.update(os.fsencode(file.readlink()))
            continue
        with file.open("rb") as stream:
            mark.update(hashlib.file_digest(stream, "sha256").digest())


def _files(package: Path) -> Iterator[Path]:
    if package.is_file():
        yield package
        return
    for root, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            file = Path(root, name)
            if file.is_symlink() or file.is_file():
                yield file
