"""Origin of each configuration value, and problems with their origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.policy import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        if isinstance(problem, ConfigProblem):
            return problem
        return ConfigProblem(problem.pointer, problem.message, problem.suggestion, self[problem.pointer])


def refusal(problems: Iterable[ConfigProblem]) -> ConfigInvalid:
    """Return the error with all problems: those of the file from top to bottom, then all others."""
    found = sorted(problems, key=lambda problem: problem.origin.line or float("inf"))
    if len(found) > MOST_PROBLEMS + 1:
        more = Problem("", f"and {len(found) - MOST_PROBLEMS} further problems")
        return ConfigInvalid([*found[:MOST_PROBLEMS], more])
    return ConfigInvalid(found)
