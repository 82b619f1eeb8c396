"""Explanation of an access: the question, the answer of each layer, the verdict, and the next steps."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.access.targets import LONGEST_RAW_TARGET, TargetParser
from democrai_sandbox.errors import FilesystemDenied, NetworkDenied, SandboxDenied, denials
from democrai_sandbox.policy import (
    EXTERNAL_URL_LOCKED,
    AccessDecision,
    DecisionCode,
    InvalidInputError,
    Operation,
    ResourceType,
    SubjectKind,
    append_subject,
)
from democrai_sandbox.policy.paths import pattern_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from democrai_sandbox.access.targets import RequestedTarget
    from democrai_sandbox.access.values import AccessTuple, Decision, StoredRequest
    from democrai_sandbox.policy import AccessRule, Subject, SubjectChain

    from .declared_rights import ChainSubject
    from .nearest_rule import Nearest

OTHER_SESSIONS = "sessions with an approval:"
"""Start of the number of other sessions in the text of the layer ``session_approval``."""


class AccessVerdict(StrEnum):
    """Result of an access."""

    ALLOWED = "allowed"
    DENIED = "denied"
    PENDING = "pending"
    """Denied until a pending request is approved."""
    NEEDS_APPROVAL = "needs_approval"
    """Denied; no request is pending."""
    REFUSED = "refused"
    """The question is invalid."""


class LayerEffect(StrEnum):
    """Answer of one layer."""

    ALLOWS = "allows"
    DENIES = "denies"
    SILENT = "silent"
    """The layer does not decide."""


@dataclass(frozen=True, slots=True)
class AccessToExplain:
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
    answer: LayerEffect
    text: str
    decides: bool = False
    """Whether this layer decides."""
    decision: Decision | None = None
    request: StoredRequest | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Verdict with the answers of all layers."""

    question: AccessToExplain
    verdict: AccessVerdict
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
    links: tuple[ChainSubject, ...] = ()
    """Subjects of the call chain, innermost first, and whether their declarations count."""
    advice: tuple[str, ...] = ()
    """Next steps, and who can take them."""


def pattern_note(question: AccessToExplain) -> str:
    """Return a note for a file target that looks like a pattern; empty for others."""
    if question.resource_type != ResourceType.FILESYSTEM or not pattern_in(question.target):
        return ""
    return "; file targets have no wildcards, so this means a file with exactly this name"


def read_question(question: AccessToExplain, place_of: Callable[[str], str] | None) -> RequestedTarget | Explanation:
    """Return the normalized target of a question, or the explanation of an invalid one."""
    try:
        return TargetParser().read(question.resource_type, question.operation, resolved_target(question), place_of)
    except InvalidInputError as error:
        layer = LayerAnswer("target", LayerEffect.DENIES, str(error), decides=True)
        return Explanation(question, AccessVerdict.REFUSED, f"Invalid question: {error}", (layer,))


_UP = ".."


def has_parent_steps(question: AccessToExplain) -> bool:
    """Whether the question is about a path with ``..``."""
    target = question.target
    is_path = question.resource_type == ResourceType.FILESYSTEM and target.startswith("/")
    return is_path and len(target) <= LONGEST_RAW_TARGET and _UP in target.split("/")


def resolved_target(question: AccessToExplain) -> str:
    """Return the target; for a path with ``..``, the path that the kernel reaches by following links."""
    if not has_parent_steps(question):
        return question.target
    try:
        return os.path.realpath(question.target)
    except (OSError, ValueError):
        return question.target  # the parser reports the problem


def refusal_on_the_way(
    question: AccessToExplain, explain: Callable[[AccessToExplain], Explanation]
) -> Explanation | None:
    """Return the reason why the guard refuses such a path before following it; None if it does not.

    A name before ``..`` must exist, so a subject that may not read it must not learn that it exists. ``explain``
    answers for a path as written: the guard follows no links at this point.
    """
    for folder in _folders_before_parent_steps(question):
        found = explain(replace(question, operation=Operation.READ.value, target=folder))
        if found.verdict is AccessVerdict.ALLOWED:
            continue
        place = resolved_target(question)
        return replace(
            found,
            question=question,
            words=f"The path {question.target} is refused because of {folder}, before it is followed to {place}: "
            f"{found.words}",
            advice=(f"Write the path without ..: {place}", *found.advice),
        )
    return None


def _folders_before_parent_steps(question: AccessToExplain) -> Iterator[str]:
    """Yield the folder before each ``..`` that follows a name."""
    parts, after_name = question.target.split("/") if has_parent_steps(question) else [], False
    for place, part in enumerate(parts):
        if part == _UP and after_name:
            yield os.path.normpath("/".join(parts[:place]))
        if part not in ("", "."):
            after_name = part != _UP


class _UndeclaredProgramDenied(SandboxDenied):
    """Undeclared program. The service reports it to the caller without an exception."""

    @property
    def hint(self) -> str:
        """Manifest entry and approval call."""
        wanted = {"resource_type": "system_dependency", "operation": self.operation, "target": self.target}
        return (
            f"Add to {self._place('access')}:\n  {json.dumps(wanted)}\n"
            f"Or request approval: {denials.asking('system_dependency', self.operation, self.target)}"
        )


_DENIALS: Mapping[ResourceType, type[SandboxDenied]] = MappingProxyType(
    {
        ResourceType.FILESYSTEM: FilesystemDenied,
        ResourceType.NETWORK: NetworkDenied,
        ResourceType.SYSTEM_DEPENDENCY: _UndeclaredProgramDenied,
    }
)


def hint_for(access: AccessTuple, pending: StoredRequest | None = None, *, installing: bool = False) -> str:
    """Return the hint of the denial for this access, which mentions a pending request."""
    subject = access.subject
    denial = _DENIALS[access.resource_type](
        access.target,
        subject=subject.name,
        subject_kind=subject.kind.value,
        chain=(str(subject),),
        operations=(access.operation.value,),
        installing=installing,
    )
    if pending is None:
        return denial.hint
    if isinstance(denial, NetworkDenied):
        denial.decision = AccessDecision(
            allowed=False,
            code=DecisionCode.PENDING,
            requires_approval=True,
            message=EXTERNAL_URL_LOCKED,
            request_id=pending.id,
        )
        return denial.hint
    return f"{denials.WAITING.format(request=pending.id)}\n{denial.hint}"


WHO_DECIDES = (
    "Only a user without an organization who has the super role or the super access level can decide. "
    "Guarded code never can."
)


def advice_for(found: Explanation, *, is_final: bool) -> tuple[str, ...]:
    """Return the steps in the order to try them; empty for allowed access."""
    if found.verdict in (AccessVerdict.ALLOWED, AccessVerdict.REFUSED) or found.access is None:
        return ()
    if is_final:
        return ("Use another path. The subject can use its data folder without a declaration.",)
    return tuple(_steps(found, found.access))


def _steps(found: Explanation, access: AccessTuple) -> Iterator[str]:
    layers = {layer.layer: layer for layer in found.layers}
    denial, request = layers["denial"], layers["request"].request
    if found.verdict is AccessVerdict.DENIED and denial.answer is LayerEffect.DENIES and denial.decision is not None:
        made = denial.decision
        yield f"{made.created_by} denied it. Revoke decision {made.id} before you approve it."
    if layers["target"].decides:
        yield "Use a path that all servers read the same way: this one cannot be requested or approved."
    if request is not None:
        yield f"{denials.WAITING.format(request=request.id)} An approval takes effect immediately."
    if access.subject.kind is SubjectKind.MCP:
        yield f"If the target is fixed, correct {_place(found, access)}."
    else:
        yield f"If the target is fixed, declare it in {_place(found, access)}."
    if request is None and not layers["target"].decides and denial.answer is not LayerEffect.DENIES:
        asking = denials.asking(access.resource_type, access.operation, access.target)
        yield f"If the target is chosen at run time: {asking}"
        if access.resource_type is ResourceType.FILESYSTEM:
            yield "Ask before you open the file: a denied file operation does not file a request."
    if OTHER_SESSIONS in layers["session_approval"].text:
        yield "A session approval covers only its session. Pass the session key to include it."
    yield WHO_DECIDES


def _place(found: Explanation, access: AccessTuple) -> str:
    subject = access.subject
    return denials.place_of(subject.kind.value, subject.name, "access", installing=found.question.installing)
