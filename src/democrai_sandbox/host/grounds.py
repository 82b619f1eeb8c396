"""Reasons of allowed and denied accesses, determined when they happen, because decisions change later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, ResourceType, Subject, SubjectKind

from .matching import speaks_of
from .observing import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.service import AccessService
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.runtime import Runtime

_MOST_KEPT = 4096


class Grounds:
    """Lookup of reasons. It uses memory only, because it runs on the threads of the accesses."""

    def __init__(self, runtime: Runtime, service: AccessService) -> None:
        """Store the runtime with the declarations, and the service with the decisions."""
        self._runtime = runtime
        self._service = service
        self._known: dict[tuple[str, str], Reason] = {}

    def of_connection(self, label: str, target: str) -> Reason:
        """Return why a subject may connect. Cached, because declarations do not change while the process runs."""
        known = self._known.get((label, target))
        if known is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[label, target] = self._declared(label, target)
        return known

    def of_denial(self, label: str, resource: str, denial: SandboxDenied, target: str) -> Reason:
        """Return the reason of a denial, from the denial itself or the decisions in force."""
        if resource not in tuple(ResourceType):
            return Reason.UNKNOWN
        decision = getattr(denial, "decision", None)
        if type(decision) is AccessDecision:
            codes = {DecisionCode.DENIED: Reason.DENIED, DecisionCode.PENDING: Reason.PENDING}
            return codes.get(decision.code, Reason.NOT_DECLARED)
        subject = _subject(label)
        if subject is None:
            return Reason.NOT_DECLARED
        standing = self._service.standing(subject, resource, denial.operation, target)
        return Reason.DENIED if standing == DecisionCode.DENIED else Reason.NOT_DECLARED

    def _declared(self, label: str, target: str) -> Reason:
        subject = _subject(label)
        if subject is None:
            return Reason.UNKNOWN
        if subject.kind is SubjectKind.MCP:
            return Reason.DECLARED  # the registry contains the server's only endpoint
        for manifest in self._manifests(subject):
            sections = tuple(manifest.sections.values())
            rules = (rule for section in sections if section for rule in section.access)
            if any(speaks_of(rule, target) for rule in rules):
                return Reason.DECLARED
            if None in sections:
                return Reason.INHERITED
        return Reason.APPROVED

    def _manifests(self, subject: Subject) -> Iterable[Manifest]:
        for extension in self._runtime.extensions:
            if (extension.kind.value, extension.name) == (subject.kind.value, subject.name) and extension.manifest:
                yield extension.manifest
        for asset in self._runtime.ai.assets:
            if asset.declaration.subject == subject:
                yield asset.declaration


def _subject(label: str) -> Subject | None:
    try:
        return Subject.parse(label)
    except InvalidInputError:
        return None
