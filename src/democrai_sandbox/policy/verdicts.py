"""The outcome of an external-access check."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Self

EXTERNAL_URL_LOCKED = "External URL is locked."
"""The message for a network target that nothing enables."""


class DecisionCode(StrEnum):
    """Why a check ended as it did."""

    SANDBOX_ALLOWLIST = "sandbox_allowlist"
    SESSION_APPROVAL = "session_approval"
    PERMANENT_APPROVAL = "permanent_approval"
    DENIED = "denied"
    PENDING = "pending"
    NOT_ENABLED = "not_enabled"

    @property
    def allows(self) -> bool:
        """Whether a decision with this code lets the operation happen."""
        return self in _ALLOWING


_ALLOWING = frozenset({DecisionCode.SANDBOX_ALLOWLIST, DecisionCode.SESSION_APPROVAL, DecisionCode.PERMANENT_APPROVAL})


class _Fields(NamedTuple):
    allowed: bool
    code: DecisionCode
    requires_approval: bool
    message: str
    request_id: str | None = None


class AccessDecision(_Fields):
    """The answer of ``check_external_access``. One that contradicts itself cannot be made, and none can be changed.

    ``request_id`` is the pending request, when there is one. It is a tuple because a frozen dataclass can be written to
    with ``object.__setattr__``: an answer that is kept for the next question would be rewritten by who got it first.
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
        """Refuse a decision whose fields disagree: it would be read either way."""
        if (type(allowed), type(code), type(requires_approval)) != (bool, DecisionCode, bool):
            raise TypeError("a decision needs two bools and a DecisionCode")
        if allowed is not code.allows:
            raise ValueError(f"a decision with the code {code} cannot have allowed={allowed}")
        if allowed and (requires_approval or request_id is not None):
            raise ValueError("an allowed operation neither needs approval nor has a pending request")
        return super().__new__(cls, allowed, code, requires_approval, message, request_id)
