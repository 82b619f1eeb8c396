"""Permission check for changes that affect all users: administrators only, never guarded code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessAdminRequired

from .keeping import refuse_guarded

if TYPE_CHECKING:
    from democrai_sandbox.access.identity import Caller


def require_administrator(caller: Caller, what: str) -> None:
    """Raise for guarded code and for users who may not decide. ``what`` names the action in a denial."""
    refuse_guarded(what)
    if not caller.may_decide:
        raise ExternalAccessAdminRequired("only administrators may do this: the super role, and no organization")
