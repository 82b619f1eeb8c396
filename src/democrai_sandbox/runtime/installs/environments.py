"""Environments of one extension: where they are, which one is current, their status, and the worker that uses one."""

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
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from democrai_sandbox import policy
from democrai_sandbox._util.atomic_file import atomic_write
from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, Manifest
from democrai_sandbox.runtime.child_process import BASE_INTERPRETER
from democrai_sandbox.runtime.worker.process import WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings

MOST_FILES = 20_000
_SCHEME = 1
_VERSION_CONTROL = re.compile(r"\b(?:git|hg|svn|bzr)\+|\bgit:", re.IGNORECASE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvironmentPlan:
    """Requirements of an extension, and the fingerprint that identifies a matching environment."""

    requirements: tuple[str, ...]
    packages: tuple[str, ...]
    """Requirements that are folders beside the manifest, as relative paths."""
    folder: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class InstalledEnvironment:
    """A finished environment."""

    fingerprint: str
    folder: str
    packages: tuple[str, ...]


def make_plan(requirements: Sequence[str], folder: str) -> EnvironmentPlan:
    """Return the plan for the requirements of a manifest; the fingerprint includes the content of each ``./folder``."""
    local = tuple(_local_packages(requirements, Path(folder)))
    mark = hashlib.sha256()
    for fact in (f"scheme {_SCHEME}", sys.version, sys.base_prefix, sys.implementation.cache_tag, *requirements):
        mark.update(f"{len(fact or '')}:{fact}".encode())
    for package in local:
        _add_contents(mark, Path(folder, package))
    return EnvironmentPlan(tuple(requirements), local, folder, mark.hexdigest()[:16])


@contextlib.contextmanager
def flocked(path: Path, flags: int, lock: int) -> Iterator[int]:
    """Hold a lock on a file or folder, and yield its descriptor; raise ``BlockingIOError`` if another one exists."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


class EnvironmentFolder:
    """Folder with everything about the installation of one extension.

    Separate from its data folder, which the extension can write while it serves; this one it cannot.

    An environment is built in its final folder, and used only when the file ``current`` names it, which is replaced
    atomically after verification. All other folders are leftovers of interrupted builds.
    """

    def __init__(self, data_dir: str, subject: policy.Subject) -> None:
        self.root = Path(data_dir, "installs", f"{subject.kind}s", subject.name)
        self.environments = self.root / "environments"
        self.cache = self.root / "cache"
        self.tools = Path(data_dir, "installs", "tools")
        """Shared by all installations, and not writable for them."""
        self._current = self.root / "current"

    def installed(self) -> InstalledEnvironment | None:
        """Return the current environment; None if none exists, or its folder was removed."""
        try:
            told = json.loads(self._current.read_bytes())
            found = InstalledEnvironment(told["fingerprint"], told["folder"], tuple(told["packages"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # an unreadable file counts as not installed
        return found if Path(found.folder, "pyvenv.cfg").is_file() else None

    def new_environment(self, plan: EnvironmentPlan) -> Path:
        """Return the path of an environment to be built."""
        self.environments.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.environments / f"{plan.fingerprint}-{secrets.token_hex(4)}"

    def finish(self, installed: InstalledEnvironment) -> None:
        """Make an environment current, atomically, also across a crash of the machine."""
        with atomic_write(self._current) as unfinished:
            unfinished.write_text(json.dumps(asdict(installed)), encoding="utf-8")

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the exclusive build lock across all processes; yield its descriptor.

        A process that inherits the descriptor keeps the lock until it ends.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(flocked(self.root / "lock", os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX))
            except BlockingIOError:
                raise InstallBusy(f"another process is installing in {self.root}") from None
            yield lock

    def is_busy(self) -> bool:
        """Return whether this or another process is installing."""
        try:
            with flocked(self.root / "lock", os.O_RDONLY, fcntl.LOCK_SH):
                return False
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True

    def sweep(self) -> list[str]:
        """Remove every environment that is neither current nor in use. The caller must hold the lock."""
        installed = self.installed()
        kept = None if installed is None else Path(installed.folder)
        found = sorted(self.environments.iterdir()) if self.environments.is_dir() else []
        return [folder.name for folder in found if folder != kept and _remove_unused(folder)]


def hold_environment(folder: str) -> contextlib.ExitStack:
    """Keep an environment from being removed until the result is closed; raise ``FileNotFoundError`` if it was."""
    stack = contextlib.ExitStack()
    stack.enter_context(flocked(Path(folder), os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH))
    return stack


def remove(path: Path) -> bool:
    """Remove files of an installation. A failure is only logged, because leftovers do no harm."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
    except (OSError, RecursionError) as error:
        _log.warning("leftover %s could not be removed: %s", path, error)
        return False
    return True


def _remove_unused(path: Path) -> bool:
    """Remove a folder unless it is in use."""
    try:
        with flocked(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, fcntl.LOCK_EX):
            return remove(path)
    except BlockingIOError:
        return False
    except OSError:
        return remove(path)


def _local_packages(requirements: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the requirements that are folders or archives beside the manifest; refuse paths outside its folder."""
    for index, requirement in enumerate(requirements):
        place = policy.pointer_to("/install/requirements", index)
        if _VERSION_CONTROL.search(requirement):
            # The fetching program is not Python, so the guard could not check its network access.
            raise policy.InvalidInputError.of(
                "packages from version control are not supported: use an archive", pointer=place
            )
        if not requirement.startswith("./"):
            continue
        path = requirement.partition("[")[0].rstrip()
        found = (folder / path).resolve()
        if not found.is_relative_to(folder.resolve()) or found == folder.resolve():
            raise policy.InvalidInputError.of(f"{path} is not below the folder of the manifest", pointer=place)
        if not found.exists():
            raise policy.InvalidInputError.of(f"{path} does not exist beside the manifest", pointer=place)
        yield path.removeprefix("./")


def _add_contents(mark: hashlib._Hash, package: Path) -> None:
    """Add names and contents of all files. Links count by their targets, and are not followed."""
    for count, file in enumerate(_files(package)):
        if count >= MOST_FILES:
            raise policy.InvalidInputError.of(
                f"{package} has more than {MOST_FILES} files", pointer="/install/requirements"
            )
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


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment that contains its packages."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def worker_spec(
    extension: RegisteredExtension,
    installed: InstalledEnvironment,
    configuration: Mapping[str, Any],
    settings: RuntimeSettings,
) -> WorkerSpec:
    """Return the worker of an engine or extractor: its ``runtime`` section and its folders, without child processes."""
    manifest = extension.manifest
    if not isinstance(manifest, EngineManifest | ExtractorManifest):
        raise TypeError(f"expected an engine or an extractor, got {extension.kind}")
    access, imports = runtime_rules(manifest, configuration)
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    return WorkerSpec(
        kind=extension.kind.value,
        name=extension.name,
        folder=extension.folder,
        # Not the environment's own interpreter, which the install phase could have replaced.
        interpreter=BASE_INTERPRETER,
        environment=installed.folder,
        entry=manifest.entry,
        data_dir=data,
        access=access,
        allowed_imports=imports,
        own_read=(extension.folder, installed.folder),
        own_write=(data,),
        code_paths=(str(site_packages(Path(installed.folder))),),
        threads=settings.threads_per_subject,
        start_timeout=settings.load_timeout,
        call_timeout=settings.call_timeout,
    )


def runtime_rules(manifest: Manifest, configuration: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the runtime rules of a manifest under a configuration, as JSON, and its imports."""
    if not isinstance(manifest, EngineManifest | ExtractorManifest):
        raise TypeError(f"expected an engine or an extractor, got {manifest.kind}")
    keys = manifest.runtime.allowed_config_urls if isinstance(manifest, EngineManifest) else ()
    rules = policy.rules_to_json((*manifest.runtime.access, *config_rules(keys, configuration)))
    return rules, tuple(manifest.runtime.allowed_imports)


def config_rules(keys: tuple[str, ...], configuration: Mapping[str, Any]) -> tuple[policy.AccessRule, ...]:
    """Return the rules for the URLs under these configuration keys; missing keys give none."""
    problems: list[policy.Problem] = []
    targets: list[str] = []
    for key in keys:
        value = configuration.get(key)
        for text in value if isinstance(value, list) else [value]:
            if text is None or text == "":
                continue
            try:
                targets.append(policy.parse_request_url(text).normalized)
            except policy.InvalidInputError as error:
                where = policy.pointer_to("/configuration", key)
                problems += [policy.Problem(where, f"expected a URL: {item.message}") for item in error.problems]
    if problems:
        raise policy.InvalidInputError(problems)
    return policy.rules_for_targets(targets)


class InstallStage(StrEnum):
    """Stages of an installation."""

    PREPARE = "prepare"
    RESOLVE = "resolve"
    DOWNLOAD = "download"
    BUILD = "build"
    INSTALL = "install"
    VERIFY = "verify"
    DONE = "done"
    FAILED = "failed"


class InstallStep(NamedTuple):
    """One step of an installation. Plain data, visible to every user who may see the extension."""

    stage: str
    text: str
    fraction: float | None = None
    """Completed fraction of the stage, from 0 to 1; None if unknown."""


InstallReporter: TypeAlias = "Callable[[InstallStep], None]"


class InstallState(StrEnum):
    """State of an extension's environment compared with its manifest."""

    MISSING = "missing"
    """Never installed."""
    INSTALLING = "installing"
    OUTDATED = "outdated"
    """Installed for other requirements, other local packages or another interpreter."""
    READY = "ready"


@dataclass(frozen=True, slots=True)
class InstallStatus:
    """Status of the installation of one extension."""

    state: InstallState
    environment: str | None = None
    """Folder of the finished environment, even if it is outdated."""
    packages: tuple[str, ...] = ()
    """Installed packages, as ``name==version``."""
    progress: InstallStep | None = None
    """Last step of the current or latest installation."""
    problem: str = ""
    """Error of the latest installation; empty if it succeeded."""


_STAGES = (
    (re.compile(r"Progress (\d+) of (\d+)$"), InstallStage.DOWNLOAD),
    (re.compile(r"Collecting |Processing |Requirement already satisfied|Looking in "), InstallStage.RESOLVE),
    (re.compile(r"Downloading |Using cached |Obtaining "), InstallStage.DOWNLOAD),
    (
        re.compile(r"Getting requirements|Installing build dep|Preparing metadata|Building |Created wheel"),
        InstallStage.BUILD,
    ),
    (re.compile(r"Installing collected packages|Successfully installed"), InstallStage.INSTALL),
)
_LONGEST_TEXT = 300


def step_of(line: str) -> InstallStep | None:
    """Return the step that a line of pip reports; None for all other lines."""
    text = line.strip()
    for pattern, stage in _STAGES:
        if found := pattern.match(text):
            done = [int(number) for number in found.groups()]
            fraction = min(done[0] / done[1], 1.0) if done and done[1] else None
            return InstallStep(stage.value, _shown(text), fraction)
    return None


def _shown(text: str) -> str:
    """Return a text without terminal control characters, because package names are untrusted."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= _LONGEST_TEXT else plain[: _LONGEST_TEXT - 1] + "…"
