"""Approvals as rules, for components that need them before an access happens."""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import AccessRule, Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from democrai_sandbox.access.node import AccessNode
    from democrai_sandbox.access.values import DecisionRow
    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.policy import Subject

_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)
_RESOURCES = (ResourceType.FILESYSTEM, ResourceType.NETWORK)
_PARTS = frozenset({"task", "tool", "agent", "pipeline", "skill"})


class Approvals:
    """Approvals in force on this node, without denied ones."""

    def __init__(self, node: AccessNode) -> None:
        """Read from the node's snapshot, which never blocks."""
        self._node = node

    def rows(self, resource_type: ResourceType, subject: tuple[str, str] | None = None) -> Iterator[DecisionRow]:
        """Yield the approvals of one subject (kind and name) or of all."""
        return self._node.snapshot.approved(resource_type.value, time_ns() // 1000, subject)

    def of_caller(self, view: RawView) -> tuple[AccessRule, ...]:
        """Return the approvals for the subject of a view: permanent ones and those of its session."""
        kind, name = view.actor
        return self._rules(lambda who: who == (kind, name), _RESOURCES, str(view.session_key or ""))

    def of_worker(self, kind: str, name: str) -> tuple[AccessRule, ...]:
        """Return all approvals for a subject and its parts in any session, because its process serves all of them."""

        def is_inside(who: tuple[str, str]) -> bool:
            part = kind == "module" and who[0] in _PARTS and who[1].startswith(f"{name}.")
            return part or who == (kind, name)

        return self._rules(is_inside, _RESOURCES, None)

    def written_by(self, subject: Subject) -> Iterator[str]:
        """Yield the paths that a subject or its parts may write by approval, in any session."""
        for rule in self.of_worker(subject.kind.value, subject.name):
            if rule.resource_type is ResourceType.FILESYSTEM and any(rule.operation is act for act in _WRITING):
                yield rule.normalized_target

    def _rules(
        self, wanted: Callable[[tuple[str, str]], bool], kinds: tuple[ResourceType, ...], session_key: str | None
    ) -> tuple[AccessRule, ...]:
        try:
            subjects = [who for who in self._node.snapshot.subjects if wanted(who)]
            found = [row for who in subjects for kind in kinds for row in self.rows(kind, who)]
        except ExternalAccessCheckFailed:
            return ()  # a node that cannot answer has no known approvals
        mine = (row for row in found if session_key is None or row.session_key in ("", session_key))
        return tuple(dict.fromkeys(map(rule_of, mine)))


def rule_of(row: DecisionRow) -> AccessRule:
    """Return an approval as a rule; its target is already canonical."""
    return AccessRule(ResourceType(row.resource_type), Operation(row.operation), row.target, row.target)
