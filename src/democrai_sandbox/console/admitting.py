"""Who may read what: lists that hold everybody's affairs are for those who may decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessAdminRequired

if TYPE_CHECKING:
    from .visitors import Visitor


def require_administrator(visitor: Visitor) -> None:
    """Refuse somebody who may not decide, with the same error as the service does."""
    if not visitor.may_decide:
        raise ExternalAccessAdminRequired("this is for administrators: the super role, and no organization")
