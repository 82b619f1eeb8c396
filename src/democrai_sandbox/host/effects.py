"""What a decision does, in one sentence: whom it covers, for how long, and how many other requests it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.access.values import Effect, Scope

from .wording import decided_words

if TYPE_CHECKING:
    from democrai_sandbox.access.values import AccessTuple, Reach


def effect_words(
    access: AccessTuple, effect: Effect, scope: Scope, *, until: str = "", user: str = "", session: str = ""
) -> str:
    """Return what a decision allows or denies, to whom and for how long, without a full stop.

    ``until`` is when it ends, for one that has an end: ``for 7 days``. The texts of others stand in it as they are.
    """
    rule = decided_words(access, may=effect is Effect.APPROVAL)
    return f"{rule[:1].upper()}{rule[1:]}, {whom_words(scope, user, session)}, {until or end_words(effect, scope)}"


def whom_words(scope: Scope, user: str = "", session: str = "") -> str:
    """Return whom a decision covers."""
    if scope is Scope.PERMANENT:
        return "for every user and session"
    whose = f"user {user} in " if user else ""
    return f"only for {whose}session {session}"


def end_words(effect: Effect, scope: Scope) -> str:
    """Return when a decision without a time limit ends."""
    if scope is Scope.SESSION:
        return "until that session ends"
    return (
        "until an administrator revokes it"
        if effect is Effect.APPROVAL
        else "until an administrator removes the denial"
    )


def answers_words(reach: Reach, scope: Scope) -> str:
    """Return how many other waiting requests a decision will answer."""
    count = reach.in_session if scope is Scope.SESSION else reach.requests
    if not count:
        return "no other waiting request is answered by it"
    users = "" if scope is Scope.SESSION else f" of {_number(reach.users, 'user')}"
    least = "at least " if reach.more else ""
    return f"it also answers {least}{_number(count, 'other waiting request')}{users}"


def answered_words(count: int) -> str:
    """Return how many other requests a decision has answered."""
    return f"it also answered {_number(count, 'other request')}" if count else "it answered no other request"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
