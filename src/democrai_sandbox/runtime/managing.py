"""Access managers: modules whose guarded code may decide about others, on behalf of an authorized user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.access import Administration
from democrai_sandbox.errors import ExternalAccessAdminRequired, InvalidInputError
from democrai_sandbox.guard.views import RawView, view_of

from .surroundings import GuardSurroundings

if TYPE_CHECKING:
    from collections.abc import Collection

    from democrai_sandbox.access import Access
    from democrai_sandbox.access.values import Decision, Request
    from democrai_sandbox.guard import GuardView
    from democrai_sandbox.policy import Subject

_ACTS = ("approve_for_session", "approve_permanently", "deny_external_access", "revoke")


class _Visitor(GuardSurroundings):
    """Access environment of a guarded caller, from the core's view of its guard."""

    def __init__(self, view: RawView) -> None:
        self._view = view

    def is_guarded(self) -> bool:
        return True

    def guard(self) -> GuardView:
        return view_of(self._view)


class Managing:
    """The service behind the managing half of ``sdk.access``."""

    def __init__(self, access: Access, managers: Collection[Subject]) -> None:
        """Take the subjects that may decide."""
        self._node = access.node
        self._managers = frozenset(managers)

    def manage(self, view: RawView | None, act: str, details: dict[str, Any]) -> Any:
        """List pending requests, or decide. The service checks from the guard's view whether the caller may."""
        if view is None:
            raise ExternalAccessAdminRequired("the host decides through the access service, not through the SDK")
        administration = Administration(self._node, _Visitor(view), managers=self._managers)
        if act == "pending":
            return [_request(request) for request in administration.pending_requests().items]
        if act not in _ACTS:
            raise InvalidInputError.of(f"unknown act {act!r}; one of: {', '.join(_ACTS)}", pointer="/act")
        outcome = getattr(administration, act)(details.get("id", ""), reason=details.get("reason", ""))
        decision = outcome if act == "revoke" else outcome.decision
        skipped = "" if act == "revoke" else outcome.skipped
        return {"decision": None if decision is None else _decision(decision), "skipped": skipped}


def _request(request: Request) -> dict[str, Any]:
    wanted, origin = request.access, request.origin
    return {
        "id": request.id,
        "subject": str(wanted.subject),
        "resource_type": str(wanted.resource_type),
        "operation": str(wanted.operation),
        "target": wanted.target,
        "user_id": origin.user_id,
        "has_session": bool(origin.session_key),
        "count": request.count,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {"id": decision.id, "effect": str(decision.effect), "scope": str(decision.scope)}
