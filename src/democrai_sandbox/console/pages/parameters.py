"""Permissions, parameters and drafts of pages: values of the address, filters with problems by field, kept forms."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from democrai_sandbox.access.values import DecisionFilter, DecisionScope, PageRequest, RequestFilter, RequestState
from democrai_sandbox.console.auth import Visitor, own_path, person, person_if_any, sandbox_of, sign_in_at
from democrai_sandbox.errors import ExternalAccessAdminRequired
from democrai_sandbox.host.accounts.accounts import is_secure
from democrai_sandbox.policy import InvalidInputError, ResourceType, Subject, SubjectKind, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Response
    from starlette.datastructures import QueryParams

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


SignedInUser = Annotated[Visitor, Depends(person)]
UserIfSignedIn = Annotated[Visitor | None, Depends(person_if_any)]
"""User of a form, whose fields are kept if the session has ended."""
Administrator = Annotated[Visitor, Depends(administrator)]


def why_not(visitor: Visitor) -> str:
    """Return the reason why a user may not decide, or an empty text."""
    if visitor.may_decide:
        return ""
    if visitor.caller.organization_id:
        return "Users of an organization may not do this: it needs the super role without an organization."
    return "Only users with the super role may do this."


def page_of(request: Request) -> PageRequest:
    """Return the requested page of a list."""
    return PageRequest(limit=ROWS, after=text_of(request, "after"))


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
    return parsed_subject(text, name) if text else None


def parsed_subject(text: str, name: str = "subject") -> Subject:
    """Return the subject of a text, or refuse it with the name of its field."""
    try:
        return Subject.parse(text)
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


_Choice = TypeVar("_Choice", SubjectKind, ResourceType, DecisionScope)
LONGEST = 200
"""Maximum length of a search text."""


class Age(NamedTuple):
    """Age filters of requests."""

    label: str
    span: timedelta
    older: bool = False


AGES: Mapping[str, Age] = MappingProxyType(
    {
        "1h": Age("in the last hour", timedelta(hours=1)),
        "1d": Age("in the last day", timedelta(days=1)),
        "7d": Age("in the last 7 days", timedelta(days=7)),
        "over-1d": Age("more than a day ago", timedelta(days=1), older=True),
        "over-7d": Age("more than 7 days ago", timedelta(days=7), older=True),
    }
)
STATES: Mapping[str, tuple[RequestState, ...]] = MappingProxyType(
    {
        "pending": (RequestState.PENDING,),
        "approved": (RequestState.APPROVED,),
        "approved_for_session": (RequestState.APPROVED_FOR_SESSION,),
        "denied": (RequestState.DENIED,),
        "ended": (RequestState.REVOKED, RequestState.EXPIRED, RequestState.REPLACED),
        "aged_out": (RequestState.AGED_OUT,),
        "all": tuple(RequestState),
    }
)
FILTERS = ("state", "kind", "subject", "resource", "user", "organization", "age", "text")
"""Filters of the queue, by parameter."""
LIVE: Mapping[str, bool | None] = MappingProxyType({"": True, "ended": False, "all": None})


@dataclass
class ListFilters:
    """Parsed filters, with ``errors`` by field."""

    values: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def narrows(self) -> bool:
        """Whether a filter other than the state is set."""
        return any(text for name, text in self.values.items() if name not in {"state", "live"})


def requests_wanted(query: QueryParams, now: datetime) -> tuple[ListFilters, RequestFilter]:
    """Parse the query of the list of requests."""
    names = ("state", "kind", "subject", "resource", "user", "organization", "text", "age")
    wanted = ListFilters(_texts(query, names))
    values = wanted.values
    state = values["state"] or "pending"
    kind = _one_of(wanted, "kind", SubjectKind)
    age = AGES.get(values["age"])
    since = None if age is None else now - age.span
    if values["age"] and age is None:
        wanted.errors["age"] = "unknown age"
    if state not in STATES:
        wanted.errors["state"] = "unknown state"
    subject = _subject(wanted, kind)
    return wanted, RequestFilter(
        states=STATES.get(state, (RequestState.PENDING,)),
        subject=subject,
        subject_kind=kind if subject is None else None,
        resource_type=_one_of(wanted, "resource", ResourceType),
        user_id=values["user"],
        organization_id=values["organization"],
        text=values["text"],
        newer_than=since if age and not age.older else None,
        older_than=since if age and age.older else None,
    )


def decisions_wanted(query: QueryParams) -> tuple[ListFilters, DecisionFilter]:
    """Parse the query of the list of approvals or denials."""
    wanted = ListFilters(_texts(query, ("live", "subject", "resource", "scope", "session", "text")))
    if wanted.values["live"] not in LIVE:
        wanted.errors["live"] = "unknown state"
    return wanted, DecisionFilter(
        scope=_one_of(wanted, "scope", DecisionScope),
        subject=_subject(wanted, None),
        resource_type=_one_of(wanted, "resource", ResourceType),
        session_key=wanted.values["session"],
        text=wanted.values["text"],
        live=LIVE.get(wanted.values["live"], True),
    )


def _texts(query: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    return {name: query.get(name, "").strip()[:LONGEST] for name in names}


def _one_of(wanted: ListFilters, name: str, choices: type[_Choice]) -> _Choice | None:
    text = wanted.values[name]
    if not text:
        return None
    try:
        return choices(text)
    except ValueError:
        wanted.errors[name] = f"expected one of: {', '.join(choices)}"
        return None


def _subject(wanted: ListFilters, kind: SubjectKind | None) -> Subject | None:
    """Return the subject of ``kind:name``, or of a name with a selected kind."""
    text = wanted.values["subject"]
    if not text:
        return None
    try:
        if kind is not None:
            return Subject(kind, text.removeprefix(f"{kind}:"))
        return Subject.parse(text)
    except InvalidInputError:
        wanted.errors["subject"] = "write it as kind:name, such as module:reports"
        return None


SECURE_COOKIE = "__Host-democrai-draft"
PLAIN_COOKIE = "democrai_draft"
_DRAFT_SECONDS = 1800
_PIECE = 3800
"""Characters per cookie; browsers accept about 4096 bytes including the name."""
_PIECES = 4
_LARGEST_DRAFT = 64 * 1024


def keep_draft(request: Request, page: str, values: Mapping[str, str], *, back: str = "") -> Response:
    """Redirect a user whose session ended to the sign-in page, and keep the fields for the return.

    ``back`` is the address to return to, if it differs from the path of the page.

    A draft has the fields of a form whose session ended, in a cookie until the user has signed in again. It decides
    nothing: it fills the form again and is validated like the form.
    """
    answer = RedirectResponse(sign_in_at(request, back or own_path(request, page)), 303)
    text = written_draft(page, values)
    pieces = [text[begin : begin + _PIECE] for begin in range(0, len(text), _PIECE)]
    for number in range(_PIECES):
        # Unused cookies are deleted, so that parts of two drafts are never mixed.
        _put_cookie(request, answer, number, pieces[number] if len(pieces) <= _PIECES and number < len(pieces) else "")
    return answer


def kept_draft(request: Request, page: str) -> dict[str, str]:
    """Return the draft of a page, or an empty dict."""
    name = _cookie(request)
    text = "".join(request.cookies.get(_piece(name, number), "") for number in range(_PIECES))
    found, values = read_draft(text)
    return values if found == page else {}


def forget_draft(request: Request, answer: Response) -> None:
    """Delete the cookies of a shown draft."""
    for number in range(_PIECES):
        if _piece(_cookie(request), number) in request.cookies:
            _put_cookie(request, answer, number, "")


def written_draft(page: str, values: Mapping[str, str]) -> str:
    """Return a draft as cookie text."""
    plain = json.dumps([page, dict(values)]).encode()
    return base64.urlsafe_b64encode(zlib.compress(plain, 9)).decode().rstrip("=")


def read_draft(text: str) -> tuple[str, dict[str, str]]:
    """Return the page and the values of a draft; empty for an unreadable text."""
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        page, values = json.loads(zlib.decompressobj().decompress(packed, _LARGEST_DRAFT))
    except (ValueError, TypeError, zlib.error, RecursionError):
        return "", {}
    if not isinstance(page, str) or not isinstance(values, dict):
        return "", {}
    return page, {str(name): value for name, value in values.items() if isinstance(value, str)}


def _put_cookie(request: Request, answer: Response, number: int, text: str) -> None:
    secure = is_secure(sandbox_of(request).settings)
    answer.set_cookie(
        _piece(_cookie(request), number),
        text,
        max_age=_DRAFT_SECONDS if text else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def _cookie(request: Request) -> str:
    return SECURE_COOKIE if is_secure(sandbox_of(request).settings) else PLAIN_COOKIE


def _piece(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name
