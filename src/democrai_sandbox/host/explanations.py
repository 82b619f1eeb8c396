"""What an explanation says: the question, what each layer answers, and the verdict."""

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


class Verdict(StrEnum):
    """What would happen."""

    ALLOWED = "allowed"
    DENIED = "denied"
    PENDING = "pending"
    """Denied for now: somebody has asked, and nobody has decided."""
    NEEDS_APPROVAL = "needs_approval"
    """Denied for now: nobody has asked yet."""
    REFUSED = "refused"
    """It cannot be asked for in this way."""


class Answer(StrEnum):
    """What one layer says."""

    ALLOWS = "allows"
    DENIES = "denies"
    SILENT = "silent"
    """It has nothing to say about it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to know."""

    subject: Subject
    resource_type: str
    operation: str
    target: str
    user_id: str = ""
    session_key: str = ""
    ancestors: SubjectChain = ()
    """The subjects around it, outermost first."""
    installing: bool = False
    """Whether it is an engine or extractor that is being installed."""

    @property
    def chain(self) -> SubjectChain:
        """Everybody who takes part, the subject itself last."""
        return append_subject(self.ancestors, self.subject)


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """What one layer says, in words, and what stands behind it."""

    layer: str
    """``target``, ``chain``, ``declared``, ``denial``, ``session_approval``, ``permanent_approval``, ``request`` or
    ``kernel``, in this order."""
    answer: Answer
    text: str
    decides: bool = False
    """Whether the verdict is this layer's."""
    decision: Decision | None = None
    request: Request | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict and how it comes about."""

    question: Question
    verdict: Verdict
    words: str
    """The verdict as a sentence."""
    layers: tuple[LayerAnswer, ...]
    access: AccessTuple | None = None
    """What was asked for, normalised; None when it was refused."""
    rule: AccessRule | None = None
    """The declared rule that covers it."""
    nearest: Nearest | None = None
    """Without such a rule, the one that lacks least."""
    hint: str = ""
    """What to declare and where, or whom to ask."""
    entry: Mapping[str, str] | None = None
    """The entry for the ``access`` list that would allow it."""
    file: str = ""
    """Where that entry belongs."""
    kernel: str = ""
    """How the kernel layer and the guard disagree; empty when they do not."""
    links: tuple[Link, ...] = ()
    """The subjects of the chain, innermost first, and whether their declarations count."""
    advice: tuple[str, ...] = ()
    """What to do about it, step by step, and who can."""


def pattern_note(question: Question) -> str:
    """Return what is to be said about a file target that looks like a pattern; empty about others."""
    if question.resource_type != ResourceType.FILESYSTEM or not pattern_in(question.target):
        return ""
    return "; file targets have no wildcards, so this is about a file of exactly that name"
