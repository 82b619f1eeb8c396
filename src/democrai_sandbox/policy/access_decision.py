"""Decision of an external-access check, with its code."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

EXTERNAL_URL_LOCKED = "External URL is locked."
"""Message for a network target that is not enabled."""


class DecisionCode(StrEnum):
    """Reason for the result of a check."""

    SANDBOX_ALLOWLIST = "sandbox_allowlist"
    SESSION_APPROVAL = "session_approval"
    PERMANENT_APPROVAL = "permanent_approval"
    DENIED = "denied"
    PENDING = "pending"
    NOT_ENABLED = "not_enabled"

    @property
    def allows(self) -> bool:
        """Whether a decision with this code allows the operation."""
        return self in _ALLOWING


_ALLOWING = frozenset({DecisionCode.SANDBOX_ALLOWLIST, DecisionCode.SESSION_APPROVAL, DecisionCode.PERMANENT_APPROVAL})


class _AccessDecisionFields(NamedTuple):
    allowed: bool
    code: DecisionCode
    requires_approval: bool
    message: str
    request_id: str | None = None


class AccessDecision(_AccessDecisionFields):
    """Result of ``check_external_access``, consistent and immutable.

    ``request_id`` is the pending request, if one exists. The class is a tuple because ``object.__setattr__`` can change
    a frozen dataclass, and a cached result could then be changed by its first receiver.
    """

    __slots__ = ()

    def __new__(
        cls,
        allowed: bool,  # noqa: FBT001 - the fields of a tuple
        code: DecisionCode,
        requires_approval: bool,  # noqa: FBT001 - likewise
        message: str,
        request_id: str | None = None,
    ) -> Self:
        """Reject a decision whose fields contradict each other."""
        if (type(allowed), type(code), type(requires_approval)) != (bool, DecisionCode, bool):
            raise TypeError("a decision needs two bools and a DecisionCode")
        if allowed is not code.allows:
            raise ValueError(f"a decision with the code {code} cannot have allowed={allowed}")
        if allowed and (requires_approval or request_id is not None):
            raise ValueError("an allowed operation cannot require approval or have a pending request")
        return super().__new__(cls, allowed, code, requires_approval, message, request_id)
