"""Explanations: why something would be allowed now, or not, layer by layer. Asking changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from pydantic import Field

from democrai_sandbox.console.admitting import require_administrator
from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host.explaining import Answer as LayerState
from democrai_sandbox.host.explaining import Question, Verdict, explain
from democrai_sandbox.host.scopes import Scope

from . import schemas
from .documenting import router, told
from .schemas import Answer, Members, Order, SubjectText, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.explaining import LayerAnswer

explaining = router("explain")


class ExplainQuestion(Order):
    """Who would do what to which target, and for whom."""

    subject: SubjectText
    resource_type: str = Field(max_length=100)
    operation: str = Field(max_length=100)
    target: str = Field(max_length=8192)
    user_id: str = Field(default="", max_length=500)
    session_key: str = Field(default="", max_length=500)


class Layer(Answer):
    """What one layer says."""

    layer: Text
    answer: LayerState
    text: Text
    decides: bool
    """Whether it is the one that settles the matter."""
    decision_id: str
    request_id: str


class NearestRule(Answer):
    """The rule that comes closest, and why it does not do."""

    rule: schemas.Rule
    why: Text


class Explained(Answer):
    """What would happen now."""

    verdict: Verdict
    words: Text
    layers: list[Layer]
    access: schemas.Access | None
    rule: schemas.Rule | None
    nearest: NearestRule | None
    hint: Text
    entry: Members | None
    """What to add to the list of access in the manifest."""
    file: Text
    """The manifest that it belongs in; empty where there is none."""
    kernel: Text
    """Where the kernel layer disagrees; empty when it does not."""


@explaining.post("/explain", **told(Scope.SUBJECTS_READ, body=True))
def explain_access(
    request: Request, question: ExplainQuestion, visitor: Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]
) -> Explained:
    """Say what would happen now if a subject did something, which layer settles it, and what would change that."""
    require_administrator(visitor)
    asked = Question(
        schemas.subject_named(question.subject),
        question.resource_type,
        question.operation,
        question.target,
        question.user_id,
        question.session_key,
    )
    found = explain(sandbox_of(request), asked)
    return Explained.model_validate(
        {
            "verdict": found.verdict,
            "words": found.words,
            "layers": [_layer(one) for one in found.layers],
            "access": found.access,
            "rule": found.rule,
            "nearest": found.nearest,
            "hint": found.hint,
            "entry": None if found.entry is None else dict(found.entry),
            "file": found.file,
            "kernel": found.kernel,
        }
    )


def _layer(one: LayerAnswer) -> Layer:
    return Layer(
        layer=one.layer,
        answer=one.answer,
        text=one.text,
        decides=one.decides,
        decision_id="" if one.decision is None else one.decision.id,
        request_id="" if one.request is None else one.request.id,
    )
