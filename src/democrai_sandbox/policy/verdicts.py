"""The outcome of an external-access check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer of ``check_external_access``. One that contradicts itself cannot be made."""

    allowed: bool
    code: DecisionCode
    requires_approval: bool
    message: str
    request_id: str | None = None
    """The pending request, when there is one."""

    def __post_init__(self) -> None:
        """Refuse a decision whose fields disagree: it would be read either way."""
        types: tuple[type, ...] = (type(self.allowed), type(self.code), type(self.requires_approval))
        if types != (bool, DecisionCode, bool):
            message = "a decision needs two bools and a DecisionCode"
            raise TypeError(message)
        if self.allowed is not self.code.allows:
            message = f"a decision with the code {self.code} cannot have allowed={self.allowed}"
            raise ValueError(message)
        if self.allowed and (self.requires_approval or self.request_id is not None):
            message = "an allowed operation neither needs approval nor has a pending request"
            raise ValueError(message)
