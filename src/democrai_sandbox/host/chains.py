"""Which declarations count when a subject acts inside others.

What the runtime enters is merged: a subject may do what it declares, and what the subjects around it do. A tool, agent
or pipeline with declarations of its own, an MCP server, an engine and an extractor take nothing from what is around
them. Decisions are always about the innermost subject alone.
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
"""Names for where something runs: they declare nothing themselves."""


@dataclass(frozen=True, slots=True)
class Link:
    """One subject of a chain, and whether its declarations count."""

    grants: Grants
    counts: bool
    text: str

    @property
    def subject(self) -> Subject:
        """Whose declarations they are."""
        return self.grants.subject


def links_of(sandbox: Sandbox, chain: SubjectChain, *, installing: bool = False) -> tuple[Link, ...]:
    """Return the subjects of a chain from the innermost on, each with whether it counts."""
    if len(chain) == 1:
        return (
            Link(_in_phase(grants_of(sandbox, chain[0]), installing=installing), counts=True, text="it acts itself"),
        )
    found: list[Link] = []
    apart = ""
    for subject in reversed(chain):
        grants = _in_phase(_declared_by(sandbox, subject), installing=installing and not found)
        if apart:
            text = f"it does not count: {apart} takes nothing from what is around it"
        elif not grants.is_known:
            text = grants.note
        elif subject.kind in _PLACES:
            text = "it declares nothing itself"
        else:
            text = "its declarations count" if grants.rules else "it declares nothing that would count"
        found.append(Link(grants, counts=not apart, text=text))
        if not apart and _stands_alone(sandbox, subject):
            apart = str(subject)
    return tuple(found)


def rule_owner(links: tuple[Link, ...], rule: AccessRule) -> Grants:
    """Return whose rule it is."""
    return next(link.grants for link in links if rule in link.grants.rules)


def _declared_by(sandbox: Sandbox, subject: Subject) -> Grants:
    """Return what a subject declares itself: one that declares nothing runs under what is around it in this chain."""
    if subject.kind in _PLACES or (_is_part(subject) and not _stands_alone(sandbox, subject)):
        known = grants_of(sandbox, subject)
        note = "it declares nothing, and runs under what is around it" if known.is_known else known.note
        return Grants(subject, f"the declaration of {subject.kind} {subject.name}", note=note, is_known=known.is_known)
    return grants_of(sandbox, subject)


def _stands_alone(sandbox: Sandbox, subject: Subject) -> bool:
    if not _is_part(subject):
        return subject.kind in _ALONE
    return any(one.label == str(subject) and one.declaration.access is not None for one in sandbox.runtime.ai.assets)


def _is_part(subject: Subject) -> bool:
    return subject.kind in (SubjectKind.TOOL, SubjectKind.AGENT, SubjectKind.PIPELINE)


def _in_phase(grants: Grants, *, installing: bool) -> Grants:
    """Return what holds while it is installed, in the place of what holds while it serves."""
    if not installing:
        return grants
    return replace(grants, rules=grants.install_rules, other_rules=grants.rules, install_rules=())
