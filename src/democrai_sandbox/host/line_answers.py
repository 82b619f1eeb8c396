"""Explain an error line on a node: its meaning, and the result of the same access now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.errors.reading import read_line
from democrai_sandbox.policy import (
    VALID_OPERATIONS,
    InvalidInputError,
    Operation,
    ResourceType,
    Subject,
    SubjectKind,
    chain_from_list,
)

from .explaining import Explanation, Question, Verdict, explain
from .surveying import survey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.errors.reading import Reading
    from democrai_sandbox.policy import SubjectChain

    from .sandbox import Sandbox

_MOST = 6
_INSTALL = "install"
_PHASED = frozenset({SubjectKind.ENGINE, SubjectKind.EXTRACTOR})
_REQUESTS = (Operation.RECEIVE, Operation.SEND)


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """Meaning of a line, and the current state of its access."""

    reading: Reading
    explanations: tuple[Explanation, ...] = ()
    """Only those that are not allowed, if any; the line may not say which one it is about."""
    note: str = ""
    """Note about the explanations."""


def explain_line(sandbox: Sandbox, line: str, *, user_id: str = "", session_key: str = "") -> LineAnswer:
    """Return the meaning of a line; reject unknown lines. The caller must check who may know it."""
    reading = read_line(line)
    if not reading.resource_type or not reading.target or reading.word is not None:
        return LineAnswer(reading)
    chains = tuple(_chains(sandbox, reading))[:_MOST]
    if not chains:
        return LineAnswer(reading, note=f"unknown subject {reading.subject}: the line may come from another host")
    who, kind, installing = (user_id, session_key), reading.resource_type, reading.phase == _INSTALL
    asked = [
        explain(sandbox, Question(chain[-1], kind, operation, reading.target, *who, chain[:-1], installing))
        for chain in chains
        for operation in _operations(reading)
    ]
    standing = [one for one in asked if one.verdict is not Verdict.ALLOWED]
    if not standing:
        note = "it would be allowed now: it was declared or approved after the line was written"
        return LineAnswer(reading, tuple(asked[:_MOST]), note)
    return LineAnswer(reading, tuple(standing[:_MOST]), _note(reading, chains, standing))


def _note(reading: Reading, chains: tuple[SubjectChain, ...], standing: list[Explanation]) -> str:
    open_ends = []
    if not reading.operation and len(standing) > 1:
        open_ends.append("for which operation it was")
    if len(chains) > 1:
        open_ends.append("which of several subjects with that name it was")
    if not reading.phase and any(chain[-1].kind in _PHASED for chain in chains):
        open_ends.append("whether it was in the install phase; this answer is for the runtime phase")
    return f"the line does not say {' and '.join(open_ends)}" if open_ends else ""


def _operations(reading: Reading) -> Iterable[Operation]:
    """Return the possible operations of the line."""
    valid = VALID_OPERATIONS[ResourceType(reading.resource_type)]
    if named := tuple(Operation(one) for one in reading.operations if one in valid):
        return named
    if reading.operation in valid:
        return (Operation(reading.operation),)
    if reading.resource_type == ResourceType.NETWORK:
        return _REQUESTS if "://" in reading.target else (Operation.CONNECT,)
    return tuple(one for one in Operation if one in valid)


def _chains(sandbox: Sandbox, reading: Reading) -> Iterator[SubjectChain]:
    """Yield the possible call chains: the one in the line, or every subject with that name."""
    try:
        if reading.chain:
            yield chain_from_list(reading.chain)
            return
        if ":" in reading.subject:
            yield (Subject.parse(reading.subject),)
            return
    except InvalidInputError:
        pass  # a name with a colon
    for one in survey(sandbox):
        if one.subject.name == reading.subject:
            yield (one.subject,)
