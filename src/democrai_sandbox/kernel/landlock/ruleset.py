"""Create a kernel ruleset from a plan of allowed access, apply it to this process, and report its coverage."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError, KernelUnsupported
from democrai_sandbox.kernel.spawn.protocol import LandlockPlan
from democrai_sandbox.kernel.status import ControlState, ControlStatus

from . import raw_ruleset
from . import rights as landlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.kernel.settings import LandlockSettings

_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class PathRule:
    """Allowed rights for a path and everything below it."""

    path: str
    rights: landlock.FsRight

    def __post_init__(self) -> None:
        """Reject relative paths, which depend on the working directory."""
        if not self.path.startswith("/") or "\0" in self.path:
            raise KernelLayerError(f"the Landlock rule path {self.path!r} is not absolute", fix="use an absolute path")


@dataclass(frozen=True, slots=True)
class PortRule:
    """Allowed rights for a TCP port."""

    port: int
    rights: landlock.NetRight

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _HIGHEST_PORT:
            raise KernelLayerError(
                f"the Landlock rule port {self.port!r} is invalid", fix=f"use a number from 0 to {_HIGHEST_PORT}"
            )


@dataclass(frozen=True, slots=True)
class RulesetPlan:
    """Allowed access. All other handled access is refused."""

    paths: tuple[PathRule, ...] = ()
    ports: tuple[PortRule, ...] = ()
    handle_connect: bool = False
    """Whether TCP is restricted to the listed ports."""
    handle_bind: bool = False
    scopes: bool = True
    """Whether signals and abstract unix sockets are limited to the confined processes."""


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Open ruleset in the kernel."""

    fd: int
    covered: tuple[str, ...]
    missing: tuple[str, ...]
    """Missing paths. Files created there later stay inaccessible."""
    features: tuple[str, ...]


def numbers(plan: RulesetPlan, abi: int) -> LandlockPlan:
    """Return the plan in numbers, limited to the rights of this ABI, as the spawn server takes it."""
    known = landlock.supported(abi)
    net = known.net & _wanted_net(plan)
    paths: dict[str, landlock.FsRight] = {}
    for rule in plan.paths:
        paths[rule.path] = paths.get(rule.path, landlock.FsRight(0)) | rule.rights & known.fs
    ports: dict[int, landlock.NetRight] = {}
    for port in plan.ports:
        ports[port.port] = ports.get(port.port, landlock.NetRight(0)) | port.rights & net
    return LandlockPlan(
        int(known.fs),
        int(net),
        int(known.scoped if plan.scopes else 0),
        [(path, int(rights)) for path, rights in paths.items()],
        [(number, int(rights)) for number, rights in ports.items() if rights],
    )


@contextmanager
def build(plan: RulesetPlan, abi: int) -> Iterator[Ruleset]:
    """Create the ruleset without applying it, and close it in the end; restrictions stay."""
    native = landlock.native_module()
    if abi < 1:
        raise KernelUnsupported("Landlock is not available", fix="use Linux 5.13 or newer")
    try:
        plain = numbers(plan, abi)
        fd, missing = raw_ruleset.build(native, plain.fs, plain.net, plain.scoped, plain.paths, plain.ports)
    except OSError as error:
        raise KernelLayerError(
            f"the Landlock ruleset could not be created for ABI {abi}: {error}", fix=_fix(error, len(plan.paths))
        ) from error
    absent = frozenset(missing)
    covered = tuple(path for path, _ in plain.paths if path not in absent)
    features = tuple(feature.name for feature in landlock.supported(abi).features if _wants(plan, feature))
    try:
        yield Ruleset(fd, covered, tuple(missing), features)
    finally:
        os.close(fd)


def _wanted_net(plan: RulesetPlan) -> landlock.NetRight:
    connect = landlock.NetRight.CONNECT_TCP if plan.handle_connect else landlock.NetRight(0)
    return connect | (landlock.NetRight.BIND_TCP if plan.handle_bind else landlock.NetRight(0))


def _wants(plan: RulesetPlan, feature: landlock.Feature) -> bool:
    return bool(feature.fs or feature.net & _wanted_net(plan) or (feature.scoped and plan.scopes))


def _fix(error: OSError, paths: int) -> str:
    if error.filename is not None:
        return f"check {error.filename!r}, one of the {paths} paths of the lists"
    return "raise the limit of open files, or check the kernel log for landlock"


NAME = "landlock"
_TASKS = "/proc/self/task"
_MOST_LAYERS = 16

_FIX_THREADS = "apply Landlock before any thread starts"
_FIX_KERNEL = "use a newer kernel: Linux 6.12 supports all restrictions"


def apply(plan: RulesetPlan, *, support: landlock.LandlockSupport | None = None) -> ControlStatus:
    """Restrict the calling thread and everything that it starts, permanently; return the coverage."""
    support = landlock.landlock_support() if support is None else support
    if support.abi < 1:
        return unsupported(support)
    with build(plan, support.abi) as built:
        # Read before and after: a thread that another thread starts meanwhile is not covered.
        others = _other_threads()
        synchronised = _restrict(built.fd, synchronise=support.synchronises_threads)
        threads = 1 + len(others | _other_threads())
    return _status(plan, support, built, threads, threads if synchronised else 1)


def unsupported(support: landlock.LandlockSupport) -> ControlStatus:
    """Return the status of a machine without Landlock."""
    return ControlStatus(
        NAME,
        ControlState.UNSUPPORTED,
        support.reason,
        support.fix,
        {"abi": support.abi, "kernel_abi": support.kernel_abi, "forced": support.forced},
    )


def _restrict(ruleset: int, *, synchronise: bool) -> bool:
    native = landlock.native_module()
    try:
        native.landlock_restrict(ruleset, landlock.THREAD_SYNC if synchronise else 0)
    except OSError as error:
        if not synchronise or error.errno != errno.EINVAL:  # EINVAL: the kernel does not know the flag
            raise _refused(error) from error
        return _restrict(ruleset, synchronise=False)
    return synchronise


def _refused(error: OSError) -> KernelLayerError:
    if error.errno == errno.E2BIG:
        return KernelLayerError(
            f"Landlock was not applied: this process already has {_MOST_LAYERS} Landlock layers, the maximum",
            fix="start the application from a process with fewer layers",
        )
    return KernelLayerError(f"Landlock was not applied: {error}", fix="check the kernel log for landlock")


def _other_threads() -> set[int]:
    """Return the other threads. They keep all their rights, also for the threads that they start."""
    try:
        numbers = {int(name) for name in os.listdir(_TASKS)}  # noqa: PTH208 - only names are needed
    except OSError:
        # /proc is missing or no longer readable: use the threads that Python knows.
        numbers = {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}
    return numbers - {threading.get_native_id()}


def _status(
    plan: RulesetPlan, support: landlock.LandlockSupport, built: Ruleset, threads: int, covered: int
) -> ControlStatus:
    without = [feature for feature in landlock.supported(support.abi).lacking if _wants(plan, feature)]
    holes = [feature.without for feature in without if feature.without]
    reasons = [f"{_threads(threads - covered)} not covered, because they existed before"] if covered < threads else []
    reasons += [f"ABI {support.abi}: {hole}" for hole in holes]
    fixes = ([_FIX_THREADS] if covered < threads else []) + ([_FIX_KERNEL] if holes else [])
    details = {
        "abi": support.abi,
        "kernel_abi": support.kernel_abi,
        "forced": support.forced,
        "features": built.features,
        "lacking": tuple(feature.name for feature in without),
        "paths": len(built.covered),
        "missing": built.missing,
        "threads": threads,
        "threads_covered": covered,
    }
    state = ControlState.PARTIAL if reasons else ControlState.ACTIVE
    return ControlStatus(NAME, state, "; ".join(reasons), "; ".join(fixes), details)


def _threads(count: int) -> str:
    return "1 thread is" if count == 1 else f"{count} threads are"


_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt"),
    *("/etc", "/proc", "/sys", "/run"),
)
# Never the whole /dev: it contains the disks, through which a root application could reach every file.
_READ_DEVICES = ("/dev/random", "/dev/urandom")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_SCRATCH = ("/dev/shm", "/dev/mqueue")  # noqa: S108 - named, not used
_DEVICE_ROOT = "/dev/"


@dataclass(frozen=True, slots=True)
class ApplicationPaths:
    """Paths of the application, which also limit everything that it starts.

    Programs can be executed from the first two lists, because environments of engines are in writable folders. seccomp
    decides whether the application itself may execute, and the subject's rules decide for a child.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    scratch: tuple[str, ...] = ()
    """Writable, but not executable: a program placed in the temporary folder does not run."""
    devices: tuple[str, ...] = ()
    """Opened for reading and writing."""


def application_paths(
    app_read: Iterable[str], app_write: Iterable[str], settings: LandlockSettings
) -> ApplicationPaths:
    """Return the paths from the host and the configuration.

    System paths are included if they exist. Paths from the host or the configuration are always included, so that
    missing ones are reported.
    """
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - unchanged without a home folder
    wide = frozenset({"/", "/home", "/root", home})  # on sys.path, but with much more than modules
    return ApplicationPaths(
        read=_unique(
            *_existing(_SYSTEM),
            *_existing(_READ_DEVICES),
            *_existing(path for path in _runtime() if os.path.realpath(path) not in wide),
            *app_read,
            *settings.extra_read_paths,
        ),
        write=_unique(*app_write, *settings.extra_write_paths),
        scratch=_unique(tempfile.gettempdir(), *_existing(_SCRATCH)),
        devices=_existing(_DEVICES),
    )


def application_plan(paths: ApplicationPaths) -> RulesetPlan:
    """Return the plan for the paths. TCP is restricted by the packet filter only."""
    rules = [PathRule(path, landlock.EXECUTE) for path in paths.read]
    rules += [PathRule(path, _written(path)) for path in paths.write]
    rules += [PathRule(path, landlock.WRITE) for path in paths.scratch]
    rules += [PathRule(path, landlock.DEVICE | landlock.FsRight.READ_DIR) for path in paths.devices]
    rules.append(PathRule("/dev", landlock.FsRight.READ_DIR))
    return RulesetPlan(tuple(rules))


def _written(path: str) -> landlock.FsRight:
    """Return the rights for a read-write path; a device that the host names may be used as a device."""
    device = os.path.realpath(path).startswith(_DEVICE_ROOT)
    return landlock.DEVICE | landlock.READ | landlock.FsRight.IOCTL_DEV if device else landlock.WRITE | landlock.EXECUTE


def _runtime() -> Iterator[str]:
    """Yield the paths of the interpreter, its libraries and this package."""
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    if sys.executable:
        yield sys.executable
        yield os.path.realpath(sys.executable)
    yield str(Path(__file__).resolve().parents[2])
    # Skip an empty entry, which means the working directory.
    yield from (path for path in sys.path if path.startswith("/"))


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if os.path.exists(path))  # noqa: PTH110 - str paths


def _unique(*paths: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))
