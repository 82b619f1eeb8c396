"""Explanation: the question, the answer of each layer, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from democrai_sandbox.policy import ResourceType, append_subject
from democrai_sandbox.policy.patterns import pattern_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.access.values import AccessTuple, Decision, Request
    from democrai_sandbox.policy import AccessRule, Subject, SubjectChain

    from .chains import Link
    from .nearness import Nearest


OTHER_SESSIONS = "sessions with an approval:"
"""Start of the number of other sessions in the text of the layer ``session_approval``."""


class Verdict(StrEnum):
    """Result of an access."""

    ALLOWED = "allowed"
    DENIED = "denied"
    PENDING = "pending"
    """Denied until a pending request is approved."""
    NEEDS_APPROVAL = "needs_approval"
    """Denied; no request is pending."""
    REFUSED = "refused"
    """The question is invalid."""


class Answer(StrEnum):
    """Answer of one layer."""

    ALLOWS = "allows"
    DENIES = "denies"
    SILENT = "silent"
    """The layer does not decide."""


@dataclass(frozen=True, slots=True)
class Question:
    """Access to explain."""

    subject: Subject
    resource_type: str
    operation: str
    target: str
    user_id: str = ""
    session_key: str = ""
    ancestors: SubjectChain = ()
    """Callers of the subject, outermost first."""
    installing: bool = False
    """Whether the question is about the install phase of an engine or extractor."""

    @property
    def chain(self) -> SubjectChain:
        """All subjects of the call chain, the subject itself last."""
        return append_subject(self.ancestors, self.subject)


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """Answer of one layer, with its reasons."""

    layer: str
    """``target``, ``chain``, ``declared``, ``denial``, ``session_approval``, ``permanent_approval``, ``request`` or
    ``kernel``, in this order."""
    answer: Answer
    text: str
    decides: bool = False
    """Whether this layer decides."""
    decision: Decision | None = None
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Verdict with the answers of all layers."""

    question: Question
    verdict: Verdict
    words: str
    """Verdict as a sentence."""
    layers: tuple[LayerAnswer, ...]
    access: AccessTuple | None = None
    """Normalized access; None for an invalid question."""
    rule: AccessRule | None = None
    """Declared rule that covers the access."""
    nearest: Nearest | None = None
    """Nearest rule if no rule covers the access."""
    hint: str = ""
    """Entry to declare and its place, or the request to file."""
    entry: Mapping[str, str] | None = None
    """Entry for the ``access`` list that would allow it."""
    file: str = ""
    """Place for that entry."""
    kernel: str = ""
    """Difference between the kernel layer and the guard; empty if they agree."""
    links: tuple[Link, ...] = ()
    """Subjects of the call chain, innermost first, and whether their declarations count."""
    advice: tuple[str, ...] = ()
    """Next steps, and who can take them."""


def pattern_note(question: Question) -> str:
    """Return a note for a file target that looks like a pattern; empty for others."""
    if question.resource_type != ResourceType.FILESYSTEM or not pattern_in(question.target):
        return ""
    return "; file targets have no wildcards, so this means a file with exactly this name"
