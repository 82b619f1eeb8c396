"""Rules in plain words: what a yes would allow."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import (
    InvalidInputError,
    NetworkTarget,
    Operation,
    ResourceType,
    Subject,
    SubjectKind,
    TargetKind,
    parse_declaration,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_NETWORK: Mapping[Operation, str] = MappingProxyType(
    {Operation.CONNECT: "connect to", Operation.RECEIVE: "receive from", Operation.SEND: "send to"}
)
_FILES: Mapping[Operation, str] = MappingProxyType(
    {
        Operation.READ: "read",
        Operation.CREATE: "create",
        Operation.MODIFY: "change",
        Operation.DELETE: "delete",
        Operation.EXECUTE: "run",
    }
)
_KINDS: Mapping[SubjectKind, str] = MappingProxyType(
    {SubjectKind.MCP: "MCP server", SubjectKind.CORE: "host component"}
)


def rule_words(
    subject: Subject, resource_type: ResourceType, operation: Operation, target: str, *, may: bool = True
) -> str:
    """Return a rule as a sentence without its full stop; ``may=False`` words a denial.

    The target stands in it as it is: whoever shows the sentence has to make what cannot be seen visible.
    """
    verb = "may" if may else "may not"
    return f"{subject_words(subject)} {verb} {act_words(resource_type, operation, target)}"


def subject_words(subject: Subject) -> str:
    """Return a subject in words: ``module reports``."""
    return f"{_KINDS.get(subject.kind, subject.kind.value)} {subject.name}"


def act_words(resource_type: ResourceType, operation: Operation, target: str) -> str:
    """Return what is done to what: ``receive from https://api.example.com/v1 and everything below it``."""
    if resource_type is ResourceType.NETWORK:
        return f"{_NETWORK.get(operation, operation.value)} {_place(target)}"
    if resource_type is ResourceType.FILESYSTEM:
        below = "and everything below it" if operation is Operation.READ else "and anything below it"
        return f"{_FILES.get(operation, operation.value)} {target} {below}"
    return f"run the program {target}"


def _place(target: str) -> str:
    try:
        parsed = parse_declaration(target)
    except InvalidInputError:
        return target
    port = "any port" if parsed.port is None else f"port {parsed.port}"
    return {
        TargetKind.URL: _url(parsed),
        TargetKind.HOST: f"{parsed.host} on {port}, with any protocol",
        TargetKind.WILDCARD: f"every host below {parsed.host} on {port}, with any protocol",
        TargetKind.NETWORK: f"every address in {parsed.host} on any port, with any protocol",
        TargetKind.UNIX: f"the unix socket {parsed.socket}",
    }[parsed.kind]


def _url(parsed: NetworkTarget) -> str:
    if parsed.path:
        return f"{parsed.normalized} and everything below it"
    return f"everything at {parsed.normalized}"
