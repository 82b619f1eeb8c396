"""Readable and writable paths of the application itself."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .rights import DEVICE, EXECUTE, READ, WRITE, FsRight, NetRight
from .ruleset import PathRule, PortRule, RulesetPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.kernel.settings import LandlockSettings

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
    too_wide: tuple[str, ...] = ()
    """Folders on ``sys.path`` that are excluded, because they contain much more than modules."""


def application_paths(
    app_read: Iterable[str], app_write: Iterable[str], settings: LandlockSettings
) -> ApplicationPaths:
    """Return the paths from the host and the configuration.

    System paths are included if they exist. Paths from the host or the configuration are always included, so that
    missing ones are reported.
    """
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - unchanged without a home folder
    wide = frozenset({"/", "/home", "/root", home})
    runtime = tuple(_runtime())
    return ApplicationPaths(
        read=_unique(
            *_existing(_SYSTEM),
            *_existing(_READ_DEVICES),
            *_existing(path for path in runtime if os.path.realpath(path) not in wide),
            *app_read,
            *settings.extra_read_paths,
        ),
        write=_unique(*app_write, *settings.extra_write_paths),
        scratch=_unique(tempfile.gettempdir(), *_existing(_SCRATCH)),
        devices=_existing(_DEVICES),
        too_wide=_unique(*(path for path in runtime if os.path.realpath(path) in wide)),
    )


def application_plan(paths: ApplicationPaths, ports: Iterable[int] | None = None) -> RulesetPlan:
    """Return the plan for the paths. TCP is restricted if ports are given; otherwise by the packet filter only."""
    rules = [PathRule(path, EXECUTE) for path in paths.read]
    rules += [PathRule(path, _written(path)) for path in paths.write]
    rules += [PathRule(path, WRITE) for path in paths.scratch]
    rules += [PathRule(path, DEVICE | FsRight.READ_DIR) for path in paths.devices]
    rules.append(PathRule("/dev", FsRight.READ_DIR))
    if ports is None:
        return RulesetPlan(tuple(rules))
    return RulesetPlan(tuple(rules), tuple(PortRule(port, NetRight.CONNECT_TCP) for port in ports), handle_connect=True)


def _written(path: str) -> FsRight:
    """Return the rights for a read-write path; a device that the host names may be used as a device."""
    device = os.path.realpath(path).startswith(_DEVICE_ROOT)
    return DEVICE | READ | FsRight.IOCTL_DEV if device else WRITE | EXECUTE


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
