"""Subjects, call chains, and the identity of callers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from .problems import InvalidInputError, Problem, nearest, pointer_to
from .text import exact_str, invisible_character, shown

LONGEST_SUBJECT_NAME = 255


class CallIdentity(NamedTuple):
    """Identity of a caller: its user and session, its rights, and the task it works in. Missing parts are empty."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


class SubjectKind(StrEnum):
    """Kind of a subject."""

    MODULE = "module"
    TASK = "task"
    ENGINE = "engine"
    EXTRACTOR = "extractor"
    MCP = "mcp"
    TOOL = "tool"
    AGENT = "agent"
    PIPELINE = "pipeline"
    SKILL = "skill"
    """For hosts that run their own skills with ``process_guard_context``; the runtime runs none."""
    CORE = "core"
    """The host, when it requests access or runs its code under a guard."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Identity of an extension while it runs.

    The text form is ``kind:name``. A name may contain colons; the first colon separates, because no kind contains one.
    """

    kind: SubjectKind
    name: str

    def __post_init__(self) -> None:
        """Convert the fields to exact values, or raise with all problems."""
        problems: list[Problem] = []
        kind = _parse_kind(self.kind, problems)
        name = _parse_name(self.name, problems)
        if problems:
            raise InvalidInputError(problems)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "name", name)

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Parse ``kind:name``."""
        exact = exact_str(text)
        if exact is None:
            raise InvalidInputError.of(f"expected a subject as 'kind:name', got {shown(text)}")
        kind, colon, name = exact.partition(":")
        if not colon:
            raise InvalidInputError.of(f"expected a subject as 'kind:name', got {shown(exact)}")
        return cls(kind, name)  # type: ignore[arg-type]  # the constructor turns the text into a SubjectKind

    def __str__(self) -> str:
        """Return the text form, which ``parse`` reads."""
        return f"{self.kind.value}:{self.name}"


SubjectChain: TypeAlias = tuple[Subject, ...]
"""Call chain, outermost subject first."""


def append_subject(chain: SubjectChain, subject: Subject) -> SubjectChain:
    """Return the chain with ``subject`` at its end; a subject that calls itself is not repeated."""
    return chain if chain and chain[-1] == subject else (*chain, subject)


def chain_to_list(chain: SubjectChain) -> list[str]:
    """Return the chain as plain JSON data."""
    return [str(subject) for subject in chain]


def chain_from_list(value: object, *, pointer: str = "/subject_chain") -> SubjectChain:
    """Parse the output of ``chain_to_list``, or raise with all problems."""
    if not isinstance(value, list | tuple):
        raise InvalidInputError.of(f"expected a list of 'kind:name', got {shown(value)}", pointer=pointer)
    chain: list[Subject] = []
    problems: list[Problem] = []
    for index, item in enumerate(value):
        try:
            chain.append(Subject.parse(item))
        except InvalidInputError as error:
            place = pointer_to(pointer, index)
            problems += [Problem(place, problem.message, problem.suggestion) for problem in error.problems]
    if problems:
        raise InvalidInputError(problems)
    return tuple(chain)


def _parse_kind(value: object, problems: list[Problem]) -> SubjectKind | None:
    text = exact_str(value)
    if text is None:
        problems.append(Problem("/kind", f"expected the kind of a subject, got {shown(value)}"))
        return None
    try:
        return SubjectKind(text)
    except ValueError:
        message = f"unknown subject kind {shown(text)}; one of: {', '.join(SubjectKind)}"
        problems.append(Problem("/kind", message, nearest(text, SubjectKind)))
    return None


def _parse_name(value: object, problems: list[Problem]) -> str | None:
    name = exact_str(value)
    if name is None:
        message = f"expected the name of a subject, got {shown(value)}"
    elif not name:
        message = "the name of a subject is empty"
    elif len(name) > LONGEST_SUBJECT_NAME:
        message = f"the name of a subject is longer than {LONGEST_SUBJECT_NAME} characters"
    elif invisible := invisible_character(name):
        message = f"the name of a subject contains the invisible character {invisible}"
    elif name != name.strip():
        message = f"the name of a subject starts or ends with white space: {shown(name)}"
    else:
        return name
    problems.append(Problem("/name", message))
    return None
