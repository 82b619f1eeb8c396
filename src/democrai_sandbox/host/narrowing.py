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

from .wording import rule_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.access.values import AccessTuple

T = TypeVar("T")

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


def choices(access: AccessTuple) -> tuple[Choice, ...]:
    """Return what can be decided about a request: what was asked for first, then what is wider and wider."""
    exact = _choice(access, access.target, "Exactly what was asked for", is_exact=True)
    wider = [
        _choice(access, target, label, is_exact=False) for target, label in _wider(access) if target != access.target
    ]
    return (exact, *wider)


def _wider(access: AccessTuple) -> Iterator[tuple[str, str]]:
    if access.resource_type is ResourceType.FILESYSTEM:
        yield from ((folder, f"The folder {folder}") for folder in _fewer(list(_folders(access))))
    elif access.resource_type is ResourceType.NETWORK:
        try:
            yield from _wider_network(parse_declaration(access.target), access.operation)
        except InvalidInputError:
            return  # what is no declaration cannot be widened into one


def _wider_network(target: NetworkTarget, operation: Operation) -> Iterator[tuple[str, str]]:
    if target.kind is TargetKind.URL:
        paths = [target.path[:length] for length in range(len(target.path) - 1, 0, -1)]
        for path in _fewer(paths):
            yield replace(target, path=path).normalized, f"Everything below /{'/'.join(path)}"
        yield replace(target, path=()).normalized, "Everything at this server"
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


def _choice(access: AccessTuple, target: str, label: str, *, is_exact: bool) -> Choice:
    rule = AccessRule(access.resource_type, access.operation, target, target)
    words = rule_words(access.subject, access.resource_type, access.operation, target)
    return Choice(target, label, words, _warnings(rule), is_exact)


def _warnings(rule: AccessRule) -> tuple[str, ...]:
    try:
        return tuple(finding.message for finding in broadness(rule))
    except InvalidInputError:
        return ()  # kept by an older version, which wrote targets in another way
