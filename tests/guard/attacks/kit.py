"""Attacks: their description, their expected verdict, and the files that they run on.

Every attack family, the runner (inside the attacked process) and the tests import it, so it imports little.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass(frozen=True, slots=True)
class Denied:
    """The guard stops the attack with one of these codes (prefixes) or error types."""

    codes: tuple[str, ...]
    or_nothing: bool = False
    or_errors: tuple[str, ...] = ()

    @property
    def quietly(self) -> Denied:
        """The same, or nothing was gained: a library suppressed the denial."""
        return Denied(self.codes, or_nothing=True, or_errors=self.or_errors)

    @property
    def unseen(self) -> Denied:
        """The same, or a library that probes a path is told that it does not exist."""
        return self.quietly.or_raises(
            "FileNotFoundError", "ModuleNotFoundError", "ZipImportError", "URLError", "KeyError"
        )

    def or_raises(self, *errors: str) -> Denied:
        """The same, or one of these errors of the interpreter or of a library."""
        return Denied(self.codes, self.or_nothing, self.or_errors + errors)

    def __or__(self, other: Denied) -> Denied:
        either = self.or_nothing or other.or_nothing
        return Denied(self.codes + other.codes, either, self.or_errors + other.or_errors)


@dataclass(frozen=True, slots=True)
class Fruitless:
    """The attack runs and gains nothing; `why` gives the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Residual:
    """The attack succeeds today; `why` gives the reason, and `closes` what would stop it.

    `loaded` is the verdict for code that a loader marked as the subject's.
    """

    why: str
    closes: str
    loaded: Denied | None = None


@dataclass(frozen=True, slots=True)
class Works:
    """Permitted work that a defense against the attacks could break: it must keep working."""


Expectation = Denied | Fruitless | Residual | Works

FILES = Denied(("sandbox_filesystem_denied:",))
FD = Denied(("sandbox_filesystem_fd_denied:",))
FILES_OR_FD = Denied(("sandbox_filesystem_",))
MODULE = Denied(("sandbox_module_denied:",))
PROCESS = Denied(("sandbox_subprocess_denied:",))
ENVIRONMENT = Denied(("sandbox_env_denied:",))
USAGE = Denied(("GuardUsageError", "GuardSealedError"))
SANDBOX = Denied(("sandbox_", "GuardUsageError", "GuardSealedError"))
BROKEN = Denied(("",), or_nothing=True, or_errors=("",))
"""Any error: the subject damaged something, gained nothing, and nothing crashed."""


class Ground:
    """The files that an attack runs on, the values that the host prepared, and the values that the attack obtained."""

    SECRET = "the-secret-4711"

    def __init__(self, base: str) -> None:
        self.base = base
        self.outside_dir = f"{base}/outside"
        self.outside = f"{self.outside_dir}/secret.txt"
        self.inside = f"{base}/inside"
        self.readonly = f"{base}/readonly"
        self.readonly_file = f"{self.readonly}/data.txt"
        self.site = f"{base}/site"
        self.vault = f"{self.inside}/holder/vault"
        self.protected = f"{self.vault}/secret.txt"
        self.neutral = f"{base}/neutral"
        self.held = SimpleNamespace()
        self.loot: list[object] = []
        self.errors: list[BaseException] = []

    def build(self) -> None:
        """Create the files; idempotent, so that the test can inspect a base directory afterwards."""
        for folder in (self.outside_dir, self.vault, self.readonly, f"{self.site}/package", self.neutral):
            os.makedirs(folder, exist_ok=True)
        os.makedirs(os.environ["TMPDIR"], exist_ok=True)
        self.write(self.outside, self.SECRET)
        self.write(self.protected, self.SECRET)
        self.write(self.readonly_file, "data")
        self.write(f"{self.inside}/own.txt", "own")
        self.write(f"{self.site}/package/__init__.py", "VALUE = 1\n")

    @staticmethod
    def write(path: str, text: str | bytes) -> str:
        """Write a file, as the host."""
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def plant(self, name: str, text: str | bytes) -> str:
        """Create a file outside whose access time shows a read, for functions that do not return the content."""
        folder = f"{self.base}/elsewhere"
        os.makedirs(folder, exist_ok=True)
        path = self.write(f"{folder}/{name}", text)
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns))
        return path

    def was_read(self, name: str) -> bool:
        """Return whether a planted file was read (needs a file system with access times)."""
        return os.stat(f"{self.base}/elsewhere/{name}").st_atime_ns > 0

    def steal(self) -> None:
        """Read the secret and keep it; for code that runs later, whose exceptions would be lost."""
        self.attempt(lambda: open(self.outside).read())

    def attempt(self, act: Callable[[], object]) -> None:
        """Run `act`, and keep its result or its exception."""
        try:
            self.loot.append(act())
        except BaseException as error:
            self.errors.append(error)

    def snapshot(self) -> dict[str, object]:
        """Return everything about the files that no attack may change."""
        seen: dict[str, object] = {}
        for top in (self.outside_dir, self.readonly, self.vault, self.site):
            for folder, folders, files in os.walk(top):
                folders[:] = [name for name in folders if name != "__pycache__" or "site" not in folder]
                for path in (folder, *(f"{folder}/{name}" for name in files)):
                    seen[path] = _describe(path)
        return seen


def _describe(path: str) -> tuple[object, ...]:
    """Identity, metadata and content of one path, without following a link."""
    status = os.lstat(path)
    shape = (
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_ino,
        tuple(os.listxattr(path, follow_symlinks=False)),
    )
    if (status.st_mode & 0o170000) != 0o100000:
        return shape
    with open(path, "rb") as file:
        return (*shape, status.st_nlink, status.st_mtime_ns, file.read())


class NoGuard:
    """The context of a run without a guard."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def run(self, function, *arguments):
        return function(*arguments)


Companion = Callable[[Ground], object]


def is_free(ground: Ground) -> bool:
    """Return whether neither a guard nor the kernel stops the attack: it then continues until it succeeds."""
    return ground.held.make is NoGuard


TIMEOUT = 30
"""Maximum seconds to wait for other threads and processes; a wait ends as soon as its condition holds."""


def wait_until(condition: Callable[[], object], seconds: float = TIMEOUT) -> bool:
    """Wait until the condition holds, and return whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def settle(ground: Ground) -> None:
    """Wait until code that runs elsewhere has obtained something, or was stopped."""
    wait_until(lambda: ground.loot or ground.errors)


async def settle_on_loop(ground: Ground) -> None:
    """Run the host's loop until code on it has obtained something, or was stopped."""
    import asyncio

    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and not ground.loot and not ground.errors:
        await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: its action, its expected verdict, and the host's part."""

    name: str
    file: str
    text: str
    act: Companion
    expect: Expectation
    early: Companion | None = None
    """Runs in the host before the guard is installed in the process."""
    prepare: Companion | None = None
    """Runs in the host before the guard is entered."""
    after: Companion | None = None
    """Runs in the host after the guard was left; its result counts as obtained too."""
    policy: Callable[[Ground], dict[str, object]] | None = None
    """Arguments of `process_guard_context` that differ from the usual ones."""
    configure: Callable[[Ground], dict[str, object]] | None = None
    """Arguments of `configure_guard` besides the usual ones."""
    network_only: bool = False
    """The guard restricts the network and leaves the rest as it is."""
    form: str = "with"
    since: tuple[int, int] = (3, 11)
    until: tuple[int, int] = (3, 99)
    needs: tuple[str, ...] = ()
    """Module names, absolute paths, "root" or "access times": the attack is skipped without them."""
    unguarded: str = ""
    """Why the attack cannot succeed even without a guard; empty when it does."""
    host_writes: bool = False
    """The host changes its files during the attack, so that only obtained values count."""
    stage: str = ""
    """The modules that its process has loaded already; see runner.py."""
    at_exit: bool = False
    """The attack runs while the interpreter ends; `inside/loot` then holds the obtained values."""

    @property
    def id(self) -> str:
        """A unique, readable name."""
        return f"{self.file}:{self.name}"


@dataclass
class Registry:
    """The attacks of the files imported so far, by file name."""

    attacks: dict[str, dict[str, Attack]] = field(default_factory=dict)

    def add(self, entry: Attack) -> None:
        """Add an attack; its name must be unique in its file."""
        entries = self.attacks.setdefault(entry.file, {})
        if entry.name in entries:
            raise ValueError(f"two attacks are called {entry.id}")
        entries[entry.name] = entry


REGISTRY = Registry()


def attack(text: str, *, expect: Expectation, **options: object) -> Callable[[Companion], Companion]:
    """Register the decorated function as an attack; `options` are the other fields of `Attack`."""

    def register(act: Companion) -> Companion:
        file = act.__code__.co_filename.rpartition("/")[2].removesuffix(".py")
        name = str(options.pop("name", act.__name__))
        REGISTRY.add(Attack(name=name, file=file, text=text, act=act, expect=expect, **options))
        return act

    return register


def attacks_of(
    table: dict[str, Companion], text: str, *, expect: Expectation, group: str = "", **options: object
) -> None:
    """Register one attack per row of a table of small callables; `group` keeps equal names of two tables apart."""
    for name, act in table.items():
        attack(text.format(name), expect=expect, name=group + name, **options)(act)


def raw_fork_exec(fork_exec: Callable[..., int], arguments: list[str], environment: list[bytes] | None = None) -> None:
    """Start a program with the C function below `subprocess`, and wait for it."""
    read, write = os.pipe()
    encoded = [argument.encode() for argument in arguments]
    numbers = [-1] * 6
    rest = (False, False, -1, None, None, None, -1, None, False)
    pid = fork_exec(encoded, [encoded[0]], True, (write,), None, environment, *numbers, read, write, *rest)
    os.waitpid(pid, 0)


def running_version() -> tuple[int, int]:
    """Return the version of the interpreter, without the micro version."""
    return sys.version_info[:2]
