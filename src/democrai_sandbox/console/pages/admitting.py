"""Page permissions and parameters of addresses. A refused page says which right is missing."""

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
    """Return a user who may decide; refuse others with the missing right."""
    if visitor.may_decide:
        return visitor
    missing = "the super role or the super access level"
    if visitor.caller.organization_id:
        missing = "an account that is not scoped to an organization"
    raise ExternalAccessAdminRequired(f"This page is for users who may decide about requests. You need {missing}.")


Somebody = Annotated[Visitor, Depends(person)]
Administrator = Annotated[Visitor, Depends(administrator)]


def why_not(visitor: Visitor) -> str:
    """Return the reason why a user may not decide, or an empty text."""
    if visitor.may_decide:
        return ""
    if visitor.caller.organization_id:
        return "Users of an organization may not do this: it needs the super role without an organization."
    return "Only users with the super role may do this."


def page_of(request: Request) -> Page:
    """Return the requested page of a list."""
    return Page(limit=ROWS, after=text_of(request, "after"))


def text_of(request: Request, name: str) -> str:
    """Return a trimmed value of the address; refuse an invalid one."""
    text = request.query_params.get(name, "").strip()
    if len(text) > _LONGEST:
        raise InvalidInputError.of(f"longer than {_LONGEST} characters", pointer=f"/{name}")
    if "\0" in text:
        raise InvalidInputError.of("it contains the character U+0000", pointer=f"/{name}")
    return text


def choice_of(request: Request, name: str, kinds: type[Kind]) -> Kind | None:
    """Return a value of the address that is one of several, or None."""
    text = text_of(request, name)
    if not text:
        return None
    try:
        return kinds(text)
    except ValueError:
        message = f"expected one of {', '.join(kinds)}"
        raise InvalidInputError.of(message, pointer=f"/{name}", suggestion=nearest(text, kinds)) from None


def subject_of(request: Request, name: str = "subject") -> Subject | None:
    """Return the subject ``kind:name`` of the address, or None."""
    text = text_of(request, name)
    try:
        return Subject.parse(text) if text else None
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved(f"/{name}") for problem in error.problems) from None


def moment_of(request: Request, name: str) -> datetime | None:
    """Return a time of the address: a date, or date and time, by default in UTC."""
    text = text_of(request, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = "expected a date such as 2030-05-17, or a time such as 2030-05-17T09:30 (UTC)"
        raise InvalidInputError.of(message, pointer=f"/{name}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
