"""Declarations that count in a call chain.

The runtime merges guards: a subject may use its declared access and that of the subjects around it. A tool, agent or
pipeline with its own ``access`` list, an MCP server, an engine and an extractor inherit nothing. Decisions always
concern the innermost subject only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from democrai_sandbox.policy import SubjectKind

from .grants import Grants, grants_of

if TYPE_CHECKING:
    from democrai_sandbox.policy import AccessRule, Subject, SubjectChain

    from .sandbox import Sandbox

_ALONE = frozenset({SubjectKind.MCP, SubjectKind.ENGINE, SubjectKind.EXTRACTOR, SubjectKind.CORE})
_PLACES = frozenset({SubjectKind.TASK, SubjectKind.SKILL})
"""Kinds that only name where code runs, and declare nothing."""


@dataclass(frozen=True, slots=True)
class Link:
    """Subject of a call chain, and whether its declarations count."""

    grants: Grants
    counts: bool
    text: str

    @property
    def subject(self) -> Subject:
        """Owner of the declarations."""
        return self.grants.subject


def links_of(sandbox: Sandbox, chain: SubjectChain, *, installing: bool = False) -> tuple[Link, ...]:
    """Return the subjects of a call chain, innermost first, each with whether it counts."""
    if len(chain) == 1:
        return (
            Link(_in_phase(grants_of(sandbox, chain[0]), installing=installing), counts=True, text="it acts itself"),
        )
    found: list[Link] = []
    apart = ""
    for subject in reversed(chain):
        grants = _in_phase(_declared_by(sandbox, subject), installing=installing and not found)
        if apart:
            text = f"it does not count: {apart} inherits nothing from its callers"
        elif not grants.is_known:
            text = grants.note
        elif subject.kind in _PLACES:
            text = "it declares nothing"
        else:
            text = "its declarations count" if grants.rules else "it has no declarations that count"
        found.append(Link(grants, counts=not apart, text=text))
        if not apart and _stands_alone(sandbox, subject):
            apart = str(subject)
    return tuple(found)


def rule_owner(links: tuple[Link, ...], rule: AccessRule) -> Grants:
    """Return the owner of a rule."""
    return next(link.grants for link in links if rule in link.grants.rules)


def _declared_by(sandbox: Sandbox, subject: Subject) -> Grants:
    """Return a subject's declarations; without any, it has the rights of its callers in this chain."""
    if subject.kind in _PLACES or (_is_part(subject) and not _stands_alone(sandbox, subject)):
        known = grants_of(sandbox, subject)
        note = "it declares nothing and has the rights of its caller" if known.is_known else known.note
        return Grants(subject, f"the declaration of {subject.kind} {subject.name}", note=note, is_known=known.is_known)
    return grants_of(sandbox, subject)


def _stands_alone(sandbox: Sandbox, subject: Subject) -> bool:
    if not _is_part(subject):
        return subject.kind in _ALONE
    return any(one.label == str(subject) and one.declaration.access is not None for one in sandbox.runtime.ai.assets)


def _is_part(subject: Subject) -> bool:
    return subject.kind in (SubjectKind.TOOL, SubjectKind.AGENT, SubjectKind.PIPELINE)


def _in_phase(grants: Grants, *, installing: bool) -> Grants:
    """Return the grants of the install phase instead of the runtime phase."""
    if not installing:
        return grants
    return replace(grants, rules=grants.install_rules, other_rules=grants.rules, install_rules=())
