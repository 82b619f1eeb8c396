"""How far a yes may reach: exactly what was asked for, or what lies around it, each in words and with its warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from democrai_sandbox.manifests import FindingCode, broadness
from democrai_sandbox.policy import (
    AccessRule,
    InvalidInputError,
    NetworkTarget,
    Operation,
    ResourceType,
    TargetKind,
    parse_declaration,
)

from .wording import PathKind, path_kind, rule_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.access.values import AccessTuple

T = TypeVar("T")

_SERVER = "Everything at this server"
_NEAREST = 4
_WIDEST = 2
"""Of very deep paths only these are offered: a list of a hundred folders is no help."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One target that a decision could be about. It covers what was asked for."""

    target: str
    label: str
    words: str
    """The rule that would follow, as a sentence."""
    warnings: tuple[str, ...]
    is_exact: bool

    @property
    def is_broad(self) -> bool:
        """Whether it deserves a second look before it is granted for good."""
        return bool(self.warnings)


def choices(access: AccessTuple, *, look: bool = True) -> tuple[Choice, ...]:
    """Return what can be decided about a request: what was asked for first, then what is wider and wider.

    With ``look`` a path is called a file or a folder as it is now: for those alone who decide.
    """
    exact = _choice(access, access.target, _label(access, look=look), is_exact=True, look=look)
    wider = [
        _choice(access, target, label, is_exact=False, look=look)
        for target, label in _wider(access)
        if target != access.target
    ]
    return (exact, *wider)


def _label(access: AccessTuple, *, look: bool) -> str:
    """Return the name of what was asked for: by what a decision about it covers."""
    if access.resource_type is ResourceType.FILESYSTEM:
        return _path_label(access.target, look=look)
    if access.resource_type is ResourceType.SYSTEM_DEPENDENCY:
        return f"The program {access.target}"
    try:
        target = parse_declaration(access.target)
    except InvalidInputError:
        return "This target"
    port = "any port" if target.port is None else f"port {target.port}"
    return {
        TargetKind.URL: _below(target.path) if target.path else _SERVER,
        TargetKind.HOST: f"This host on {port}, with any protocol",
        TargetKind.WILDCARD: f"Every host below {target.host} on {port}, with any protocol",
        TargetKind.NETWORK: f"Every address in {target.host}, on any port, with any protocol",
        TargetKind.UNIX: "This unix socket",
    }[target.kind]


def _path_label(path: str, *, look: bool) -> str:
    kind = path_kind(ResourceType.FILESYSTEM, path, look=look)
    if kind is PathKind.FILE:
        return f"The file {path}"
    if kind is PathKind.FOLDER:
        return f"The folder {path} and everything in it"
    return f"The path {path}, and everything in it if it is a folder"


def _below(path: tuple[str, ...]) -> str:
    return f"/{'/'.join(path)} and everything below it"


def _wider(access: AccessTuple) -> Iterator[tuple[str, str]]:
    if access.resource_type is ResourceType.FILESYSTEM:
        yield from ((folder, f"The folder {folder} and everything in it") for folder in _fewer(list(_folders(access))))
    elif access.resource_type is ResourceType.NETWORK:
        try:
            yield from _wider_network(parse_declaration(access.target), access.operation)
        except InvalidInputError:
            return  # what is no declaration cannot be widened into one


def _wider_network(target: NetworkTarget, operation: Operation) -> Iterator[tuple[str, str]]:
    if target.kind is TargetKind.URL:
        paths = [target.path[:length] for length in range(len(target.path) - 1, 0, -1)]
        for path in _fewer(paths):
            yield replace(target, path=path).normalized, _below(path)
        yield replace(target, path=()).normalized, _SERVER
    # Only who connects gains by more than the addresses of a server: any port, any protocol.
    if operation is not Operation.CONNECT:
        return
    if target.kind is TargetKind.URL:
        host = NetworkTarget(TargetKind.HOST, host=target.host, port=target.port)
        yield host.normalized, f"Any protocol on port {target.port}"
    if target.kind in (TargetKind.URL, TargetKind.HOST):
        yield NetworkTarget(TargetKind.HOST, host=target.host).normalized, "Any port of this host"


def _folders(access: AccessTuple) -> Iterator[str]:
    """Yield the folders around a path, the nearest first, up to where they would hold far more than one needs."""
    folder = access.target
    while folder not in ("", "/"):
        folder = folder.rpartition("/")[0] or "/"
        rule = AccessRule(access.resource_type, access.operation, folder, folder)
        if any(finding.code is FindingCode.BROAD_ROOT for finding in broadness(rule)):
            return
        yield folder


def _fewer(found: list[T]) -> list[T]:
    return found if len(found) <= _NEAREST + _WIDEST else [*found[:_NEAREST], *found[-_WIDEST:]]


def _choice(access: AccessTuple, target: str, label: str, *, is_exact: bool, look: bool) -> Choice:
    rule = AccessRule(access.resource_type, access.operation, target, target)
    is_path = access.resource_type is ResourceType.FILESYSTEM
    # What lies around a path is a folder, there or not.
    kind = path_kind(access.resource_type, target, look=look) if is_exact or not is_path else PathKind.FOLDER
    words = rule_words(access.subject, access.resource_type, access.operation, target, kind=kind)
    return Choice(target, label, words, _warnings(rule), is_exact)


def _warnings(rule: AccessRule) -> tuple[str, ...]:
    try:
        return tuple(finding.message for finding in broadness(rule))
    except InvalidInputError:
        return ()  # kept by an older version, which wrote targets in another way
