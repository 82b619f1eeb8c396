"""Suggested manifest: the original with proposed declarations for one phase."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .lint import Finding, lint
from .loading import manifest_to_dict, parse_manifest
from .models import Section
from .proposing import Observed, Proposal, allowing, propose

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from democrai_sandbox.policy import AccessRule

    from .models import Manifest

__all__ = ["Suggestion", "section_of", "suggest"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Suggested manifest with its proposal and the current declarations."""

    proposal: Proposal
    declared: tuple[AccessRule, ...]
    """Current rules of the manifest."""
    declared_imports: tuple[str, ...]
    unused: tuple[AccessRule, ...]
    """Current rules that allowed no observed access."""
    value: dict[str, Any]
    """Suggested manifest as JSON data; only the declarations of the phase differ from the original."""
    manifest: Manifest
    """Parsed form of the suggested manifest."""
    findings: tuple[Finding, ...]
    """Lint findings; lines are those of ``text``."""
    allowed_by: Callable[[Observed], frozenset[int]] = field(repr=False, compare=False)
    """Function that finds the rules of ``declared`` that allow an access."""
    present: Manifest
    """Original manifest."""
    pointer: str = ""
    """JSON pointer of the section."""

    @property
    def text(self) -> str:
        """Suggested manifest as the text of a file."""
        return _text(self.value)

    def with_proposal(self, proposal: Proposal) -> Suggestion:
        """Return the suggestion with another proposal."""
        value, made = _made(self.present, self.pointer, proposal)
        return replace(self, proposal=proposal, value=value, manifest=made, findings=lint(made))

    def is_declared(self, observed: Observed) -> bool:
        """Return whether the current manifest allows an access."""
        return bool(self.allowed_by(observed))


def suggest(
    manifest: Manifest,
    observed: Iterable[Observed],
    imports: Iterable[str] = (),
    *,
    pointer: str = "",
    most: int | None = None,
    granted: tuple[AccessRule, ...] = (),
    looked: Container[Observed] = (),
    folders: Container[str] = (),
) -> Suggestion:
    """Suggest a manifest whose section at ``pointer`` allows exactly the observed accesses; see ``propose``.

    ``granted`` are rights that the subject has from elsewhere; they need no entries.
    """
    elsewhere = allowing(granted)
    seen = tuple(one for one in dict.fromkeys(observed) if not elsewhere(one))
    proposal = propose(seen, imports, most=most, looked=looked, folders=folders)
    value, made = _made(manifest, pointer, proposal)
    section = section_of(manifest, pointer)
    declared = section.access
    allowed_by = allowing(declared)
    used = frozenset[int]().union(*map(allowed_by, seen))
    unused = tuple(rule for position, rule in enumerate(declared) if position not in used)
    present = (declared, section.allowed_imports, unused)
    return Suggestion(proposal, *present, value, made, lint(made), allowed_by, manifest, pointer)


def section_of(manifest: Manifest, pointer: str) -> Section:
    """Return the section of a manifest for one phase."""
    return manifest.sections.get(pointer) or Section()


def _made(manifest: Manifest, pointer: str, proposal: Proposal) -> tuple[dict[str, Any], Manifest]:
    """Return a manifest with a proposal, as JSON data and as a model."""
    value = _with(manifest, pointer, proposal)
    return value, parse_manifest(_text(value), manifest.kind, folder=manifest.source.folder, name=manifest.name)


def _with(manifest: Manifest, pointer: str, proposal: Proposal) -> dict[str, Any]:
    written = manifest.source.value
    value: dict[str, Any] = deepcopy(manifest_to_dict(manifest) if written is None else written)
    section = value.setdefault(pointer[1:], {}) if pointer else value
    folder = manifest.source.folder
    for key, new in (
        ("access", [entry.to_dict(folder) for entry in proposal.entries]),
        ("allowed_imports", list(proposal.allowed_imports)),
    ):
        if new or key in section:
            section[key] = new
    section.pop("review", None)
    if proposal.review:
        section["review"] = list(proposal.review)
    if pointer and not section and pointer[1:] not in (written or {}):
        del value[pointer[1:]]
    return value


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
