"""What to do about a verdict, step by step: what to declare, what to ask for, and who can decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import fixes
from democrai_sandbox.policy import ResourceType, SubjectKind

from .explanations import Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.access.values import AccessTuple

    from .explanations import Explanation

WHO_DECIDES = (
    "Only a user who is not scoped to an organization and has the super role or the super access level can decide; "
    "guarded code never can."
)


def advice_for(found: Explanation, *, is_final: bool) -> tuple[str, ...]:
    """Return the steps, in the order in which they are worth trying; none for what is allowed."""
    if found.verdict in (Verdict.ALLOWED, Verdict.REFUSED) or found.access is None:
        return ()
    if is_final:
        return ("Use another place: the subject's own data folder is open to it without any declaration.",)
    return tuple(_steps(found, found.access))


def _steps(found: Explanation, access: AccessTuple) -> Iterator[str]:
    layers = {layer.layer: layer for layer in found.layers}
    denial, request = layers["denial"], layers["request"].request
    if found.verdict is Verdict.DENIED and denial.answer is Answer.DENIES and denial.decision is not None:
        made = denial.decision
        yield f"{made.created_by} denied it; somebody has to revoke decision {made.id} before it can be approved."
    if layers["target"].decides:
        yield "Send the path as servers read it: such a one can neither be asked for nor approved."
    if request is not None:
        yield f"{fixes.WAITING.format(request=request.id)} Nothing else has to be done: a yes counts at once."
    if access.subject.kind is SubjectKind.MCP:
        yield f"Stable: correct {_place(found, access)}."
    else:
        yield f"Stable: declare it in {_place(found, access)}."
    if request is None and not layers["target"].decides and denial.answer is not Answer.DENIES:
        yield f"Chosen while it runs: {fixes.asking(access.resource_type, access.operation, access.target)}"
        if access.resource_type is ResourceType.FILESYSTEM:
            yield "Ask before opening the file: a denied file operation puts no request down."
    if "sessions in which it is approved" in layers["session_approval"].text:
        yield "An approval for a session counts in that session alone: name its key to see it."
    yield WHO_DECIDES


def _place(found: Explanation, access: AccessTuple) -> str:
    subject = access.subject
    return fixes.place_of(subject.kind.value, subject.name, "access", installing=found.question.installing)
