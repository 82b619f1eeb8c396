"""Keys of the configuration: the format of each value, its origin, and problems with their origin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.manifests.limits import LARGEST
from democrai_sandbox.policy import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ValueFormat(Enum):
    """Format of a value. In a variable, all formats except texts are YAML."""

    VALUE = "a number, true or false, or a list"
    TEXT = "a text"
    PATH = "a text, the path of a file or folder"
    PATHS = "a list of paths"
    DATABASE = "a text, the URL of a database, which may be a file"

    @property
    def is_text(self) -> bool:
        """Whether a variable contains the plain text."""
        return self in (ValueFormat.TEXT, ValueFormat.PATH, ValueFormat.DATABASE)


def _all(form: ValueFormat, *pointers: str) -> dict[str, ValueFormat]:
    return dict.fromkeys(pointers, form)


KEYS: Mapping[str, ValueFormat] = MappingProxyType(
    {
        **_all(ValueFormat.PATH, "/state_dir", "/data_dir", "/modules_path", "/engines_path", "/extractors_path"),
        **_all(ValueFormat.PATHS, "/extra_module_dirs", "/extra_engine_dirs", "/extra_extractor_dirs"),
        "/database/url": ValueFormat.DATABASE,
        "/database/key_file": ValueFormat.PATH,
        **_all(ValueFormat.VALUE, "/database/wait_seconds", "/database/connections"),
        **_all(ValueFormat.TEXT, "/network/stream/type", "/network/stream/channel"),
        "/network/stream/folder": ValueFormat.PATH,
        "/network/stream/url": ValueFormat.TEXT,
        "/network/stream/longest": ValueFormat.VALUE,
        **_all(ValueFormat.VALUE, "/sandbox/os/enabled", "/sandbox/os/require", "/sandbox/os/desktop"),
        **_all(ValueFormat.PATH, "/sandbox/os/policy_file", "/sandbox/os/helper_socket"),
        "/sandbox/os/refresh_seconds": ValueFormat.VALUE,
        **_all(ValueFormat.VALUE, "/sandbox/os/seccomp/enabled", "/sandbox/os/landlock/enabled"),
        "/sandbox/os/landlock/extra_read_paths": ValueFormat.PATHS,
        "/sandbox/os/landlock/extra_write_paths": ValueFormat.PATHS,
        "/sandbox/guard/native_packages": ValueFormat.VALUE,
        **_all(ValueFormat.VALUE, "/sandbox/worker/preload", "/sandbox/worker/idle_seconds", "/sandbox/worker/warm"),
        **_all(ValueFormat.VALUE, *(f"/sandbox/limits/{name}" for name in LARGEST)),
        **_all(ValueFormat.VALUE, "/sandbox/call_timeout", "/sandbox/load_timeout", "/sandbox/managers"),
        **_all(ValueFormat.VALUE, "/sandbox/pending_days", "/sandbox/poll_seconds"),
        **_all(ValueFormat.TEXT, "/extensions/mcp/approval", "/server/host"),
        "/server/port": ValueFormat.VALUE,
        "/server/public_url": ValueFormat.TEXT,
        "/server/trusted_proxies": ValueFormat.VALUE,
        **_all(ValueFormat.VALUE, "/console/enabled", "/console/idle_minutes", "/console/session_hours"),
        **_all(ValueFormat.VALUE, "/console/reauth_minutes", "/console/reauth_high_risk", "/console/unused_days"),
    }
)
"""Keys with fixed names."""

OPEN: Mapping[str, ValueFormat] = MappingProxyType(
    {"/network/endpoints": ValueFormat.TEXT, "/sandbox/isolation": ValueFormat.TEXT}
)
"""Objects with free keys."""


NAMED: Mapping[str, Mapping[str, ValueFormat]] = MappingProxyType(
    {
        "/extensions/models": {
            "endpoint": ValueFormat.TEXT,
            "model": ValueFormat.TEXT,
            "api_key": ValueFormat.TEXT,
            "api_key_file": ValueFormat.PATH,
            "timeout_seconds": ValueFormat.VALUE,
            "options": ValueFormat.VALUE,
        },
        "/extensions/mcp/servers": {
            "endpoint_url": ValueFormat.TEXT,
            "transport": ValueFormat.TEXT,
            "enabled": ValueFormat.VALUE,
            "timeout_ms": ValueFormat.VALUE,
        },
        "/extensions/engines": {"install": ValueFormat.VALUE, "settings": ValueFormat.VALUE},
        "/extensions/extractors": {"install": ValueFormat.VALUE, "settings": ValueFormat.VALUE},
    }
)
"""Objects of objects with free names: the keys of each entry."""


def format_of(pointer: str) -> ValueFormat:
    """Return the format of the value at a pointer; YAML for unknown keys and objects."""
    entry, _, key = pointer.rpartition("/")
    above = entry.rpartition("/")[0]
    return KEYS.get(pointer) or OPEN.get(entry) or NAMED.get(above, {}).get(key) or ValueFormat.VALUE


MOST_PROBLEMS = 100
"""Maximum number of reported problems."""
ARGUMENT = "argument"
DEFAULT = "default"


class Origin(NamedTuple):
    """Place where a value was set."""

    source: str
    """``file:line``, the name of a variable, ``argument`` or ``default``."""
    line: int = 0
    """Line of the file; 0 for other origins."""


_NOWHERE = Origin(DEFAULT)


@dataclass(frozen=True, slots=True)
class ConfigProblem(Problem):
    """Problem with the origin of its value."""

    origin: Origin = _NOWHERE

    @classmethod
    def at(cls, origin: Origin, problem: Problem) -> ConfigProblem:
        """Return a problem with an origin."""
        return cls(problem.pointer, problem.message, problem.suggestion, origin)

    def __str__(self) -> str:
        """Return the problem on one line, the file and line first."""
        return f"{self.origin.source}: {Problem.__str__(self)}"


class Origins:
    """Origins of all given values, by pointer."""

    def __init__(self, whole: str) -> None:
        """``whole`` is the origin of the whole configuration: a file, the argument, or the defaults."""
        self._whole = Origin(whole)
        self._of: dict[str, Origin] = {}

    def __getitem__(self, pointer: str) -> Origin:
        """Return the origin of a value, or of the nearest given value around it."""
        while pointer:
            if pointer in self._of:
                return self._of[pointer]
            pointer = pointer.rpartition("/")[0]
        return self._whole

    def set(self, pointer: str, origin: Origin) -> None:
        """Set the origin of a value, and remove the origins of values below it."""
        below = pointer + "/"
        for old in [other for other in self._of if other.startswith(below)]:
            del self._of[old]
        self._of[pointer] = origin

    def set_missing(self, pointer: str, origin: Origin) -> None:
        """Set the origin of an object that was created on the way to a value, unless it has one."""
        self._of.setdefault(pointer, origin)

    def place(self, problem: Problem) -> ConfigProblem:
        """Return a problem with the origin of its value."""
        return problem if isinstance(problem, ConfigProblem) else ConfigProblem.at(self[problem.pointer], problem)


def refusal(problems: Iterable[ConfigProblem]) -> ConfigInvalid:
    """Return the error with all problems: those of the file from top to bottom, then all others."""
    found = sorted(problems, key=lambda problem: problem.origin.line or float("inf"))
    if len(found) > MOST_PROBLEMS + 1:
        more = Problem("", f"and {len(found) - MOST_PROBLEMS} further problems")
        return ConfigInvalid([*found[:MOST_PROBLEMS], more])
    return ConfigInvalid(found)
