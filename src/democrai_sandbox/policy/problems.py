"""Problems of an input, and the root of the error classes."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_NAME_COMPARED = 64
_LONGEST_SUGGESTION = 200


class SandboxError(Exception):
    """Root of all errors that this distribution raises deliberately.

    ``code`` is stable and meant for programs; the text may change.
    """

    code: str = "sandbox_error"

    def diagnostics(self) -> str:
        """Return a longer explanation for users, without a trailing newline."""
        text = str(self)
        return text if not text or text == self.code else f"{self.code}: {text}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of an input, with its location."""

    pointer: str
    """JSON pointer (RFC 6901) of the invalid value; empty for the input as a whole."""
    message: str
    suggestion: str | None = None
    """Probably intended value, ready to paste."""

    def __str__(self) -> str:
        """Return the problem on one line."""
        place = f"{self.pointer}: " if self.pointer else ""
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion is not None else ""
        return f"{place}{self.message}{hint}"

    def moved(self, pointer: str) -> Problem:
        """Return the same problem with its pointer below ``pointer``."""
        return Problem(pointer + self.pointer, self.message, self.suggestion)


class InvalidInputError(SandboxError, ValueError):
    """Rejected input, with all problems found in it."""

    code: str = "invalid_input"

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Store ``problems``, at least one."""
        self.problems: tuple[Problem, ...] = tuple(problems)
        if not self.problems:
            message = "an InvalidInputError needs at least one problem"
            raise TypeError(message)
        # The only argument, so that unpickling rebuilds the same error.
        super().__init__(self.problems)

    @classmethod
    def of(cls, message: str, *, pointer: str = "", suggestion: str | None = None) -> InvalidInputError:
        """Return an error with a single problem; a suggestion that is too long is left out."""
        if suggestion is not None and len(suggestion) > _LONGEST_SUGGESTION:
            suggestion = None
        return cls((Problem(pointer, message, suggestion),))

    def __str__(self) -> str:
        """List all problems on one line."""
        return "; ".join(str(problem) for problem in self.problems)

    def diagnostics(self) -> str:
        """List the problems, one per line, below the code."""
        count = len(self.problems)
        head = f"{self.code}: {count} problem{'s' if count > 1 else ''}"
        return "\n".join((head, *(f"  - {problem}" for problem in self.problems)))


class NetworkTargetMissingError(InvalidInputError):
    """Empty network target, which can be neither matched nor approved."""

    code: str = "network_target_missing"

    def __init__(self, problems: Iterable[Problem] = (Problem("", "network_target_missing"),)) -> None:
        """Accept problems, so that the location of the empty target can be given."""
        super().__init__(problems)

    def __str__(self) -> str:
        """Return the documented error shape, which is the code alone."""
        return self.code

    def diagnostics(self) -> str:
        """Return the location, if it is known, and the next step."""
        if any(problem.message != self.code for problem in self.problems):
            return super().diagnostics()
        places = ", ".join(problem.pointer for problem in self.problems if problem.pointer)
        where = f"{places}: " if places else ""
        return f"{self.code}: {where}the target is empty; check where its value comes from, an approval does not help"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that ``name`` is most likely a misspelling of, or None."""
    if len(name) > _LONGEST_NAME_COMPARED:
        return None
    matches = get_close_matches(name.lower(), tuple(candidates), n=1, cutoff=0.6)
    return str(matches[0]) if matches else None


def pointer_to(parent: str, *tokens: str | int) -> str:
    """Return the JSON pointer of a member below ``parent``, with the tokens escaped."""
    escaped = (str(token).replace("~", "~0").replace("/", "~1") for token in tokens)
    return "/".join((parent, *escaped))
