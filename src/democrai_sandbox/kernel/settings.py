"""The ``sandbox.os`` section of the configuration, and the folders and files of an application."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.config_section import ConfigSection, absolute_path, each, switch, whole

_ROOT = "/sandbox/os"
_SWITCHES = ("require", "desktop")
_PATHS = ("policy_file", "helper_socket")
_LONGEST_PAUSE = 24 * 3600

_seconds = whole(0, _LONGEST_PAUSE, "whole seconds (0 disables it)")
_paths = each(absolute_path, "absolute paths")


@dataclass(frozen=True, slots=True)
class LandlockSettings:
    """``sandbox.os.landlock``."""

    enabled: bool = False
    extra_read_paths: tuple[str, ...] = ()
    extra_write_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeccompSettings:
    """``sandbox.os.seccomp``."""

    enabled: bool = False


@dataclass(frozen=True, slots=True)
class OsSettings:
    """``sandbox.os``: enabled kernel controls, and the paths and options of the helper."""

    enabled: bool | None = None
    """True enables the egress allowlist; False leaves children unconfined; None confines them where possible."""
    policy_file: str = ""
    """Empty for a separate file per process in the data directory; ``{pid}`` stands for the process id."""
    helper_socket: str = ""
    """Empty for a separate socket per process in the state directory; ``{pid}`` stands for the process id."""
    refresh_seconds: int = 60
    """Seconds between two resolutions of host names; 0 disables them."""
    require: bool = False
    """Refuse to start when an enabled control is not fully active."""
    desktop: bool = False
    """Ask the user at the machine (``pkexec``) instead of using ``sudo``."""
    seccomp: SeccompSettings = field(default_factory=SeccompSettings)
    landlock: LandlockSettings = field(default_factory=LandlockSettings)

    @property
    def wants_spawn_server(self) -> bool:
        """Whether the spawn server starts and confines children, at least where that is possible."""
        return self.enabled is not False or self.seccomp.enabled

    @property
    def needs_spawn_server(self) -> bool:
        """Whether children must not start in another way: it is required, or this process cannot execute programs."""
        return self.enabled is True or self.seccomp.enabled


@dataclass(frozen=True, slots=True)
class ApplicationPlaces:
    """Folders of the application. Only folders that exist when Landlock is applied stay accessible."""

    data_dir: str
    """Read-write; contains the policy file of the egress allowlist."""
    state_dir: str
    """Read-write; contains the helper's socket."""
    write: tuple[str, ...] = ()
    """Additional writable folders: configuration, cache, logs, modules, engines, extractors, media."""
    read: tuple[str, ...] = ()
    """Additional readable folders."""

    def __post_init__(self) -> None:
        """Reject relative paths, which depend on the working directory."""
        for path in (self.data_dir, self.state_dir, *self.write, *self.read):
            if not os.path.isabs(path) or "\0" in path:  # noqa: PTH117 - the same
                raise KernelLayerError(
                    f"{path!r} is not an absolute path", fix="pass the application's folders as absolute paths"
                )

    def check(self) -> None:
        """Raise when a folder that the kernel layer writes to is missing."""
        for name, path in (("data", self.data_dir), ("state", self.state_dir)):
            if not os.path.isdir(path):  # noqa: PTH112 - a str path
                raise KernelLayerError(
                    f"the {name} directory {path!r} does not exist", fix="create it before you call prepare()"
                )


def policy_path(configured: str, data_dir: str | os.PathLike[str], pid: int) -> str:
    """Return the path of a process's policy file."""
    return _placed(configured, Path(data_dir) / f"os_sandbox_allowlist_{pid}.json", pid)


def socket_path(configured: str, state_dir: str | os.PathLike[str], pid: int) -> str:
    """Return the path of a process's helper socket."""
    return _placed(configured, Path(state_dir) / f"os_sandbox_helper_{pid}.sock", pid)


def _placed(configured: str, default: Path, pid: int) -> str:
    return configured.replace("{pid}", str(pid)) if configured else str(default.absolute())


def os_settings(section: object) -> OsSettings:
    """Validate the section; raise one error with all problems."""
    problems: list[Problem] = []
    values = ConfigSection(section, _ROOT, problems)
    settings: dict[str, Any] = {
        "enabled": values.take("enabled", switch, default=None),
        **{name: values.take(name, switch, default=False) for name in _SWITCHES},
        **{name: values.take(name, absolute_path, default="") for name in _PATHS},
        "refresh_seconds": values.take("refresh_seconds", _seconds, default=60),
    }
    seccomp = values.inner("seccomp")
    landlock = values.inner("landlock")
    seccomp_enabled = seccomp.take("enabled", switch, default=False)
    landlock_enabled = landlock.take("enabled", switch, default=False)
    extra = {name: landlock.take(name, _paths, default=()) for name in ("extra_read_paths", "extra_write_paths")}
    for part in (values, seccomp, landlock):
        part.refuse_others()
    if problems:
        raise InvalidInputError(problems)
    return OsSettings(
        **settings, seccomp=SeccompSettings(seccomp_enabled), landlock=LandlockSettings(landlock_enabled, **extra)
    )
