"""Store on SQLAlchemy Core: each method is one transaction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import Registered

from . import audit_log, decisions, queries, request_queue, requests, resumptions
from .audit_log import AuditEntry, Ledger
from .database import CONNECTIONS, Database
from .database_location import parse_url
from .schema import check_schema, prepare_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from democrai_sandbox.access.risk import RiskAssessment
    from democrai_sandbox.access.values import (
        AccessTuple,
        Aftermath,
        AuditAction,
        AuditFilter,
        AuditRecord,
        Changes,
        Decision,
        DecisionFilter,
        NewDecision,
        NewRequest,
        PageRequest,
        RequestFilter,
        RequestState,
        ResultPage,
        Resumption,
        StoredRequest,
        Undone,
    )


def open_store(url: str, *, create: bool = True, connections: int = CONNECTIONS) -> SqlStore:
    """Open the store in ``sqlite:////path/to/file`` or ``postgresql://...``; an empty database is initialized.

    Raises ``SchemaOutdated`` if another version created the database, and ``StoreUnavailable`` if it cannot be reached.
    Without ``create``, an empty database is refused like an outdated one.
    """
    return SqlStore(open_database(url, create=create, connections=connections))


def open_database(url: str, *, create: bool = True, connections: int = CONNECTIONS) -> Database:
    """Open a database with the current schema, also for records of other packages."""
    database = Database(parse_url(url, must_exist=not create), connections)
    try:
        if create:
            prepare_schema(database)
        else:
            check_schema(database)
    except BaseException:
        database.close()
        raise
    return database


class SqlStore:
    """Implementation of ``Store``; see there for the contract of each method."""

    def __init__(self, database: Database) -> None:
        """Use a database with the current schema."""
        self._database = database

    @property
    def database(self) -> Database:
        """Database, for other records in it."""
        return self._database

    def check_schema(self) -> str:
        """Return the schema version if this code supports it."""
        return check_schema(self._database).version

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    # ---- reads of nodes

    def generation(self) -> int:
        """Return the number of the last change to the decisions."""
        return self._database.ask(decisions.generation)

    def changes(self, since: int) -> Changes:
        """Return the decisions that changed after a generation; since 0 only those in force."""
        return self._database.read(partial(decisions.changes, since=since))

    # ---- acts

    def register(self, request: NewRequest, *, now: datetime, most_pending: int = 0) -> Registered:
        """Store a pending request or count it; return an empty id if the access is decided."""
        try:
            return self._database.act(partial(requests.register, request=request, now=now, most_pending=most_pending))
        except requests.AlreadyDecided:
            return Registered("", created=False)
        except requests.TooManyWaiting:
            return Registered("", created=False, full=True)

    def count_again(self, request_id: str, times: int, *, now: datetime) -> bool:
        """Add to the count of a pending request."""
        return self._database.act(partial(requests.count_again, request_id=request_id, times=times, now=now))

    def attach_resume(self, request: NewRequest, *, now: datetime) -> bool:
        """Attach a resume action to a pending request of this origin that has none."""
        return self._database.act(partial(requests.attach_resume, request=request, now=now))

    def decide(self, decision: NewDecision, *, now: datetime) -> Decision:
        """Store an approval or denial."""
        return self._database.act(partial(decisions.decide, decision=decision, now=now))

    def revoke(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Decision:
        """End a decision."""
        return self._database.act(
            partial(decisions.revoke, decision_id=decision_id, actor=actor, reason=reason, now=now)
        )

    def undo(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Undone:
        """Reverse a decision."""
        return self._database.act(partial(decisions.undo, decision_id=decision_id, actor=actor, reason=reason, now=now))

    def end_session(self, session_key: str, *, actor: str, now: datetime) -> int:
        """End the approvals of a session."""
        return self._database.act(partial(decisions.end_session, session_key=session_key, actor=actor, now=now))

    def end_expired(self, *, now: datetime) -> int:
        """End expired decisions."""
        return self._database.act(partial(decisions.end_expired, now=now))

    def age_out(self, *, before: datetime, now: datetime) -> int:
        """Drop pending requests that were last seen before a time."""
        return self._database.act(partial(requests.age_out, before=before, now=now))

    def rank_waiting(self) -> int:
        """Assess pending requests that were stored without a risk."""
        return self._database.act(request_queue.rank_waiting)

    def note_use(self, uses: Mapping[str, datetime]) -> None:
        """Store when decisions were last used."""
        if uses:
            self._database.act(partial(decisions.note_use, uses=uses))

    # ---- lists

    def request(self, request_id: str) -> StoredRequest:
        """Return one request."""
        return self._database.ask(partial(requests.find_request, request_id=request_id))

    def requests(self, wanted: RequestFilter, page: PageRequest) -> ResultPage:
        """List requests, the most recently seen first."""
        return self._database.ask(partial(queries.list_requests, wanted=wanted, page=page))

    def decision(self, decision_id: str) -> Decision:
        """Return one decision."""
        return self._database.ask(partial(decisions.find_decision, decision_id=decision_id))

    def aftermath(self, decision_id: str) -> Aftermath:
        """Return the effects of a decision at the time it was made."""
        return self._database.ask(partial(decisions.find_aftermath, decision_id=decision_id))

    def decisions(self, wanted: DecisionFilter, page: PageRequest) -> ResultPage:
        """List decisions, the newest first."""
        return self._database.ask(partial(queries.list_decisions, wanted=wanted, page=page))

    # ---- lookups

    def queue(self, wanted: RequestFilter, page: PageRequest) -> ResultPage:
        """List groups of pending requests, by risk and then the newest first."""
        return self._database.read(partial(request_queue.list_queue, wanted=wanted, page=page))

    def assessments(self, access: AccessTuple, targets: Sequence[str] = ()) -> tuple[RiskAssessment, ...]:
        """Return the risk of approving an access, or the same about each of some targets that cover it."""
        return self._database.ask(partial(request_queue.assessments, access=access, targets=targets))

    def counts(self, wanted: RequestFilter) -> dict[RequestState, int]:
        """Count requests by state."""
        return self._database.ask(partial(request_queue.count_states, wanted=wanted))

    def pulse(self) -> tuple[int, int]:
        """Return generation and audit sequence."""
        return self._database.ask(queries.pulse)

    def oldest_pending(self) -> datetime | None:
        """Return the time of the oldest pending request."""
        return self._database.ask(queries.oldest_pending)

    def decision_seconds(self, since: datetime, until: datetime | None = None) -> tuple[float, ...]:
        """Return the waiting time of each request that was decided in a period."""
        return self._database.ask(partial(queries.decision_seconds, since=since, until=until))

    def audit_record(self, sequence: int) -> AuditRecord:
        """Return one audit record."""
        return self._database.ask(partial(queries.find_record, sequence=sequence))

    def resume_of(self, request_id: str) -> Resumption | None:
        """Return the resumption of a request, or None."""
        return self._database.ask(partial(queries.find_resume, request_id=request_id))

    def waiting_for(self, access: AccessTuple) -> tuple[StoredRequest, ...]:
        """Return the pending requests for an access."""
        return self._database.ask(partial(queries.waiting_for, access=access))

    def versions(self, accesses: Collection[AccessTuple]) -> dict[str, int]:
        """Return the generation of the last change to the decisions about each access, by digest."""
        return self._database.ask(partial(decisions.versions, accesses=accesses))

    def related(self, access: AccessTuple) -> tuple[Decision, ...]:
        """Return the latest decisions about the subject and resource type, then of other subjects about the target."""
        own = self._database.ask(partial(queries.of_same_subject, access=access))
        return (*own, *self._database.ask(partial(queries.of_same_target, access=access)))

    # ---- audit

    def record(
        self,
        action: AuditAction,
        *,
        actor: str,
        now: datetime,
        access: AccessTuple | None = None,
        request_id: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AuditRecord:
        """Append an audit record."""
        entry = AuditEntry(action, actor, access, request_id, before, after)
        return self._database.act(lambda connection: Ledger(connection).close([entry], now=now)[0])

    def audit(self, wanted: AuditFilter, page: PageRequest) -> ResultPage:
        """List audit records, the newest first."""
        return self._database.ask(partial(queries.list_audit, wanted=wanted, page=page))

    def audit_rows(self, after: int = 0) -> Iterator[AuditRecord]:
        """Yield all records after a sequence number in order."""
        return audit_log.audit_rows(self._database, after)

    def audit_head(self) -> tuple[int, str]:
        """Return the sequence and hash that the last record must have."""
        return self._database.ask(audit_log.audit_head)

    # ---- resumptions

    def resume_context(self, request_id: str) -> bytes | None:
        """Return the encrypted context of a request."""
        return self._database.ask(partial(requests.resume_context, request_id=request_id))

    def replace_contexts(self, reseal: Callable[[StoredRequest, bytes], bytes | None]) -> int:
        """Replace the encrypted contexts for which ``reseal`` returns a new value."""
        return requests.replace_contexts(self._database, reseal)

    def settle(self) -> None:
        """Wait until contexts sealed with earlier keys are stored."""
        self._database.act(requests.settle)

    def claim_resume(self, *, node: str, lease_until: datetime, now: datetime) -> Resumption | None:
        """Claim the next resumption that is due and still approved."""
        claim: Callable[[Connection], Resumption | None] = partial(
            resumptions.claim_resume, node=node, lease_until=lease_until, now=now
        )
        while self._database.ask(partial(resumptions.is_any_due, now=now)):
            if (claimed := self._database.act(claim)) is not None:
                return claimed
        return None

    def finish_resume(
        self, resume: Resumption, *, node: str, error: str, retry_at: datetime | None, now: datetime
    ) -> bool:
        """Store the result of an attempt."""
        work: Callable[[Connection], bool] = partial(
            resumptions.finish_resume, resume=resume, node=node, error=error, retry_at=retry_at, now=now
        )
        return self._database.act(work)

    def resumes(self, *, unfinished: bool, page: PageRequest) -> ResultPage:
        """List resumptions, the newest first."""
        return self._database.ask(partial(queries.list_resumes, page=page, unfinished=unfinished))
