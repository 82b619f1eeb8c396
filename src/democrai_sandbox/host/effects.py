"""Effect of a decision in one sentence: the covered users, its duration, and the other requests it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.access.values import Effect, Scope

from .wording import decided_words

if TYPE_CHECKING:
    from democrai_sandbox.access.values import AccessTuple, Reach


def effect_words(
    access: AccessTuple, effect: Effect, scope: Scope, *, until: str = "", user: str = "", session: str = ""
) -> str:
    """Return the allowed or denied access, its users and its duration, without a full stop.

    ``until`` is the end of a limited decision: ``for 7 days``. Texts from other sources are included unescaped.
    """
    rule = decided_words(access, may=effect is Effect.APPROVAL)
    return f"{rule[:1].upper()}{rule[1:]}, {whom_words(scope, user, session)}, {until or end_words(effect, scope)}"


def whom_words(scope: Scope, user: str = "", session: str = "") -> str:
    """Return the users and sessions that a decision covers."""
    if scope is Scope.PERMANENT:
        return "for every user and session"
    whose = f"user {user} in " if user else ""
    return f"only for {whose}session {session}"


def end_words(effect: Effect, scope: Scope) -> str:
    """Return the end of a decision without a time limit."""
    if scope is Scope.SESSION:
        return "until that session ends"
    return (
        "until an administrator revokes it"
        if effect is Effect.APPROVAL
        else "until an administrator revokes the denial"
    )


def answers_words(reach: Reach, scope: Scope) -> str:
    """Return how many other pending requests a decision will answer."""
    count = reach.in_session if scope is Scope.SESSION else reach.requests
    if not count:
        return "it answers no other pending request"
    users = "" if scope is Scope.SESSION else f" of {_number(reach.users, 'user')}"
    least = "at least " if reach.more else ""
    return f"it also answers {least}{_number(count, 'other pending request')}{users}"


def answered_words(count: int) -> str:
    """Return how many other requests a decision has answered."""
    return f"it also answered {_number(count, 'other request')}" if count else "it answered no other request"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
