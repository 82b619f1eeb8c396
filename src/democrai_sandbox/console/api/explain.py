"""Explanations of an access, layer by layer. They change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from pydantic import Field

from democrai_sandbox.console.auth import Visitor, holder, require_administrator, sandbox_of
from democrai_sandbox.errors.error_line import LONGEST
from democrai_sandbox.host.explain.explainer import explain, explain_line
from democrai_sandbox.host.explain.explanation import AccessToExplain, AccessVerdict, LayerEffect
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import chain_from_list

from . import schemas
from .openapi import operation, router
from .schemas import ApiAnswer, ApiInput, Members, SubjectText, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.explain.explanation import Explanation

explanations = router("explain")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]


class ExplainQuestion(ApiInput):
    """An access: subject, operation, target and user."""

    subject: SubjectText
    resource_type: str = Field(max_length=100)
    operation: str = Field(max_length=100)
    target: str = Field(max_length=8192)
    user_id: str = Field(default="", max_length=500)
    session_key: str = Field(default="", max_length=500)
    chain: list[SubjectText] = Field(
        default=[], max_length=50, description="The call chain around the subject, outermost first."
    )
    installing: bool = Field(default=False, description="Whether it is the install phase of an engine or extractor.")


class ExplainLine(ApiInput):
    """An error line, and its user."""

    line: str = Field(max_length=LONGEST, description="An error, a traceback, a line of the log or a problem document.")
    user_id: str = Field(default="", max_length=500)
    session_key: str = Field(default="", max_length=500)


class ExplainedLayer(ApiAnswer):
    """Answer of one layer."""

    layer: Text
    answer: LayerEffect
    text: Text
    decides: bool
    """Whether this layer decides."""
    decision_id: str
    request_id: str


class NearestRule(ApiAnswer):
    """The nearest rule, and the reason why it does not match."""

    rule: schemas.ManifestRule
    why: Text


class ChainLink(ApiAnswer):
    """One subject of the call chain."""

    subject: schemas.Named
    counts: bool
    """Whether its declarations count."""
    text: Text


class Explained(ApiAnswer):
    """Explanation of an access at this time."""

    subject: schemas.Named
    verdict: AccessVerdict
    words: Text
    layers: list[ExplainedLayer]
    access: schemas.AccessItem | None
    rule: schemas.ManifestRule | None
    nearest: NearestRule | None
    hint: Text
    entry: Members | None
    """The entry to add to `access` of the manifest."""
    file: Text
    """The manifest of the entry; empty without one."""
    kernel: Text
    """Disagreement of the kernel layer; empty without one."""
    chain: list[ChainLink]
    """The call chain, outermost first."""
    advice: list[Text]
    """Next actions, and who can take them."""


class ExplainedWord(ApiAnswer):
    """A word in a line with a separate meaning."""

    word: Text
    meaning: Text
    fix: Text


class ExplainedLine(ApiAnswer):
    """Explanation of an error line, and the current state."""

    code: str
    title: Text
    layer: str
    is_ours: bool
    """False for a symptom that the kernel layer or other causes can have."""
    meaning: Text
    cause: Text
    fix: Text
    word: ExplainedWord | None
    text: Text
    """The recognized part of the line."""
    detail: Text
    subject: Text
    operation: Text
    target: Text
    request_id: Text
    note: Text
    explanations: list[Explained]


@explanations.post("/explain", **operation(Scope.SUBJECTS_READ, body=True))
def explain_access(request: Request, question: ExplainQuestion, visitor: Reader) -> Explained:
    """Explain an access: the result now, the layer that decides, and the change that would allow it."""
    require_administrator(visitor)
    asked = AccessToExplain(
        schemas.subject_named(question.subject),
        question.resource_type,
        question.operation,
        question.target,
        question.user_id,
        question.session_key,
        chain_from_list(question.chain, pointer="/chain"),
        question.installing,
    )
    return _explained(explain(sandbox_of(request), asked))


@explanations.post("/explain/line", **operation(Scope.SUBJECTS_READ, body=True))
def explain_error_line(request: Request, given: ExplainLine, visitor: Reader) -> ExplainedLine:
    """Explain an error line and predict the same access now. Lines of other programs are refused."""
    require_administrator(visitor)
    found = explain_line(sandbox_of(request), given.line, user_id=given.user_id, session_key=given.session_key)
    entry = found.reading.entry
    return ExplainedLine.of(
        found.reading,
        **{name: getattr(entry, name) for name in ("code", "title", "is_ours", "meaning", "cause", "fix")},
        layer=entry.layer.value,
        note=found.note,
        explanations=[_explained(one) for one in found.explanations],
    )


def _explained(found: Explanation) -> Explained:
    layers = [
        ExplainedLayer.of(
            one,
            decision_id="" if one.decision is None else one.decision.id,
            request_id="" if one.request is None else one.request.id,
        )
        for one in found.layers
    ]
    return Explained.of(
        found,
        subject=found.question.subject,
        layers=layers,
        entry=None if found.entry is None else dict(found.entry),
        chain=list(reversed(found.links)),
    )
