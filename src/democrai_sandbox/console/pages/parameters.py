"""Pages with their users: permissions, parameters of the address, filters with problems by field, and kept forms."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.responses import RedirectResponse

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.values import DecisionFilter, DecisionScope, RequestFilter, RequestState
from democrai_sandbox.console.auth import (
    ServedRequest,
    cookie_options,
    is_high_risk,
    own_path,
    person,
    person_if_any,
    require_fresh,
    sandbox_of,
    sign_in_at,
    wait_words,
)
from democrai_sandbox.console.render import redirect, render, state_mark, url
from democrai_sandbox.errors import ExternalAccessAdminRequired, SignInRefused, SignInThrottled
from democrai_sandbox.host.accounts.accounts import is_secure
from democrai_sandbox.host.decisions import decide
from democrai_sandbox.policy import InvalidInputError, ResourceType, Subject, SubjectKind, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastapi import Response
    from fastapi.responses import HTMLResponse
    from starlette.datastructures import QueryParams

    from democrai_sandbox.access.administration import Outcome
    from democrai_sandbox.access.values import AccessTuple
    from democrai_sandbox.host.decisions import SubmittedDecision

ROWS = 50
_LONGEST = 2000

Kind = TypeVar("Kind", bound=StrEnum)


class Page(ServedRequest):
    """HTTP request for a page, with its signed-in user."""

    @property
    def query(self) -> QueryParams:
        """The parameters of the address."""
        return self.request.query_params

    @property
    def why_not(self) -> str:
        """The reason why the user may not decide, or an empty text."""
        if self.visitor.may_decide:
            return ""
        if self.caller.organization_id:
            return "Users of an organization may not do this: it needs the super role without an organization."
        return "Only users with the super role may do this."

    def decide(self, submitted: SubmittedDecision) -> Outcome:
        """Carry out a decision of the user."""
        return decide(self.sandbox.access.administration, self.caller, submitted)

    # ---- values of the address

    def text(self, name: str) -> str:
        """Return a trimmed value of the address; refuse an invalid one."""
        text = self.query.get(name, "").strip()
        if len(text) > _LONGEST:
            raise InvalidInputError.of(f"longer than {_LONGEST} characters", pointer=f"/{name}")
        if "\0" in text:
            raise InvalidInputError.of("it contains the character U+0000", pointer=f"/{name}")
        return text

    def choice(self, name: str, kinds: type[Kind]) -> Kind | None:
        """Return a value of the address that is one of several, or None."""
        text = self.text(name)
        if not text:
            return None
        try:
            return kinds(text)
        except ValueError:
            message = f"expected one of {', '.join(kinds)}"
            raise InvalidInputError.of(message, pointer=f"/{name}", suggestion=nearest(text, kinds)) from None

    def moment(self, name: str) -> datetime | None:
        """Return a time of the address: a date, or date and time, by default in UTC."""
        text = self.text(name)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            message = "expected a date such as 2030-05-17, or a time such as 2030-05-17T09:30 (UTC)"
            raise InvalidInputError.of(message, pointer=f"/{name}") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def is_present(self, state: object) -> bool:
        """Return whether the mark ``seen`` of the address is that of the state."""
        return self.query.get("seen", "") == state_mark(state)

    # ---- answers

    def url(self, path: str, /, **query: object) -> str:
        """Return the address of a path below the mount point of the console."""
        return url(self.request, path, **query)

    def render(self, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """Return the page of a template."""
        return render(self.request, template, status=status, **context)

    def redirect(self, path: str, /, *, done: str = "", **query: object) -> RedirectResponse:
        """Redirect the browser after a POST; ``done`` is the code of a message."""
        return redirect(self.request, path, done=done, **query)

    def with_draft(self, path: str, show: Callable[[dict[str, str]], Response]) -> Response:
        """Return the page of a form that shows its draft, which is then forgotten."""
        draft = kept_draft(self.request, path)
        answer = show(draft)
        if draft:
            forget_draft(self.request, answer)
        return answer

    # ---- passwords

    def require_fresh(self, back: str) -> None:
        """Redirect the user to the password confirmation, and then ``back``, if the last one is too old."""
        require_fresh(self.request, self.visitor, back=self.url(back))

    def needs_password(self, accesses: Iterable[AccessTuple]) -> bool:
        """Return whether a permanent approval takes the password again: for a high risk, or if it was too long ago."""
        settings, accounts = self.sandbox.settings.console, self.sandbox.accounts
        if accounts is None or self.visitor.identity.scopes is not None:
            return False
        if settings.reauth_high_risk and any(map(is_high_risk, accesses)):
            return True
        late = timedelta(minutes=settings.reauth_minutes)
        return bool(settings.reauth_minutes) and not accounts.is_confirmed(self.visitor.identity.session_key, late)

    def refused_password(self, password: str) -> RefusedPassword | None:
        """Check the password; return None if it is right. Failures count like failed sign-ins."""
        accounts = self.sandbox.accounts
        if accounts is None:
            return None
        if not password:
            return RefusedPassword(422, "Enter your password to confirm this.")
        try:
            accounts.confirm_password(self.visitor.identity.session_key, password)
        except SignInRefused:
            return RefusedPassword(401, "Wrong password.")
        except SignInThrottled as error:
            text = f"Too many wrong passwords. Try again in {wait_words(error.retry_after)}."
            return RefusedPassword(429, text, error.retry_after)
        return None


class RefusedPassword(NamedTuple):
    """Reason why a confirmation failed."""

    status: int
    text: str
    retry_after: int = 0


def signed_in(request: Request) -> Page:
    """Return the page of a signed-in user; redirect others to the sign-in page."""
    return Page(request, person(request))


def signed_in_if_any(request: Request) -> Page | None:
    """Return the page of a signed-in user, or None, so that a form can keep its fields."""
    visitor = person_if_any(request)
    return None if visitor is None else Page(request, visitor)


def administrator(page: Page) -> Page:
    """Return the page of a user who may decide; refuse others with the missing right."""
    if page.visitor.may_decide:
        return page
    missing = "the super role or the super access level"
    if page.caller.organization_id:
        missing = "an account that is not scoped to an organization"
    raise ExternalAccessAdminRequired(f"This page is for users who may decide about requests. You need {missing}.")


def of_administrator(request: Request) -> Page:
    """Return the page of a user who may decide."""
    return administrator(signed_in(request))


SignedInPage = Annotated[Page, Depends(signed_in)]
PageIfSignedIn = Annotated[Page | None, Depends(signed_in_if_any)]
"""Page of a form, whose fields are kept if the session has ended."""
AdministratorPage = Annotated[Page, Depends(of_administrator)]


def parsed_subject(text: str, name: str = "subject") -> Subject:
    """Return the subject of a text, or refuse it with the name of its field."""
    try:
        return Subject.parse(text)
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved(f"/{name}") for problem in error.problems) from None


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
    found, values = read_draft("".join(request.cookies.get(_piece(name, number), "") for number in range(_PIECES)))
    return values if found == page else {}


def kept_reason(draft: Mapping[str, str]) -> str:
    """Return the reason for a decision in a draft, or an empty text."""
    return draft.get("reason", "")[:LONGEST_REASON]


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
    options = cookie_options(request)
    answer.set_cookie(_piece(_cookie(request), number), text, max_age=_DRAFT_SECONDS if text else 0, **options)


def _cookie(request: Request) -> str:
    return SECURE_COOKIE if is_secure(sandbox_of(request).settings) else PLAIN_COOKIE


def _piece(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name
