"""A proposal in the place where it belongs: the manifest as it was written, with the declarations of one phase new."""

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
    """What is to be declared, beside what is."""

    proposal: Proposal
    declared: tuple[AccessRule, ...]
    """What the manifest says now."""
    declared_imports: tuple[str, ...]
    unused: tuple[AccessRule, ...]
    """What of that allowed nothing that was seen."""
    value: dict[str, Any]
    """The manifest that is proposed, as JSON data; all but the declarations of the phase is as it was."""
    manifest: Manifest
    """The same, read back."""
    findings: tuple[Finding, ...]
    """Advice about it; lines are those of ``text``."""
    allowed_by: Callable[[Observed], frozenset[int]] = field(repr=False, compare=False)
    """Tells which of ``declared`` allow something."""
    present: Manifest
    """What it is a suggestion for."""
    pointer: str = ""
    """The section that it is about."""

    @property
    def text(self) -> str:
        """The manifest that is proposed, as it is written to a file."""
        return _text(self.value)

    def with_proposal(self, proposal: Proposal) -> Suggestion:
        """Return the same with another proposal."""
        value, made = _made(self.present, self.pointer, proposal)
        return replace(self, proposal=proposal, value=value, manifest=made, findings=lint(made))

    def is_declared(self, observed: Observed) -> bool:
        """Tell whether the manifest allows something now."""
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
    """Return a manifest whose section at ``pointer`` allows what was seen and no more; see ``propose``.

    ``granted`` is what the subject has from elsewhere: it needs no entries.
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
    """Return what a manifest says about one phase."""
    return manifest.sections.get(pointer) or Section()


def _made(manifest: Manifest, pointer: str, proposal: Proposal) -> tuple[dict[str, Any], Manifest]:
    """Return a manifest with a proposal in it, as it is written and as it is read."""
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
