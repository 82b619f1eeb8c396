"""Next steps after a verdict: the entry to declare, the request to file, and who can decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import fixes
from democrai_sandbox.policy import ResourceType, SubjectKind

from .explanations import OTHER_SESSIONS, Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.access.values import AccessTuple

    from .explanations import Explanation

WHO_DECIDES = (
    "Only a user without an organization who has the super role or the super access level can decide. "
    "Guarded code never can."
)


def advice_for(found: Explanation, *, is_final: bool) -> tuple[str, ...]:
    """Return the steps in the order to try them; empty for allowed access."""
    if found.verdict in (Verdict.ALLOWED, Verdict.REFUSED) or found.access is None:
        return ()
    if is_final:
        return ("Use another path. The subject can use its data folder without a declaration.",)
    return tuple(_steps(found, found.access))


def _steps(found: Explanation, access: AccessTuple) -> Iterator[str]:
    layers = {layer.layer: layer for layer in found.layers}
    denial, request = layers["denial"], layers["request"].request
    if found.verdict is Verdict.DENIED and denial.answer is Answer.DENIES and denial.decision is not None:
        made = denial.decision
        yield f"{made.created_by} denied it. Revoke decision {made.id} before you approve it."
    if layers["target"].decides:
        yield "Use a path that all servers read the same way: this one cannot be requested or approved."
    if request is not None:
        yield f"{fixes.WAITING.format(request=request.id)} An approval takes effect immediately."
    if access.subject.kind is SubjectKind.MCP:
        yield f"If the target is fixed, correct {_place(found, access)}."
    else:
        yield f"If the target is fixed, declare it in {_place(found, access)}."
    if request is None and not layers["target"].decides and denial.answer is not Answer.DENIES:
        asking = fixes.asking(access.resource_type, access.operation, access.target)
        yield f"If the target is chosen at run time: {asking}"
        if access.resource_type is ResourceType.FILESYSTEM:
            yield "Ask before you open the file: a denied file operation does not file a request."
    if OTHER_SESSIONS in layers["session_approval"].text:
        yield "A session approval covers only its session. Pass the session key to include it."
    yield WHO_DECIDES


def _place(found: Explanation, access: AccessTuple) -> str:
    subject = access.subject
    return fixes.place_of(subject.kind.value, subject.name, "access", installing=found.question.installing)
