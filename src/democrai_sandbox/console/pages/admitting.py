"""Who may see a page, and how its address is read. A page that somebody may not see says why."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import Depends
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox.access.values import Page
from democrai_sandbox.console.visitors import Visitor, person
from democrai_sandbox.errors import ExternalAccessAdminRequired
from democrai_sandbox.policy import InvalidInputError, Subject, nearest

ROWS = 50
_LONGEST = 2000

Kind = TypeVar("Kind", bound=StrEnum)


def administrator(visitor: Annotated[Visitor, Depends(person)]) -> Visitor:
    """Return somebody who may decide; everybody else is told what is missing."""
    if visitor.may_decide:
        return visitor
    missing = "the super role or the super access level"
    if visitor.caller.organization_id:
        missing = "an account that is not scoped to an organization"
    raise ExternalAccessAdminRequired(f"This page is for people who may decide about requests. That takes {missing}.")


Somebody = Annotated[Visitor, Depends(person)]
Administrator = Annotated[Visitor, Depends(administrator)]


def why_not(visitor: Visitor) -> str:
    """Return why somebody may not decide; empty for those who may."""
    if visitor.may_decide:
        return ""
    if visitor.caller.organization_id:
        return "People of an organization may not do this: it takes the super role without an organization."
    return "Only people with the super role may do this."


def page_of(request: Request) -> Page:
    """Return which page of a list is asked for."""
    return Page(limit=ROWS, after=text_of(request, "after"))


def text_of(request: Request, name: str) -> str:
    """Return a value of the address, trimmed; one that nobody could have meant is refused."""
    text = request.query_params.get(name, "").strip()
    if len(text) > _LONGEST:
        raise InvalidInputError.of(f"longer than {_LONGEST} characters", pointer=f"/{name}")
    if "\0" in text:
        raise InvalidInputError.of("it holds the character U+0000", pointer=f"/{name}")
    return text


def choice_of(request: Request, name: str, kinds: type[Kind]) -> Kind | None:
    """Return a value of the address that is one of several; None when there is none."""
    text = text_of(request, name)
    if not text:
        return None
    try:
        return kinds(text)
    except ValueError:
        message = f"expected one of {', '.join(kinds)}"
        raise InvalidInputError.of(message, pointer=f"/{name}", suggestion=nearest(text, kinds)) from None


def subject_of(request: Request, name: str = "subject") -> Subject | None:
    """Return the subject that the address names as ``kind:name``; None when there is none."""
    text = text_of(request, name)
    try:
        return Subject.parse(text) if text else None
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved(f"/{name}") for problem in error.problems) from None


def moment_of(request: Request, name: str) -> datetime | None:
    """Return a time of the address: a date, or date and time, in UTC unless it says otherwise."""
    text = text_of(request, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = "expected a date such as 2030-05-17, or a time such as 2030-05-17T09:30 (UTC)"
        raise InvalidInputError.of(message, pointer=f"/{name}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
