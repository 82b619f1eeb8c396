"""Where each value of the configuration comes from, and problems that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.policy import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROBLEMS = 100
"""How many problems are told; nobody reads more."""
ARGUMENT = "argument"
DEFAULT = "default"


class Origin(NamedTuple):
    """Where a value was given."""

    source: str
    """``file:line``, the name of a variable, ``argument`` or ``default``."""
    line: int = 0
    """The line of the file; 0 for everything else."""


_NOWHERE = Origin(DEFAULT)


@dataclass(frozen=True, slots=True)
class ConfigProblem(Problem):
    """A problem, and where the value that it is about was given."""

    origin: Origin = _NOWHERE

    def __str__(self) -> str:
        """Return the problem on one line, the file and line first."""
        return f"{self.origin.source}: {Problem.__str__(self)}"


class Origins:
    """The origins of all values that were given, by pointer."""

    def __init__(self, whole: str) -> None:
        """``whole`` is where the configuration as such comes from: a file, the argument, or the defaults."""
        self._whole = Origin(whole)
        self._of: dict[str, Origin] = {}

    def __getitem__(self, pointer: str) -> Origin:
        """Return the origin of a value, or of the nearest one around it that was given."""
        while pointer:
            if pointer in self._of:
                return self._of[pointer]
            pointer = pointer.rpartition("/")[0]
        return self._whole

    def set(self, pointer: str, origin: Origin) -> None:
        """Say where the value at a pointer comes from, and forget what was said of values below it."""
        below = pointer + "/"
        for old in [other for other in self._of if other.startswith(below)]:
            del self._of[old]
        self._of[pointer] = origin

    def set_missing(self, pointer: str, origin: Origin) -> None:
        """Say it for an object that was made on the way to a value, unless it was there already."""
        self._of.setdefault(pointer, origin)

    def place(self, problem: Problem) -> ConfigProblem:
        """Return a problem with the origin of what it is about."""
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
