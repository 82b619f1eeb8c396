"""The ``sandbox.os`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.problems import nearest, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ROOT = "/sandbox/os"
_SWITCHES = ("enabled", "require", "desktop")
_PATHS = ("policy_file", "helper_socket")
_LONGEST_PAUSE = 24 * 3600


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
    values = _Section(section, _ROOT, problems)
    settings = {
        **{name: values.take(name, _switch, default=False) for name in _SWITCHES},
        **{name: values.take(name, _path, default="") for name in _PATHS},
        "refresh_seconds": values.take("refresh_seconds", _seconds, default=60),
    }
    seccomp = values.inner("seccomp")
    landlock = values.inner("landlock")
    seccomp_enabled = seccomp.take("enabled", _switch, default=False)
    landlock_enabled = landlock.take("enabled", _switch, default=False)
    extra = {name: landlock.take(name, _paths, default=()) for name in ("extra_read_paths", "extra_write_paths")}
    for part in (values, seccomp, landlock):
        part.refuse_others()
    if problems:
        raise InvalidInputError(problems)
    return OsSettings(
        **settings, seccomp=SeccompSettings(seccomp_enabled), landlock=LandlockSettings(landlock_enabled, **extra)
    )


class _Section:
    """One object of the configuration, of which each key is taken once."""

    def __init__(self, value: object, pointer: str, problems: list[Problem]) -> None:
        self._pointer = pointer
        self._problems = problems
        self._known: list[str] = []
        self._values: Mapping[Any, Any] = value if isinstance(value, dict) else {}
        if value is not None and not isinstance(value, dict):
            problems.append(Problem(pointer, f"expected an object, got {shown(value)}"))

    def take(self, name: str, read: Callable[[object], Any], *, default: Any) -> Any:
        self._known.append(name)
        if name not in self._values:
            return default
        try:
            return read(self._values[name])
        except ValueError as error:
            self._problems.append(Problem(pointer_to(self._pointer, name), str(error)))
            return default

    def inner(self, name: str) -> _Section:
        self._known.append(name)
        return _Section(self._values.get(name), pointer_to(self._pointer, name), self._problems)

    def refuse_others(self) -> None:
        for name in self._values:
            if name not in self._known:
                suggestion = nearest(str(name), self._known)
                self._problems.append(
                    Problem(pointer_to(self._pointer, str(name)), f"unknown key {shown(name)}", suggestion)
                )


def _switch(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def _seconds(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LONGEST_PAUSE:
        raise ValueError(f"expected whole seconds from 0 (off) to {_LONGEST_PAUSE}, got {shown(value)}")
    return value


def _path(value: object) -> str:
    if type(value) is not str or "\0" in value or not Path(value).is_absolute():
        raise ValueError(f"expected an absolute path, got {shown(value)}")
    return value


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of absolute paths, got {shown(value)}")  # noqa: TRY004 - a problem like others
    return tuple(map(_path, value))
