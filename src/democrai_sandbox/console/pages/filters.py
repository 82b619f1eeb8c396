"""Filters of lists, read from the query, with problems by field."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from democrai_sandbox.access.values import DecisionFilter, RequestFilter, RequestState, Scope
from democrai_sandbox.policy import InvalidInputError, ResourceType, Subject, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from starlette.datastructures import QueryParams

_Choice = TypeVar("_Choice", SubjectKind, ResourceType, Scope)
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
class Wanted:
    """Parsed filters, with ``errors`` by field."""

    values: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def narrows(self) -> bool:
        """Whether a filter other than the state is set."""
        return any(text for name, text in self.values.items() if name not in {"state", "live"})


def requests_wanted(query: QueryParams, now: datetime) -> tuple[Wanted, RequestFilter]:
    """Parse the query of the list of requests."""
    names = ("state", "kind", "subject", "resource", "user", "organization", "text", "age")
    wanted = Wanted(_texts(query, names))
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


def decisions_wanted(query: QueryParams) -> tuple[Wanted, DecisionFilter]:
    """Parse the query of the list of approvals or denials."""
    wanted = Wanted(_texts(query, ("live", "subject", "resource", "scope", "session", "text")))
    if wanted.values["live"] not in LIVE:
        wanted.errors["live"] = "unknown state"
    return wanted, DecisionFilter(
        scope=_one_of(wanted, "scope", Scope),
        subject=_subject(wanted, None),
        resource_type=_one_of(wanted, "resource", ResourceType),
        session_key=wanted.values["session"],
        text=wanted.values["text"],
        live=LIVE.get(wanted.values["live"], True),
    )


def _texts(query: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    return {name: query.get(name, "").strip()[:LONGEST] for name in names}


def _one_of(wanted: Wanted, name: str, choices: type[_Choice]) -> _Choice | None:
    text = wanted.values[name]
    if not text:
        return None
    try:
        return choices(text)
    except ValueError:
        wanted.errors[name] = f"expected one of: {', '.join(choices)}"
        return None


def _subject(wanted: Wanted, kind: SubjectKind | None) -> Subject | None:
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
