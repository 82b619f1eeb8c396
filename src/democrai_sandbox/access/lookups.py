"""Read-only queries of consoles, monitors and explanations to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from .risk import Assessment
    from .values import AccessTuple, AuditRecord, Decision, Listing, Page, Request, RequestFilter, RequestState, Resume


class Lookups(Protocol):
    """Read-only part of a store. The cost of each query hardly depends on the length of the history."""

    def queue(self, wanted: RequestFilter, page: Page) -> Listing:
        """List groups of pending requests (``RequestGroup``) by risk, then by their newest request.

        A group moves only when another user requests the same access; repeated requests do not move it between pages.
        """
        ...

    def assessments(self, access: AccessTuple, targets: Sequence[str] = ()) -> tuple[Assessment, ...]:
        """Return the risk of approving an access, from its target and from earlier decisions about it.

        With targets that cover it, return the risk of the same about each of them instead.
        """
        ...

    def counts(self, wanted: RequestFilter) -> dict[RequestState, int]:
        """Count requests by state, all states unless the filter names some; at most the latest 10,000 of each."""
        ...

    def pulse(self) -> tuple[int, int]:
        """Return the generation and the audit sequence. They change with every change on any node."""
        ...

    def oldest_pending(self) -> datetime | None:
        """Return the time of the oldest pending request, or None."""
        ...

    def decision_seconds(self, since: datetime, until: datetime | None = None) -> tuple[float, ...]:
        """Return the waiting time of each request that was decided from ``since`` on and before ``until``."""
        ...

    def audit_record(self, sequence: int) -> AuditRecord:
        """Return one audit record; raises ``AuditRecordUnknown``."""
        ...

    def resume_of(self, request_id: str) -> Resume | None:
        """Return the resumption of a request, or None."""
        ...

    def waiting_for(self, access: AccessTuple) -> tuple[Request, ...]:
        """Return the pending requests for an access in any spelling, the newest first, at most 100."""
        ...

    def versions(self, accesses: Collection[AccessTuple]) -> dict[str, int]:
        """Return the generation of the last change to the decisions about each access, by digest; 0 if none exists."""
        ...

    def related(self, access: AccessTuple) -> tuple[Decision, ...]:
        """Return the latest decisions about the subject and resource type, then of other subjects about the target."""
        ...
