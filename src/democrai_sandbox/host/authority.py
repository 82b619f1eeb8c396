"""Who may change what holds for everybody: administrators, and never guarded code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessAdminRequired

from .keeping import refuse_guarded

if TYPE_CHECKING:
    from democrai_sandbox.access.identity import Caller


def require_administrator(caller: Caller, what: str) -> None:
    """Refuse guarded code, and users who may not decide. ``what`` names it in a denial."""
    refuse_guarded(what)
    if not caller.may_decide:
        raise ExternalAccessAdminRequired("this is for administrators: the super role, and no organization")
