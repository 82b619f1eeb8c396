"""Asynchronous form of the access service. Each call runs in a thread."""

from __future__ import annotations

from asyncio import to_thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from democrai_sandbox.policy import AccessDecision

    from .administration import Administration
    from .outcomes import Outcome
    from .service import AccessService
    from .values import AuditFilter, Decision, DecisionFilter, Listing, Page, RequestFilter


class AsyncAccess:
    """Checks and decisions as coroutines.

    The request context is copied to the thread, so the caller's identity is kept.
    """

    def __init__(self, service: AccessService, administration: Administration) -> None:
        """Wrap the service and the administration."""
        self._service = service
        self._administration = administration

    async def check_external_access(self, **wanted: Any) -> AccessDecision:
        """Check; see ``AccessService.check_external_access``."""
        return await to_thread(self._service.check_external_access, **wanted)

    async def require_external_access(self, **wanted: Any) -> AccessDecision:
        """Check, and attach a resume action; see ``AccessService.require_external_access``."""
        return await to_thread(self._service.require_external_access, **wanted)

    async def approve_for_session(self, request_id: str, **details: Any) -> Outcome:
        """Approve until the session ends. For this and the following methods see ``Administration``."""
        return await to_thread(self._administration.approve_for_session, request_id, **details)

    async def approve_permanently(self, request_id: str, **details: Any) -> Outcome:
        """Approve permanently."""
        return await to_thread(self._administration.approve_permanently, request_id, **details)

    async def deny_external_access(self, request_id: str, **details: Any) -> Outcome:
        """Deny permanently."""
        return await to_thread(self._administration.deny_external_access, request_id, **details)

    async def revoke(self, decision_id: str, *, reason: str = "") -> Decision:
        """End a decision."""
        return await to_thread(self._administration.revoke, decision_id, reason=reason)

    async def end_session(self, session_key: str) -> int:
        """End the approvals of a session."""
        return await to_thread(self._administration.end_session, session_key)

    async def pending_requests(self, wanted: RequestFilter | None = None, page: Page | None = None) -> Listing:
        """List requests."""
        return await to_thread(self._administration.pending_requests, wanted, page)

    async def approvals(self, wanted: DecisionFilter | None = None, page: Page | None = None) -> Listing:
        """List approvals."""
        return await to_thread(self._administration.approvals, wanted, page)

    async def denials(self, wanted: DecisionFilter | None = None, page: Page | None = None) -> Listing:
        """List denials."""
        return await to_thread(self._administration.denials, wanted, page)

    async def history(self, wanted: AuditFilter | None = None, page: Page | None = None) -> Listing:
        """List audit records."""
        return await to_thread(self._administration.history, wanted, page)
