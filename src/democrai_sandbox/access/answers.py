"""Results of a check, with their messages."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode, ResourceType

from .snapshot import DENIED, PERMANENT_APPROVAL, SESSION_APPROVAL

if TYPE_CHECKING:
    from .targets import Wanted

LONGEST_MESSAGE = 500

_MESSAGES = (
    (SESSION_APPROVAL, "Allowed for this session by an approval."),
    (PERMANENT_APPROVAL, "Allowed permanently by an approval."),
    (DENIED, "External resource is disabled."),
)
# Read-only: guarded code can import this module and could otherwise replace a denial by an approval.
ANSWERS = MappingProxyType(
    {
        text: AccessDecision(
            allowed=DecisionCode(text).allows, code=DecisionCode(text), requires_approval=False, message=message
        )
        for text, message in _MESSAGES
    }
)
NEEDS_APPROVAL = "External resource needs approval."
UNNAMED = AccessDecision(
    allowed=False,
    code=DecisionCode.NOT_ENABLED,
    requires_approval=False,
    message="External resource cannot be named in a rule, so it cannot be approved.",
)
UNREADABLE = AccessDecision(
    allowed=False,
    code=DecisionCode.NOT_ENABLED,
    requires_approval=False,
    message=f"{EXTERNAL_URL_LOCKED} Servers read its path in different ways: it cannot be approved.",
)


def locked(wanted: Wanted, code: DecisionCode, request_id: str | None) -> AccessDecision:
    """Return the result for undecided access, with the id of the pending request if one was filed."""
    message = EXTERNAL_URL_LOCKED if wanted.resource_type is ResourceType.NETWORK else NEEDS_APPROVAL
    if request_id is None:
        return _without_request(code, message)
    return AccessDecision(allowed=False, code=code, requires_approval=True, message=message, request_id=request_id)


@lru_cache(maxsize=256)
def denied(reason: str) -> AccessDecision:
    """Return a denial with the administrator's reason in its message."""
    message = f"{ANSWERS[DENIED].message[:-1]}: {' '.join(reason.split())}"[:LONGEST_MESSAGE]
    return AccessDecision(allowed=False, code=DecisionCode.DENIED, requires_approval=False, message=message)


@lru_cache(maxsize=16)
def _without_request(code: DecisionCode, message: str) -> AccessDecision:
    return AccessDecision(allowed=False, code=code, requires_approval=True, message=message)
