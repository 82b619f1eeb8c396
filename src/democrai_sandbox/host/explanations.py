"""What an explanation says: the question, what each layer answers, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.access.values import AccessTuple, Decision, Request
    from democrai_sandbox.policy import AccessRule, Subject

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


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """What one layer says, in words, and what stands behind it."""

    layer: str
    """``target``, ``declared``, ``denial``, ``session_approval``, ``permanent_approval``, ``request``, ``kernel``."""
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
