"""Problems of a manifest, with positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import InvalidInputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROBLEMS = 100
"""Maximum number of reported problems per manifest; a hostile file could have thousands."""


class Place(NamedTuple):
    """Position in a text, counted from one."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class PlacedProblem(Problem):
    """Problem with its position; zero without a text."""

    line: int = 0
    column: int = 0

    @classmethod
    def at(cls, problem: Problem, place: Place | None) -> PlacedProblem:
        """Return ``problem`` with the position ``place``."""
        return cls(problem.pointer, problem.message, problem.suggestion, *(place or (0, 0)))

    def __str__(self) -> str:
        """Return the problem on one line, the position first."""
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return place + Problem.__str__(self)

    def moved(self, pointer: str) -> PlacedProblem:
        """Return the same problem with its pointer below ``pointer``."""
        return PlacedProblem(pointer + self.pointer, self.message, self.suggestion, self.line, self.column)


class ManifestError(InvalidInputError):
    """Rejected manifest, whose extension does not run. Contains every problem, and the file if it has one."""

    def __init__(self, problems: Iterable[Problem], path: str = "") -> None:
        """Store the first problems, and a last one with the number of the others."""
        found = tuple(problems)
        if len(found) > MOST_PROBLEMS + 1:
            more = Problem("", f"and {len(found) - MOST_PROBLEMS} more problems")
            found = (*found[:MOST_PROBLEMS], more)
        super().__init__(found)
        self.path = path

    def __str__(self) -> str:
        """List all problems on one line, after the file's path."""
        return f"{self.path}: {super().__str__()}" if self.path else super().__str__()

    def diagnostics(self) -> str:
        """List the problems, one per line, below the code and the file's path."""
        head, newline, rest = super().diagnostics().partition("\n")
        return f"{head} in {self.path}{newline}{rest}" if self.path else f"{head}{newline}{rest}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the same error in another process."""
        return (type(self), (self.problems, self.path))
