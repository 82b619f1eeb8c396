"""Sample requests and decisions, and direct access to the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy

from democrai_sandbox.access.store.database_location import parse_url
from democrai_sandbox.access.values import (
    AccessTuple,
    DecisionEffect,
    DecisionScope,
    NewDecision,
    NewRequest,
    PageRequest,
    Requester,
)
from democrai_sandbox.policy import Operation, ResourceType, Subject

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
ALL = PageRequest(limit=1000)


def at(seconds):
    return NOW + timedelta(seconds=seconds)


def about(
    target="/srv/data", subject="module:reports", operation=Operation.READ, resource_type=ResourceType.FILESYSTEM
):
    return AccessTuple(Subject.parse(subject), resource_type, operation, target)


def request(target="/srv/data", *, user="ann", session="s-1", action="", context=None, key="", **kwargs):
    access = about(target, **kwargs)
    chain = ("module:shell", str(access.subject))
    origin = Requester(user_id=user, organization_id="acme", session_key=session, task_id="t-1")
    return NewRequest(access, f"raw {target}", chain, origin, action, key, context)


def approval(target="/srv/data", *, request_id="", session="", by="root", expires_at=None, also=(), **kwargs):
    scope = DecisionScope.SESSION if session else DecisionScope.PERMANENT
    access = about(target, **kwargs)
    return NewDecision(access, DecisionEffect.APPROVAL, scope, by, session, "fine", request_id, expires_at, also)


def denial(target="/srv/data", *, request_id="", by="root", also=(), **kwargs):
    access = about(target, **kwargs)
    return NewDecision(access, DecisionEffect.DENIAL, DecisionScope.PERMANENT, by, "", "no", request_id, None, also)


def sql(url, *statements):
    """Run statements without the store; return the rows of the last one."""
    engine = sqlalchemy.create_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
            return result.all() if result.returns_rows else []
    finally:
        engine.dispose()


def live(store):
    """Return the decisions in force, as nodes load them: target, effect, session."""
    return sorted((row.target, row.effect, row.session_key) for row in store.changes(0).rows)


def actions(store):
    return [record.action.value for record in store.audit_rows()]
