"""Guard state of the core, converted to Python values."""

from __future__ import annotations

from typing import Any, NamedTuple

from democrai_sandbox.policy import Subject, SubjectChain, SubjectKind, rules_from_json

from ._core import current_view
from .interface import AllowLink, GuardView

_EXACT = 1


class RawView(NamedTuple):
    """View of the core: the subjects from the outermost, then the identity."""

    links: tuple[tuple[str, str, str, int], ...]
    labels: tuple[str, ...]
    user_id: Any
    organization_id: Any
    session_key: Any
    allow_subprocess: bool
    allowed_imports: frozenset[str]
    narrowed: bool = False
    """Whether guarded code gave up declarations in a narrower context; the links do not say which."""
    opened_by: str = ""
    """Public function that the host called for this guard; empty for a guard of the runtime."""

    @property
    def chain(self) -> SubjectChain:
        """Call chain, outermost subject first."""
        return tuple(map(Subject.parse, self.labels))

    @property
    def allow_chain(self) -> tuple[AllowLink, ...]:
        """Rules in force, by contributing subject; an exact context hides the enclosing ones.

        Built from text each time, so that changes to the result have no effect.
        """
        links: list[AllowLink] = []
        for kind, name, declared, mode in self.links:
            if mode == _EXACT:
                links.clear()
            links.append(AllowLink(Subject(SubjectKind(kind), name), rules_from_json(declared)))
        return tuple(links)

    @property
    def actor(self) -> tuple[str, str]:
        """Kind and name of the innermost subject."""
        kind, name, _, _ = self.links[-1]
        return kind, name


def is_guarded() -> bool:
    """Return whether a guard applies to the caller."""
    return current_view() is not None


def current_guard() -> GuardView | None:
    """Return the guard state of the caller, or None."""
    raw = current_view()
    return None if raw is None else view_of(RawView(*raw))


def view_of(view: RawView) -> GuardView:
    """Return the values of a view of the core."""
    kind, name = view.actor
    return GuardView(
        subject=name,
        subject_kind=SubjectKind(kind),
        subject_chain=view.chain,
        subject_allow_chain=view.allow_chain,
        allowed_imports=view.allowed_imports,
        allow_subprocess=view.allow_subprocess,
        user_id=view.user_id,
        organization_id=view.organization_id,
        session_key=view.session_key,
    )
