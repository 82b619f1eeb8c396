"""Rules, accesses and subjects as sentences."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox import policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.access.values import AccessTuple

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
    return f"{subject_words(subject)} {verb} {act_words(resource_type, operation, target, kind)}"


def decided_words(access: AccessTuple, *, may: bool = True, look: bool = True) -> str:
    """Return the access of a decision as a sentence.

    This reads the disk unless ``look`` is false: only users who decide may learn which paths exist.
    """
    kind = path_kind(access.resource_type, access.target, look=look)
    return rule_words(access.subject, access.resource_type, access.operation, access.target, may=may, kind=kind)


def subject_words(subject: policy.Subject) -> str:
    """Return a subject in words: ``module reports``."""
    return f"{_KINDS.get(subject.kind, subject.kind.value)} {subject.name}"


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
    return {
        policy.TargetKind.URL: _url(parsed),
        policy.TargetKind.HOST: f"{parsed.host} on {port}, with any protocol",
        policy.TargetKind.WILDCARD: f"every host below {parsed.host} on {port}, with any protocol",
        policy.TargetKind.NETWORK: f"every address in {parsed.host} on any port, with any protocol",
        policy.TargetKind.UNIX: f"the unix socket {parsed.socket}",
    }[parsed.kind]


def _url(parsed: policy.NetworkTarget) -> str:
    if parsed.path:
        return f"{parsed.normalized} and everything below it"
    return f"any path at {parsed.normalized}"
