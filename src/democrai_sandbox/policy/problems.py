"""Problems of an input, the root of the error classes, and the help that each error class carries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Word:
    """A word beside a code, such as the helper's reason, with a separate meaning and fix."""

    word: str
    meaning: str
    fix: str


_LONGEST_NAME_COMPARED = 64
_LONGEST_SUGGESTION = 200


class SandboxError(Exception):
    """Base class of all errors of this package.

    Catch it to handle every error. Only its subclasses are raised. ``code`` is stable and meant for programs; the text
    may change.
    """

    code: str = "sandbox_error"
    guidance: ClassVar[str] = """
    Cause: An access was denied, an input is invalid, or a part of the sandbox failed. The code says which.
    Fix: Look up the code at the beginning of the error text, or print `diagnostics()`.
    Example:
    try:
        run()
    except SandboxError as error:
        print(error.code)
    -> worker_crashed
    See: troubleshooting.md
    """
    """Help for the code: texts in Markdown without links, an example, and pages in ``docs``."""
    guidance_words: ClassVar[tuple[Word, ...]] = ()
    """Explained words that can follow the code; not inherited."""

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

    def moved(self, pointer: str) -> Self:
        """Return the same problem with its pointer below ``pointer``."""
        return replace(self, pointer=pointer + self.pointer)


class InvalidInputError(SandboxError, ValueError):
    """An input is malformed.

    A malformed input is never read as an empty or a broader one. ``problems`` lists every problem with its place and,
    for a misspelled name, the likely one.
    """

    code: str = "invalid_input"
    guidance = """
    Cause: In declarations: a relative or empty path in `allowed_paths`, an unknown operation or key, or a malformed
    environment of a child. In requests and decisions: a pattern instead of one target, a resume context that is not
    JSON or too large, or a broader target that does not cover the request. In settings: a key file that other users can
    read, or an unsupported database. From a subject: a host such as `127.1`, `0x7f.1` or `2130706433`; user information
    (`user@host`), `%`, white space or a control character in a host; a port that is not a number; a URL with two `#`;
    or malformed HTTP on a connection that was opened for HTTP requests.
    Fix: Correct each value that the text names. Write IPv4 addresses with four decimal parts. Send credentials in a
    header or with the `auth` argument of the client.
    Example:
    parse_access([{"resource_type": "filesystem", "operation": "raed", "target": "/srv"}])
    -> InvalidInputError: /0/operation: ... (did you mean 'read'?)
    See: manifests.md
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        if not self.problems:
            raise TypeError("an InvalidInputError needs at least one problem")
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
    """A network target is empty.

    No rule can match it and no approval helps. The empty target is in a rule, in an HTTP request or in the address of
    a socket.
    """

    code: str = "network_target_missing"
    guidance = """
    Shape: network_target_missing
    Cause: A setting or variable that should hold a URL or a host is empty.
    Fix: Check the value before the call. Set the target, or remove the rule.
    Example:
    httpx.get(os.environ.get("REPORTS_URL", ""))
    -> NetworkTargetMissingError: network_target_missing
    See: troubleshooting.md
    """

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


def hint_for(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a suggestion, or nothing."""
    near = nearest(name, candidates)
    return f"; did you mean {near!r}?" if near else ""


def pointer_to(parent: str, *tokens: str | int) -> str:
    """Return the JSON pointer of a member below ``parent``, with the tokens escaped."""
    escaped = (str(token).replace("~", "~0").replace("/", "~1") for token in tokens)
    return "/".join((parent, *escaped))
