"""Database of the access service: SQLite by default, PostgreSQL by URL. Each method of the store is one transaction."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.values import Registered

from . import audit_log, decisions, queries, requests
from .database import CONNECTIONS, Database, DatabaseStore, consistent_read, query, transaction
from .database_location import parse_url
from .schema import check_schema, prepare_schema

if TYPE_CHECKING:
    from datetime import datetime

    from democrai_sandbox.access.values import NewRequest, Resumption

__all__ = ["SqlStore", "open_database", "open_store"]


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


class SqlStore(DatabaseStore):
    """Storage of requests, decisions, the audit log and resumptions.

    Every method that changes something is one transaction that includes its audit record. The cost of a query hardly
    depends on the length of the history. Methods never answer from memory. Times are aware and in UTC.
    """

    def check_schema(self) -> str:
        """Return the schema version if this code supports it; else raise ``SchemaOutdated`` with the next step."""
        return check_schema(self.database).version

    # ---- decisions

    generation = query(decisions.generation)
    changes = consistent_read(decisions.changes)
    decide = transaction(decisions.decide)
    revoke = transaction(decisions.revoke)
    undo = transaction(decisions.undo)
    end_session = transaction(decisions.end_session)
    end_expired = transaction(decisions.end_expired)
    decision = query(decisions.find_decision)
    aftermath = query(decisions.find_aftermath)
    versions = query(decisions.versions)
    similar = query(queries.similar)
    note_use = transaction(decisions.note_use)

    # ---- requests

    def register(self, request: NewRequest, *, now: datetime, most_pending: int = 0) -> Registered:
        """Store a pending request, or count it if the same access and origin (user, session) is already pending.

        At most ``most_pending`` requests are pending per subject and user; 0 means no limit. The id is empty if the
        access has been decided, or if the limit is reached.
        """
        try:
            return self.database.act(partial(requests.register, request=request, now=now, most_pending=most_pending))
        except requests.NotRegistered as refusal:
            return Registered("", created=False, full=refusal.full)

    count_again = transaction(requests.count_again)
    attach_resume = transaction(requests.attach_resume)
    age_out = transaction(requests.age_out)
    request = query(requests.find_request)
    waiting_for = query(queries.waiting_for)
    oldest_pending = query(queries.oldest_pending)
    decision_seconds = query(queries.decision_seconds)
    rank_waiting = transaction(queries.rank_waiting)
    queue = consistent_read(queries.list_queue)
    assessments = query(queries.assessments)
    counts = query(queries.count_states)

    # ---- audit

    pulse = query(queries.pulse)
    record = transaction(audit_log.append)
    audit = query(queries.list_audit)
    audit_record = query(queries.find_record)
    audit_head = query(audit_log.audit_head)
    audit_rows = audit_log.audit_rows

    # ---- resumptions

    resume_context = query(requests.resume_context)
    settle = transaction(requests.settle)
    resume_of = query(queries.find_resume)
    resumes = query(queries.list_resumes)
    finish_resume = transaction(requests.finish_resume)
    replace_contexts = requests.replace_contexts

    def claim_resume(self, *, node: str, lease_until: datetime, now: datetime) -> Resumption | None:
        """Claim the next resumption that is due or whose lease has expired, and count the attempt.

        Resumptions whose approval has ended meanwhile fail permanently and are not returned.
        """
        claim = partial(requests.claim_resume, node=node, lease_until=lease_until, now=now)
        while self.database.ask(partial(requests.is_any_due, now=now)):
            if (claimed := self.database.act(claim)) is not None:
                return claimed
        return None

    # ---- lists; last, because two of them are named like modules that the lines above use

    requests = query(queries.list_requests)
    decisions = query(queries.list_decisions)
