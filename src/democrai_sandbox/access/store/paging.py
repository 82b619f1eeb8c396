"""Lists in pages that continue after the last item, so that new rows do not shift them."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, literal, select, tuple_

from democrai_sandbox.access.values import Listing
from democrai_sandbox.policy import InvalidInputError

from .columns import AnyText, Moment, from_micros, to_micros
from .rows import REQUEST_COLUMNS, to_audit_record, to_decision, to_request, to_resume
from .tables import audit, decisions, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, ColumnElement, Row, Select

    from democrai_sandbox.access.values import AuditFilter, DecisionFilter, Page, RequestFilter
    from democrai_sandbox.policy import Subject

LARGEST_PAGE = 1000
LONGEST_TEXT = 1000
"""Maximum length of a search text, because SQLite limits the length of a pattern."""


def list_requests(connection: Connection, wanted: RequestFilter, page: Page) -> Listing:
    """List requests, the most recently seen first."""
    table = requests.c
    query = select(*REQUEST_COLUMNS).where(*of_requests(requests, wanted))
    if wanted.states:
        query = query.where(table.state.in_([str(state) for state in wanted.states]))
    return _page(connection, query, [table.last_seen, table.id], page, to_request)


def of_requests(table: Any, wanted: RequestFilter) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a filter, except the state, for a table or subquery of requests."""
    yield from _common(table, wanted)
    if wanted.subject_kind:
        yield table.c.subject_kind == str(wanted.subject_kind)
    for name in ("user_id", "organization_id", "session_key"):
        if value := getattr(wanted, name):
            yield table.c[name] == value
    if wanted.newer_than is not None:
        yield table.c.first_seen >= wanted.newer_than
    if wanted.older_than is not None:
        yield table.c.first_seen < wanted.older_than


def list_decisions(connection: Connection, wanted: DecisionFilter, page: Page) -> Listing:
    """List decisions, the newest first."""
    table = decisions.c
    query = select(decisions).where(*_common(decisions, wanted))
    for name in ("effect", "scope", "session_key"):
        if value := getattr(wanted, name):
            query = query.where(table[name] == str(value))
    if wanted.live is not None:
        query = query.where(table.ended_at.is_(None) if wanted.live else table.ended_at.is_not(None))
    return _page(connection, query, [table.created_at, table.id], page, to_decision)


def list_audit(connection: Connection, wanted: AuditFilter, page: Page) -> Listing:
    """List audit records, the newest first."""
    table = audit.c
    query = select(audit).where(*_of_subject(audit, wanted.subject))
    if wanted.actions:
        query = query.where(table.action.in_([str(action) for action in wanted.actions]))
    for name in ("actor", "request_id"):
        if value := getattr(wanted, name):
            query = query.where(table[name] == value)
    if wanted.since is not None:
        query = query.where(table.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(table.at < wanted.until)
    return _page(connection, query, [table.sequence], page, to_audit_record)


def list_resumes(connection: Connection, page: Page, *, unfinished: bool) -> Listing:
    """List resumptions, the newest first."""
    query = resume_query()
    if unfinished:
        query = query.where(resumes.c.finished_at.is_(None))
    return _page(connection, query, [resumes.c.created_at, resumes.c.id], page, to_resume)


def resume_query() -> Select[Any]:
    """Select resumptions with the identity of their requests."""
    asked = ("resume_action", "user_id", "organization_id", "session_key", "task_id", "subject_kind", "subject_name")
    return select(resumes, *(requests.c[name] for name in asked)).join(requests, requests.c.id == resumes.c.request_id)


def _common(table: Any, wanted: RequestFilter | DecisionFilter) -> Iterator[ColumnElement[bool]]:
    yield from _of_subject(table, wanted.subject)
    for name in ("resource_type", "operation"):
        if value := getattr(wanted, name):
            yield table.c[name] == str(value)
    if len(wanted.text) > LONGEST_TEXT:
        raise InvalidInputError.of(f"expected at most {LONGEST_TEXT} characters", pointer="/text")
    if wanted.text:
        yield table.c.target_folded.contains(wanted.text.casefold(), autoescape=True)


def _of_subject(table: Any, subject: Subject | None) -> Iterator[ColumnElement[bool]]:
    if subject is not None:
        yield table.c.subject_kind == subject.kind.value
        yield table.c.subject_name == subject.name


def _page(
    connection: Connection,
    query: Select[Any],
    order: list[Column[Any]],
    page: Page,
    to_value: Callable[[Row[Any]], Any],
) -> Listing:
    """Return one page. One more row is read to detect a next page."""
    check_limit(page)
    place = str(order[-1])
    if page.after:
        query = query.where(tuple_(*order) < tuple_(*_literals(read_mark(page.after, place, order), order)))
    query = query.order_by(*(column.desc() for column in order)).limit(page.limit + 1)
    rows = connection.execute(query).all()
    shown = rows[: page.limit]
    more = write_mark(place, [shown[-1]._mapping[column] for column in order]) if len(rows) > page.limit else ""  # noqa: SLF001 - documented
    return Listing(tuple(map(to_value, shown)), more)


def check_limit(page: Page) -> None:
    """Reject a page size outside the limits."""
    if type(page.limit) is not int or not 1 <= page.limit <= LARGEST_PAGE:
        message = f"expected an integer from 1 to {LARGEST_PAGE}, got {page.limit!r}"
        raise InvalidInputError.of(message, pointer="/limit")


def write_mark(place: str, values: Sequence[Any]) -> str:
    """Return the cursor after a page; ``place`` names the list."""
    plain = [value if isinstance(value, int | str) else to_micros(value) for value in values]
    return base64.urlsafe_b64encode(json.dumps([place, *plain]).encode()).decode().rstrip("=")


def read_mark(text: str, place: str, order: Sequence[Column[Any]]) -> list[Any]:
    """Return the values of the last item, or reject a cursor that does not belong to this list."""
    try:
        named, *plain = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        values = [_typed(value, column) for value, column in zip(plain, order, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError):
        named, values = None, []
    if named != place:
        raise InvalidInputError.of("this cursor does not belong to this list", pointer="/after")
    return values


def _typed(value: object, column: Column[Any]) -> Any:
    if isinstance(column.type, AnyText) and type(value) is str:
        return value
    if isinstance(column.type, AnyText) or type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return from_micros(value) if isinstance(column.type, Moment) else value


def _literals(values: Sequence[Any], order: Sequence[Column[Any]]) -> list[Any]:
    return [literal(value, column.type) for value, column in zip(values, order, strict=True)]
