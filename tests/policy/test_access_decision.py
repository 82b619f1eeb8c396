"""Decisions of the external-access check."""

from __future__ import annotations

import pytest

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode
from tests.services.rows import rows


def test_codes_are_those_of_the_contract():
    """Exactly the codes of the contract exist."""
    assert {code.value for code in DecisionCode} == {
        "sandbox_allowlist",
        "session_approval",
        "permanent_approval",
        "denied",
        "pending",
        "not_enabled",
    }


def test_locked_message_has_the_documented_words():
    """The message for a target that is not enabled is fixed."""
    assert EXTERNAL_URL_LOCKED == "External URL is locked."  # wording: text of the contract


@rows("code", DecisionCode)
def test_allowed_follows_the_code(code):
    """A decision whose flag and code disagree cannot be created."""
    expected = code.value in {"sandbox_allowlist", "session_approval", "permanent_approval"}
    assert AccessDecision(expected, code, requires_approval=False, message="").allowed is expected
    with pytest.raises(ValueError, match=code.value):
        AccessDecision(not expected, code, requires_approval=False, message="")


@rows(
    "fields",
    [
        (1, DecisionCode.DENIED, False),
        (None, DecisionCode.DENIED, False),
        (False, "denied", False),
        (False, DecisionCode.DENIED, 0),
    ],
)
def test_loose_types_are_refused(fields):
    """Truthy values and texts that look like a code are rejected."""
    with pytest.raises(TypeError):
        AccessDecision(*fields, message="")


@rows("extra", [{"requires_approval": True}, {"requires_approval": False, "request_id": "r1"}])
def test_an_allowed_operation_waits_for_nobody(extra):
    """Allowed decisions neither require approval nor have a pending request."""
    fields = {"allowed": True, "code": DecisionCode.SESSION_APPROVAL, "message": ""}
    assert AccessDecision(**fields, requires_approval=False).allowed
    with pytest.raises(ValueError):
        AccessDecision(**fields, **extra)


def test_decisions_do_not_change():
    """A decision is immutable."""
    decision = AccessDecision(False, DecisionCode.PENDING, True, "waiting", "r1")
    assert decision.request_id == "r1"
    with pytest.raises(AttributeError):
        decision.allowed = True
    with pytest.raises(AttributeError):
        object.__setattr__(decision, "allowed", True)
