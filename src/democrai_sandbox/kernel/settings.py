"""The ``sandbox.os`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.sections import Section, absolute_path, each, switch, whole

_ROOT = "/sandbox/os"
_SWITCHES = ("enabled", "require", "desktop")
_PATHS = ("policy_file", "helper_socket")
_LONGEST_PAUSE = 24 * 3600

_seconds = whole(0, _LONGEST_PAUSE, "whole seconds (0 turns it off)")
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
    """``sandbox.os``: which controls of the kernel are wanted, and where the helper is found."""

    enabled: bool = False
    """The egress allowlist, and confined children."""
    policy_file: str = ""
    """Empty for one of this process's own in the data directory; ``{pid}`` stands for the process."""
    helper_socket: str = ""
    """Empty for one of this process's own in the state directory; ``{pid}`` stands for the process."""
    refresh_seconds: int = 60
    """How often names are resolved again; 0 turns that off."""
    require: bool = False
    """Refuse to start when a control that is wanted is less than active."""
    desktop: bool = False
    """Ask the person at the machine (``pkexec``) instead of ``sudo``."""
    seccomp: SeccompSettings = field(default_factory=SeccompSettings)
    landlock: LandlockSettings = field(default_factory=LandlockSettings)

    @property
    def wants_spawn_server(self) -> bool:
        """Whether children are started by the spawn server: always when this process itself may not execute."""
        return self.enabled or self.seccomp.enabled


def os_settings(section: object) -> OsSettings:
    """Read the section as it stands in the configuration; refuse it with everything that is wrong with it."""
    problems: list[Problem] = []
    values = Section(section, _ROOT, problems)
    settings: dict[str, Any] = {
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
