"""Read permissions: lists with data of all users need the right to decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessAdminRequired

if TYPE_CHECKING:
    from .visitors import Visitor


def require_administrator(visitor: Visitor) -> None:
    """Refuse a user who may not decide, with the error of the access service."""
    if not visitor.may_decide:
        raise ExternalAccessAdminRequired("this needs an administrator: the super role, and no organization")
