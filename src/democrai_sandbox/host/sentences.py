"""Rules, accesses and subjects as sentences."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
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

    from democrai_sandbox.access.values import AccessTuple

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


class PathKind(StrEnum):
    """Type of a path's target."""

    FILE = "file"
    FOLDER = "folder"
    UNKNOWN = "unknown"
    """Missing or unreadable: it may become a file or a folder."""


def path_kind(resource_type: ResourceType, target: str, *, look: bool = True) -> PathKind | None:
    """Return the type of a path's target; None for other targets. Without ``look``, do not read the disk."""
    if resource_type is not ResourceType.FILESYSTEM:
        return None
    if not look:
        return PathKind.UNKNOWN
    try:
        mode = os.stat(target).st_mode  # noqa: PTH116 - the target may be invalid for a Path
    except (OSError, ValueError):
        return PathKind.UNKNOWN
    return PathKind.FOLDER if stat.S_ISDIR(mode) else PathKind.FILE


def rule_words(
    subject: Subject,
    resource_type: ResourceType,
    operation: Operation,
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


def subject_words(subject: Subject) -> str:
    """Return a subject in words: ``module reports``."""
    return f"{_KINDS.get(subject.kind, subject.kind.value)} {subject.name}"


def act_words(resource_type: ResourceType, operation: Operation, target: str, kind: PathKind | None = None) -> str:
    """Return an access in words: ``receive from https://api.example.com/v1 and everything below it``."""
    if resource_type is ResourceType.NETWORK:
        return f"{_NETWORK.get(operation, operation.value)} {_place(target)}"
    if resource_type is ResourceType.FILESYSTEM:
        return f"{_FILES.get(operation, operation.value)} {_path(operation, target, kind)}"
    return f"run the program {target}"


def _path(operation: Operation, target: str, kind: PathKind | None) -> str:
    every = "everything" if operation is Operation.READ else "anything"
    if kind is PathKind.FILE:
        return f"the file {target}"
    if kind is PathKind.FOLDER:
        return f"the folder {target} and {every} in it"
    if kind is PathKind.UNKNOWN:
        return f"{target}, and {every} in it if it is a folder"
    return f"{target} and {every} below it"


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
    return f"any path at {parsed.normalized}"
