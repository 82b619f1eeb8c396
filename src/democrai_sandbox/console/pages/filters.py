"""What a list shows, as its address says: read from the query, and what is wrong with it said beside its field."""

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
"""Of a text that is searched for."""


class Age(NamedTuple):
    """How long ago requests were first made."""

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
"""What narrows the queue, by the name in its address."""
LIVE: Mapping[str, bool | None] = MappingProxyType({"": True, "ended": False, "all": None})


@dataclass
class Wanted:
    """What was asked for; with ``errors`` by the name of the field, when some of it means nothing."""

    values: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def narrows(self) -> bool:
        """Whether anything but the state is asked for."""
        return any(text for name, text in self.values.items() if name not in {"state", "live"})


def requests_wanted(query: QueryParams, now: datetime) -> tuple[Wanted, RequestFilter]:
    """Read the query of the list of requests."""
    names = ("state", "kind", "subject", "resource", "user", "organization", "text", "age")
    wanted = Wanted(_texts(query, names))
    values = wanted.values
    state = values["state"] or "pending"
    kind = _one_of(wanted, "kind", SubjectKind)
    age = AGES.get(values["age"])
    since = None if age is None else now - age.span
    if values["age"] and age is None:
        wanted.errors["age"] = "there is no such age"
    if state not in STATES:
        wanted.errors["state"] = "there is no such state"
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
    """Read the query of the list of approvals or denials."""
    wanted = Wanted(_texts(query, ("live", "subject", "resource", "scope", "session", "text")))
    if wanted.values["live"] not in LIVE:
        wanted.errors["live"] = "there is no such state"
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
        wanted.errors[name] = f"one of: {', '.join(choices)}"
        return None


def _subject(wanted: Wanted, kind: SubjectKind | None) -> Subject | None:
    """Return the subject of a ``kind:name``, or of a name when the kind was chosen."""
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
