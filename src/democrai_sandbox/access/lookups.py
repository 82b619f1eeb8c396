"""What the store is asked by those who look and decide nothing: consoles, monitors, explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from .risk import Assessment
    from .values import AccessTuple, AuditRecord, Decision, Listing, Page, Request, RequestFilter, RequestState, Resume


class AuditRecordUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No record of the audit has this number."""

    code = "external_access_record_unknown"


class Lookups(Protocol):
    """The part of a store that reads for people. Each costs about the same however much history there is."""

    def queue(self, wanted: RequestFilter, page: Page) -> Listing:
        """List groups of pending requests (``RequestGroup``): by risk, and then by their newest request.

        A group moves only when somebody new asks for the same: asking again moves nothing between pages.
        """
        ...

    def assessments(self, access: AccessTuple, targets: Sequence[str] = ()) -> tuple[Assessment, ...]:
        """Return the risk of approving an access, from its target and from earlier decisions about it.

        With targets that cover it, return the risk of the same about each of them instead.
        """
        ...

    def counts(self, wanted: RequestFilter) -> dict[RequestState, int]:
        """Count requests by state, all of them unless the filter names some; the latest 10,000 of each."""
        ...

    def pulse(self) -> tuple[int, int]:
        """Return generation and audit sequence: something has changed, on whatever node, when they have."""
        ...

    def oldest_pending(self) -> datetime | None:
        """Return since when the request waits that waits longest; None when none waits."""
        ...

    def decision_seconds(self, since: datetime, until: datetime | None = None) -> tuple[float, ...]:
        """Return how long each request waited that was decided from ``since`` on, and before ``until``."""
        ...

    def audit_record(self, sequence: int) -> AuditRecord:
        """Return one record of the audit; raises ``AuditRecordUnknown``."""
        ...

    def resume_of(self, request_id: str) -> Resume | None:
        """Return the resumption of a request, if there is one."""
        ...

    def waiting_for(self, access: AccessTuple) -> tuple[Request, ...]:
        """Return the pending requests for a tuple, in whatever spelling; the newest first, a hundred at most."""
        ...

    def versions(self, accesses: Collection[AccessTuple]) -> dict[str, int]:
        """Return the generation of the last change to the decisions about each tuple, by digest; 0 for none yet."""
        ...

    def related(self, access: AccessTuple) -> tuple[Decision, ...]:
        """Return the latest decisions about the same subject and kind of resource, then others' about this target."""
        ...
