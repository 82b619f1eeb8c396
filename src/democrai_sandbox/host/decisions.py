"""Decisions of administrators: submit them, and describe their possible targets and effects; accesses as sentences."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox import policy
from democrai_sandbox.access.values import AccessTuple, DecisionEffect, DecisionScope
from democrai_sandbox.manifests import FindingCode, broadness
from democrai_sandbox.runtime.access_environment import serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import timedelta

    from democrai_sandbox.access.administration import Administration, Outcome
    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.access.values import Aftermath, Decision, DecisionReach

_NETWORK: Mapping[policy.Operation, str] = MappingProxyType(
    {policy.Operation.CONNECT: "connect to", policy.Operation.RECEIVE: "receive from", policy.Operation.SEND: "send to"}
)
_FILES: Mapping[policy.Operation, str] = MappingProxyType(
    {
        policy.Operation.READ: "read",
        policy.Operation.CREATE: "create",
        policy.Operation.MODIFY: "change",
        policy.Operation.DELETE: "delete",
        policy.Operation.EXECUTE: "run",
    }
)
_KINDS: Mapping[policy.SubjectKind, str] = MappingProxyType(
    {policy.SubjectKind.MCP: "MCP server", policy.SubjectKind.CORE: "host component"}
)


class PathKind(StrEnum):
    """Type of a path's target."""

    FILE = "file"
    FOLDER = "folder"
    UNKNOWN = "unknown"
    """Missing or unreadable: it may become a file or a folder."""


def path_kind(resource_type: policy.ResourceType, target: str, *, look: bool = True) -> PathKind | None:
    """Return the type of a path's target; None for other targets. Without ``look``, do not read the disk."""
    if resource_type is not policy.ResourceType.FILESYSTEM:
        return None
    if not look:
        return PathKind.UNKNOWN
    try:
        mode = os.stat(target).st_mode  # noqa: PTH116 - the target may be invalid for a Path
    except (OSError, ValueError):
        return PathKind.UNKNOWN
    return PathKind.FOLDER if stat.S_ISDIR(mode) else PathKind.FILE


def rule_words(
    subject: policy.Subject,
    resource_type: policy.ResourceType,
    operation: policy.Operation,
    target: str,
    *,
    may: bool = True,
    kind: PathKind | None = None,
) -> str:
    """Return a rule as a sentence without its full stop; ``may=False`` describes a denial.

    ``kind`` is the type of a path's target, if known. The target is included unchanged: code that displays the sentence
    must escape invisible characters.
    """
    verb = "may" if may else "may not"
    who = f"{_KINDS.get(subject.kind, subject.kind.value)} {subject.name}"
    return f"{who} {verb} {act_words(resource_type, operation, target, kind)}"


def decided_words(access: AccessTuple, *, may: bool = True, look: bool = True) -> str:
    """Return the access of a decision as a sentence.

    This reads the disk unless ``look`` is false: only users who decide may learn which paths exist.
    """
    kind = path_kind(access.resource_type, access.target, look=look)
    return rule_words(access.subject, access.resource_type, access.operation, access.target, may=may, kind=kind)


def act_words(
    resource_type: policy.ResourceType, operation: policy.Operation, target: str, kind: PathKind | None = None
) -> str:
    """Return an access in words: ``receive from https://api.example.com/v1 and everything below it``."""
    if resource_type is policy.ResourceType.NETWORK:
        return f"{_NETWORK.get(operation, operation.value)} {_place(target)}"
    if resource_type is policy.ResourceType.FILESYSTEM:
        return f"{_FILES.get(operation, operation.value)} {_path(operation, target, kind)}"
    return f"run the program {target}"


def _path(operation: policy.Operation, target: str, kind: PathKind | None) -> str:
    every = "everything" if operation is policy.Operation.READ else "anything"
    if kind is PathKind.FILE:
        return f"the file {target}"
    if kind is PathKind.FOLDER:
        return f"the folder {target} and {every} in it"
    if kind is PathKind.UNKNOWN:
        return f"{target}, and {every} in it if it is a folder"
    return f"{target} and {every} below it"


def _place(target: str) -> str:
    try:
        parsed = policy.parse_declaration(target)
    except policy.InvalidInputError:
        return target
    port = "any port" if parsed.port is None else f"port {parsed.port}"
    url = parsed.normalized
    return {
        policy.TargetKind.URL: f"{url} and everything below it" if parsed.path else f"any path at {url}",
        policy.TargetKind.HOST: f"{parsed.host} on {port}, with any protocol",
        policy.TargetKind.WILDCARD: f"every host below {parsed.host} on {port}, with any protocol",
        policy.TargetKind.NETWORK: f"every address in {parsed.host} on any port, with any protocol",
        policy.TargetKind.UNIX: f"the unix socket {parsed.socket}",
    }[parsed.kind]


T = TypeVar("T")

_SERVER = "Everything on this server"
_NEAREST = 4
_WIDEST = 2
"""Limit for very deep paths, to keep the list short."""


class UnrequestedAccess(NamedTuple):
    """Access to decide about without a request, as submitted."""

    subject: policy.Subject
    resource_type: str
    operation: str
    target: str


@dataclass(frozen=True, slots=True)
class SubmittedDecision:
    """Decision that an administrator submitted."""

    act: str
    """``session``, ``permanent`` or ``deny`` for a request, ``revoke`` or ``undo`` for a decision."""
    about: str | UnrequestedAccess
    """Id of the request or the decision; or an access, which is approved permanently or denied."""
    target: str | None = None
    """Broader target that covers the requested one."""
    reason: str = ""
    lifetime: timedelta | None = None
    """Duration of a permanent approval, or None for no limit."""
    expected: int | None = None
    """Version of the state that the administrator saw."""


def decide(administration: Administration, caller: Caller, submitted: SubmittedDecision) -> Outcome:
    """Decide as the caller. The result has the new, revoked or undone decision, or the reason why there is none."""
    about = submitted.about
    options: dict[str, Any] = {name: getattr(submitted, name) for name in ("reason", "lifetime", "expected")}
    with serving(caller):
        if not isinstance(about, UnrequestedAccess):
            return administration.decide(submitted.act, about, target=submitted.target, **options)
        effect = DecisionEffect.DENIAL if submitted.act == "deny" else DecisionEffect.APPROVAL
        return administration.decide_unasked(**about._asdict(), effect=effect, **options)


def approved_accesses(administration: Administration, submitted: SubmittedDecision) -> list[AccessTuple]:
    """Return the accesses that a decision approves permanently; none for an unknown operation."""
    about = submitted.about
    if submitted.act != "permanent":
        return []
    if isinstance(about, UnrequestedAccess):
        if about.resource_type not in tuple(policy.ResourceType) or about.operation not in tuple(policy.Operation):
            return []
        kind, operation = policy.ResourceType(about.resource_type), policy.Operation(about.operation)
        return [AccessTuple(about.subject, kind, operation, about.target)]
    access = administration.request(about).access
    return [access, replace(access, target=submitted.target)] if submitted.target else [access]


def restored_decisions(administration: Administration, done: Aftermath) -> tuple[list[Decision], list[AccessTuple]]:
    """Return the decisions that an undo puts back in force, and the accesses that it thereby approves permanently."""
    restored = [administration.decision(one) for one in done.replaced]
    approvals = [
        one.access for one in restored if one.effect is DecisionEffect.APPROVAL and one.scope is DecisionScope.PERMANENT
    ]
    return restored, approvals


@dataclass(frozen=True, slots=True)
class DecisionTarget:
    """Possible target of a decision. It covers the requested target."""

    target: str
    label: str
    words: str
    """Resulting rule as a sentence."""
    warnings: tuple[str, ...]
    is_exact: bool


def decision_targets(access: AccessTuple, *, look: bool = True) -> tuple[DecisionTarget, ...]:
    """Return the possible targets for a request: the requested one first, then wider ones.

    With ``look``, a path is described as file or folder by reading the disk: only for users who may decide.
    """
    wider = ((target, label) for target, label in _wider(access) if target != access.target)
    offered = ((access.target, _label(access, look=look)), *wider)
    return tuple(_choice(access, target, label, look=look) for target, label in offered)


def _label(access: AccessTuple, *, look: bool) -> str:
    """Return the label of the requested target, by the coverage of its decision."""
    if kind := path_kind(access.resource_type, access.target, look=look):
        return {
            PathKind.FILE: f"The file {access.target}",
            PathKind.FOLDER: f"The folder {access.target} and everything in it",
            PathKind.UNKNOWN: f"The path {access.target}, and everything in it if it is a folder",
        }[kind]
    if access.resource_type is policy.ResourceType.SYSTEM_DEPENDENCY:
        return f"The program {access.target}"
    try:
        target = policy.parse_declaration(access.target)
    except policy.InvalidInputError:
        return "This target"
    port = "any port" if target.port is None else f"port {target.port}"
    return {
        policy.TargetKind.URL: _below(target.path) if target.path else _SERVER,
        policy.TargetKind.HOST: f"This host on {port}, with any protocol",
        policy.TargetKind.WILDCARD: f"Every host below {target.host} on {port}, with any protocol",
        policy.TargetKind.NETWORK: f"Every address in {target.host}, on any port, with any protocol",
        policy.TargetKind.UNIX: "This unix socket",
    }[target.kind]


def _below(path: tuple[str, ...]) -> str:
    return f"/{'/'.join(path)} and everything below it"


def _wider(access: AccessTuple) -> Iterator[tuple[str, str]]:
    if access.resource_type is policy.ResourceType.FILESYSTEM:
        yield from ((folder, f"The folder {folder} and everything in it") for folder in _fewer(list(_folders(access))))
    elif access.resource_type is policy.ResourceType.NETWORK:
        try:
            yield from _wider_network(policy.parse_declaration(access.target), access.operation)
        except policy.InvalidInputError:
            return  # an invalid declaration cannot be widened


def _wider_network(target: policy.NetworkTarget, operation: policy.Operation) -> Iterator[tuple[str, str]]:
    if target.kind is policy.TargetKind.URL:
        paths = [target.path[:length] for length in range(len(target.path) - 1, 0, -1)]
        for path in _fewer(paths):
            yield replace(target, path=path).normalized, _below(path)
        yield replace(target, path=()).normalized, _SERVER
    # Only connect gains from more than the URLs of a server: any port, any protocol.
    if operation is not policy.Operation.CONNECT:
        return
    if target.kind is policy.TargetKind.URL:
        host = policy.NetworkTarget(policy.TargetKind.HOST, host=target.host, port=target.port)
        yield host.normalized, f"Any protocol on port {target.port}"
    if target.kind in (policy.TargetKind.URL, policy.TargetKind.HOST):
        yield policy.NetworkTarget(policy.TargetKind.HOST, host=target.host).normalized, "Any port of this host"


def _folders(access: AccessTuple) -> Iterator[str]:
    """Yield the ancestor folders of a path, nearest first, up to those that are too broad."""
    folder = access.target
    while folder not in ("", "/"):
        folder = folder.rpartition("/")[0] or "/"
        rule = policy.AccessRule(access.resource_type, access.operation, folder, folder)
        if any(finding.code is FindingCode.BROAD_ROOT for finding in broadness(rule)):
            return
        yield folder


def _fewer(found: list[T]) -> list[T]:
    return found if len(found) <= _NEAREST + _WIDEST else [*found[:_NEAREST], *found[-_WIDEST:]]


def _choice(access: AccessTuple, target: str, label: str, *, look: bool) -> DecisionTarget:
    is_exact = target == access.target
    rule = policy.AccessRule(access.resource_type, access.operation, target, target)
    is_path = access.resource_type is policy.ResourceType.FILESYSTEM
    # An ancestor of a path is a folder, whether it exists or not.
    kind = path_kind(access.resource_type, target, look=look) if is_exact or not is_path else PathKind.FOLDER
    words = rule_words(access.subject, access.resource_type, access.operation, target, kind=kind)
    return DecisionTarget(target, label, words, _warnings(rule), is_exact)


def _warnings(rule: policy.AccessRule) -> tuple[str, ...]:
    try:
        return tuple(finding.message for finding in broadness(rule))
    except policy.InvalidInputError:
        return ()  # stored by an older version with another notation


def effect_words(
    access: AccessTuple,
    effect: DecisionEffect,
    scope: DecisionScope,
    *,
    until: str = "",
    user: str = "",
    session: str = "",
) -> str:
    """Return the allowed or denied access, its users and its duration, without a full stop.

    ``until`` is the end of a limited decision: ``for 7 days``. Texts from other sources are included unescaped.
    """
    rule = decided_words(access, may=effect is DecisionEffect.APPROVAL)
    whose = f"user {user} in " if user else ""
    whom = "for every user and session" if scope is DecisionScope.PERMANENT else f"only for {whose}session {session}"
    return f"{rule[:1].upper()}{rule[1:]}, {whom}, {until or end_words(effect, scope)}"


def end_words(effect: DecisionEffect, scope: DecisionScope) -> str:
    """Return the end of a decision without a time limit."""
    if scope is DecisionScope.SESSION:
        return "until that session ends"
    return f"until an administrator revokes {'it' if effect is DecisionEffect.APPROVAL else 'the denial'}"


def answers_words(reach: DecisionReach, scope: DecisionScope) -> str:
    """Return how many other pending requests a decision will answer."""
    count = reach.in_session if scope is DecisionScope.SESSION else reach.requests
    if not count:
        return "it answers no other pending request"
    users = "" if scope is DecisionScope.SESSION else f" of {_number(reach.users, 'user')}"
    least = "at least " if reach.more else ""
    return f"it also answers {least}{_number(count, 'other pending request')}{users}"


def answered_words(count: int) -> str:
    """Return how many other requests a decision has answered."""
    return f"it also answered {_number(count, 'other request')}" if count else "it answered no other request"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
