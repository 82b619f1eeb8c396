"""What an attack is made of: its description, its expected verdict, and the ground it is played on.

Imported by every attack file, by the runner (inside the attacked process) and by the tests, so it stays light.
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
        """The same, but coming home empty-handed is as good: a library swallowed the denial."""
        return Denied(self.codes, or_nothing=True, or_errors=self.or_errors)

    @property
    def unseen(self) -> Denied:
        """The same, but a library that asks on its own may be told that nothing is there."""
        return self.quietly.or_raises(
            "FileNotFoundError", "ModuleNotFoundError", "ZipImportError", "URLError", "KeyError"
        )

    def or_raises(self, *errors: str) -> Denied:
        """The same, but these errors of the interpreter or of a library end the attack as well."""
        return Denied(self.codes, self.or_nothing, self.or_errors + errors)

    def __or__(self, other: Denied) -> Denied:
        either = self.or_nothing or other.or_nothing
        return Denied(self.codes + other.codes, either, self.or_errors + other.or_errors)


@dataclass(frozen=True, slots=True)
class Fruitless:
    """The attack is let run and gains nothing; `why` says what makes it worthless."""

    why: str


@dataclass(frozen=True, slots=True)
class Residual:
    """The attack succeeds today. `why` it does, and what `closes` it.

    `loaded` is what comes of it where the subject's code was loaded as the subject's: then its code objects are known.
    """

    why: str
    closes: str
    loaded: Denied | None = None


@dataclass(frozen=True, slots=True)
class Works:
    """No attack but honest work, of the kind that stopping the attacks could spoil: it must go on working."""


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
"""The subject broke something on the way, so any error will do: it gained nothing and nothing crashed."""


class Ground:
    """The tree an attack is played on, what the host prepared, and what the attack carried away."""

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
        """Make the tree; idempotent, so that a base directory may be looked at afterwards."""
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
        """A file outside that shows whether somebody read it, for doors that do not hand out what they read."""
        folder = f"{self.base}/elsewhere"
        os.makedirs(folder, exist_ok=True)
        path = self.write(f"{folder}/{name}", text)
        os.utime(path, ns=(0, os.stat(path).st_mtime_ns))
        return path

    def was_read(self, name: str) -> bool:
        """Whether a planted file has been read (needs a file system that keeps access times)."""
        return os.stat(f"{self.base}/elsewhere/{name}").st_atime_ns > 0

    def steal(self) -> None:
        """Read the secret and keep it; for code that runs later, where nobody would see its exception."""
        self.attempt(lambda: open(self.outside).read())

    def attempt(self, act: Callable[[], object]) -> None:
        """Run `act`, keep what it brings home or what stopped it."""
        try:
            self.loot.append(act())
        except BaseException as error:
            self.errors.append(error)

    def snapshot(self) -> dict[str, object]:
        """Everything about the trees that no attack may change."""
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
    """Stands for a guard where there is none."""

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
    """Whether nothing stops the attack, neither a guard nor the kernel: then it goes on until it has succeeded."""
    return ground.held.make is NoGuard


PATIENCE = 30
"""Seconds that something which runs elsewhere may take; nobody waits longer than until it has happened."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait until the condition holds; returns whether it does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def settle(ground: Ground) -> None:
    """Wait until something that runs elsewhere has brought something home, or was stopped."""
    wait_until(lambda: ground.loot or ground.errors)


async def settle_on_loop(ground: Ground) -> None:
    """Let the host's loop go on until something on it has brought something home, or was stopped."""
    import asyncio

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not ground.loot and not ground.errors:
        await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: what it does, what must come of it, and the host's part in it."""

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
    """Runs in the host after the guard was left; what it returns is loot too."""
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
    """Module names, absolute paths, "root" or "access times": without them the attack means nothing here."""
    unguarded: str = ""
    """Why the attack cannot succeed even without a guard; empty when it does."""
    host_writes: bool = False
    """The host changes its trees itself meanwhile, so that only what is carried away counts."""
    stage: str = ""
    """What the process it is played in has loaded already; see runner.py."""
    at_exit: bool = False
    """The attack strikes while the interpreter ends; `inside/loot` then holds what it got."""

    @property
    def id(self) -> str:
        """A unique, readable name."""
        return f"{self.file}:{self.name}"


@dataclass
class Registry:
    """The attacks of the files imported so far, by file name."""

    attacks: dict[str, dict[str, Attack]] = field(default_factory=dict)

    def add(self, entry: Attack) -> None:
        """Take an attack; two of one name in a file would hide one another."""
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
    """Start a program by the C function below `subprocess`, and wait for it."""
    read, write = os.pipe()
    encoded = [argument.encode() for argument in arguments]
    numbers = [-1] * 6
    rest = (False, False, -1, None, None, None, -1, None, False)
    pid = fork_exec(encoded, [encoded[0]], True, (write,), None, environment, *numbers, read, write, *rest)
    os.waitpid(pid, 0)


def running_version() -> tuple[int, int]:
    """The interpreter's minor version."""
    return sys.version_info[:2]
