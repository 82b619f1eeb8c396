"""Requests for undeclared access: the approval flow for access that is only known at run time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import ask_external_access
from democrai_sandbox.runtime import sdk_services

if TYPE_CHECKING:
    from democrai_sandbox.policy import AccessDecision

EXTERNAL_RESOURCE_NETWORK = "network"
EXTERNAL_RESOURCE_FILESYSTEM = "filesystem"
EXTERNAL_RESOURCE_SYSTEM_DEPENDENCY = "system_dependency"


def check_external_access(
    *, resource_type: str, operation: str, target: str, register_request: bool = True
) -> AccessDecision:
    """Return whether this subject may access something: declared, approved, denied, or now pending.

    The guard identifies the subject. With ``register_request``, undecided access becomes a pending request.
    """
    return _asked(resource_type, operation, target, register_request=register_request)


def require_external_access(
    *, resource_type: str, operation: str, target: str, resume_action: str, resume_context: Any = None
) -> AccessDecision:
    """Ask for access, and name a resume action, which runs after an approval as the user who made this request.

    ``resume_context`` is JSON data, stored encrypted. The decision is returned, not raised.
    """
    context = None if resume_context is None else json.dumps(resume_context)
    return _asked(
        resource_type, operation, target, register_request=True, resume_action=resume_action, resume_context=context
    )


def _asked(resource_type: str, operation: str, target: str, **options: Any) -> AccessDecision:
    decision = ask_external_access(resource_type, operation, target, **options)
    is_program = resource_type == EXTERNAL_RESOURCE_SYSTEM_DEPENDENCY
    if is_program and decision.allowed and sdk_services.is_served(sdk_services.USED_PROGRAM):
        # Tests list used programs; the guard reports all other uses.
        sdk_services.call(sdk_services.USED_PROGRAM, operation, target)
    return decision


def pending_requests() -> list[dict[str, Any]]:
    """Return the pending requests. Only for modules that are access managers of the host."""
    listed: list[dict[str, Any]] = sdk_services.call("access.manage", "pending", {})
    return listed


def approve_for_session(request_id: str, *, reason: str = "") -> dict[str, Any]:
    """Approve a request until its session ends; a request without a session is skipped. For access managers."""
    return _manage("approve_for_session", request_id, reason)


def approve_permanently(request_id: str, *, reason: str = "") -> dict[str, Any]:
    """Approve a request permanently. For access managers, never for themselves."""
    return _manage("approve_permanently", request_id, reason)


def deny_external_access(request_id: str, *, reason: str = "") -> dict[str, Any]:
    """Deny a request permanently. For access managers."""
    return _manage("deny_external_access", request_id, reason)


def revoke(decision_id: str, *, reason: str = "") -> dict[str, Any]:
    """End an approval or a denial. For access managers."""
    return _manage("revoke", decision_id, reason)


def _manage(act: str, identifier: str, reason: str) -> dict[str, Any]:
    done: dict[str, Any] = sdk_services.call("access.manage", act, {"id": identifier, "reason": reason})
    return done
