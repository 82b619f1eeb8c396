"""Explanation of an access: the question, the answer of each layer, the verdict, the nearest rule, and next steps."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox import policy
from democrai_sandbox.access.targets import LONGEST_RAW_TARGET, TargetParser
from democrai_sandbox.errors import FilesystemDenied, NetworkDenied, SandboxDenied, denials
from democrai_sandbox.policy.hosts import host_key
from democrai_sandbox.policy.paths import pattern_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.access.targets import RequestedTarget
    from democrai_sandbox.access.values import AccessTuple, Decision, StoredRequest

    from .declared_rights import ChainSubject

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

    subject: policy.Subject
    resource_type: str
    operation: str
    target: str
    user_id: str = ""
    session_key: str = ""
    ancestors: policy.SubjectChain = ()
    """Callers of the subject, outermost first."""
    installing: bool = False
    """Whether the question is about the install phase of an engine or extractor."""

    @property
    def chain(self) -> policy.SubjectChain:
        """All subjects of the call chain, the subject itself last."""
        return policy.append_subject(self.ancestors, self.subject)


@dataclass(frozen=True, slots=True)
class LayerAnswer:
    """Answer of one layer, with its reasons."""

    layer: str
    """``target``, ``chain``, ``declared``, ``denial``, ``session_approval``, ``permanent_approval``, ``request`` or
    ``kernel``, in this order."""
    answer: LayerEffect
    text: str
    decides: bool = False
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
    rule: policy.AccessRule | None = None
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
    if question.resource_type != policy.ResourceType.FILESYSTEM or not pattern_in(question.target):
        return ""
    return "; file targets have no wildcards, so this means a file with exactly this name"


_UP = ".."


def has_parent_steps(question: AccessToExplain) -> bool:
    """Whether the question is about a path with ``..``."""
    target = question.target
    is_path = question.resource_type == policy.ResourceType.FILESYSTEM and target.startswith("/")
    return is_path and len(target) <= LONGEST_RAW_TARGET and _UP in target.split("/")


def _resolved_target(question: AccessToExplain) -> str:
    """Return the target; for a path with ``..``, the path that the kernel reaches by following links."""
    if not has_parent_steps(question):
        return question.target
    try:
        return os.path.realpath(question.target)
    except (OSError, ValueError):
        return question.target  # the parser reports the problem


def explained(
    question: AccessToExplain, explain: Callable[[AccessToExplain, RequestedTarget], Explanation]
) -> Explanation:
    """Return the explanation of a question; ``explain`` answers a valid one from its normalized target.

    A name before ``..`` must exist, so a subject that may not read it must not learn that it exists: the guard refuses
    such a path before following it. It follows no links at this point.
    """

    def answer(asked: AccessToExplain, place_of: Callable[[str], str] | None) -> Explanation:
        try:
            wanted = TargetParser().read(asked.resource_type, asked.operation, _resolved_target(asked), place_of)
        except policy.InvalidInputError as error:
            layer = LayerAnswer("target", LayerEffect.DENIES, str(error), decides=True)
            return Explanation(asked, AccessVerdict.REFUSED, f"Invalid question: {error}", (layer,))
        return explain(asked, wanted)

    for folder in _folders_before_parent_steps(question):
        found = answer(replace(question, operation=policy.Operation.READ.value, target=folder), None)
        if found.verdict is not AccessVerdict.ALLOWED:
            place = _resolved_target(question)
            refused = f"The path {question.target} is refused because of {folder}, before it is followed to {place}"
            advice = (f"Write the path without ..: {place}", *found.advice)
            return replace(found, question=question, words=f"{refused}: {found.words}", advice=advice)
    return answer(question, os.path.realpath)


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
        return self._entry_or("Or request approval: ", "system_dependency", self.operation, self.target)


_DENIALS: Mapping[policy.ResourceType, type[SandboxDenied]] = MappingProxyType(
    {
        policy.ResourceType.FILESYSTEM: FilesystemDenied,
        policy.ResourceType.NETWORK: NetworkDenied,
        policy.ResourceType.SYSTEM_DEPENDENCY: _UndeclaredProgramDenied,
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
        denial.decision = policy.AccessDecision(
            allowed=False,
            code=policy.DecisionCode.PENDING,
            requires_approval=True,
            message=policy.EXTERNAL_URL_LOCKED,
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
    subject = access.subject
    place = denials.place_of(subject.kind.value, subject.name, "access", installing=found.question.installing)
    act = "correct" if subject.kind is policy.SubjectKind.MCP else "declare it in"
    yield f"If the target is fixed, {act} {place}."
    if request is None and not layers["target"].decides and denial.answer is not LayerEffect.DENIES:
        asking = denials.asking(access.resource_type, access.operation, access.target)
        yield f"If the target is chosen at run time: {asking}"
        if access.resource_type is policy.ResourceType.FILESYSTEM:
            yield "Ask before you open the file: a denied file operation does not file a request."
    if OTHER_SESSIONS in layers["session_approval"].text:
        yield "A session approval covers only its session. Pass the session key to include it."
    yield WHO_DECIDES


# ---- nearest rule ----------------------------------------------------------------------------------------------------

_FAR = 0
_NAME = 1
_HOST = 10
_PLACE = 50


@dataclass(frozen=True, slots=True)
class Nearest:
    """Rule that does not cover the access, and why."""

    rule: policy.AccessRule
    why: str


def covering_rule(rules: Iterable[policy.AccessRule], wanted: RequestedTarget) -> policy.AccessRule | None:
    """Return the rule that covers the access, with the matching of every check."""
    if wanted.parsed is not None:
        return policy.NetworkIndex(rules).find(wanted.operation, wanted.parsed)
    same = [rule for rule in rules if (rule.resource_type, rule.operation) == (wanted.resource_type, wanted.operation)]
    if wanted.resource_type is policy.ResourceType.FILESYSTEM:
        covering = [
            rule for rule in same if policy.is_at_or_below(wanted.target, os.path.realpath(rule.normalized_target))
        ]
    else:
        covering = [rule for rule in same if rule.normalized_target == wanted.target]
    return max(covering, key=lambda rule: len(rule.normalized_target), default=None)


def nearest_rule(rules: Iterable[policy.AccessRule], wanted: RequestedTarget) -> Nearest | None:
    """Return the nearest rule for the same resource type; None if none is near."""
    same_kind = [rule for rule in rules if rule.resource_type is wanted.resource_type]
    if wanted.resource_type is policy.ResourceType.SYSTEM_DEPENDENCY:
        close = policy.nearest(wanted.target, [rule.normalized_target for rule in same_kind])
        return next(
            (Nearest(rule, f"the rule is for {close}") for rule in same_kind if rule.normalized_target == close), None
        )
    judge = _network if wanted.resource_type is policy.ResourceType.NETWORK else _path
    judged = [(*judge(rule, wanted), rule) for rule in same_kind]
    best = max(judged, key=lambda found: found[0], default=None)
    return None if best is None or best[0] <= _FAR else Nearest(best[2], best[1])


def _path(rule: policy.AccessRule, wanted: RequestedTarget) -> tuple[int, str]:
    root = rule.normalized_target
    if policy.is_at_or_below(wanted.target, root):
        return _PLACE + root.count("/"), f"the rule is for {rule.operation}, not for {wanted.operation}"
    pairs = zip(root.split("/")[1:], wanted.target.split("/")[1:], strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))  # common leading folders
    if not shared or rule.operation is not wanted.operation:
        return _FAR, ""
    return shared, f"{wanted.target} is not below {root}"


def _network(rule: policy.AccessRule, wanted: RequestedTarget) -> tuple[int, str]:
    asked = wanted.parsed
    if asked is None:
        return _FAR, ""
    declared = policy.parse_declaration(rule.normalized_target)
    if policy.NetworkIndex([rule]).allows(rule.operation, asked):
        return _PLACE + len(declared.path), f"the rule is for {rule.operation}, not for {wanted.operation}"
    if declared.kind is policy.TargetKind.UNIX or asked.kind is policy.TargetKind.UNIX:
        return _FAR, ""
    if not _is_same_host(declared, asked):
        return _other_host(declared, asked)
    lacks = list(_lacks(declared, asked))
    if rule.operation is not wanted.operation:
        lacks.append(f"the rule is for {rule.operation}, not for {wanted.operation}")
    return _HOST - len(lacks), "; ".join(lacks)


def _is_same_host(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> bool:
    if declared.kind is policy.TargetKind.WILDCARD:
        return asked.host.endswith(f".{declared.host}")
    return declared.kind is not policy.TargetKind.NETWORK and host_key(declared.host) == host_key(asked.host)


def _other_host(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> tuple[int, str]:
    """Return the difference for a misspelled or neighboring host name."""
    if declared.kind is policy.TargetKind.NETWORK:
        return _FAR, ""
    if declared.kind is policy.TargetKind.WILDCARD and asked.host == declared.host:
        return _NAME + 1, f"the pattern *.{declared.host} does not include {declared.host} itself"
    related = asked.host.endswith(f".{declared.host}") or declared.host.endswith(f".{asked.host}")
    if related or policy.nearest(asked.host, [declared.host]):
        return _NAME, f"the rule is for the host {declared.host}, not for {asked.host}"
    return _FAR, ""


def _lacks(declared: policy.NetworkTarget, asked: policy.NetworkTarget) -> Iterable[str]:
    """Yield the differences of a rule for the same host."""
    if declared.kind is policy.TargetKind.URL and asked.kind is not policy.TargetKind.URL:
        yield "the rule allows HTTP requests to URLs, not direct socket connections"
    are_urls = declared.kind is policy.TargetKind.URL and asked.kind is policy.TargetKind.URL
    if are_urls and declared.scheme != asked.scheme:
        yield f"the rule has the scheme {declared.scheme}, not {asked.scheme}"
    if declared.port is not None and declared.port != asked.port:
        yield f"the rule has the port {declared.port}, not {asked.port or 'any'}"
    if declared.kind is policy.TargetKind.URL and declared.path:
        if asked.ambiguous:
            yield "servers read the requested path differently, so no rule with a path covers it"
        elif asked.kind is policy.TargetKind.URL and asked.path[: len(declared.path)] != declared.path:
            yield f"the path is not below /{'/'.join(declared.path)}"
