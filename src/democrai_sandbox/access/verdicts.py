"""Verdicts of administrators: their validated parts, their outcome, and one verdict about many requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, SandboxError, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, ResourceType
from democrai_sandbox.policy.paths import pattern_problem

from .values import DecisionEffect, DecisionFilter, DecisionScope, Expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from .values import AccessTuple, Decision, StoredRequest

LONGEST_REASON = 2000
_LONGEST_ID = 100
MOST_AT_ONCE = 500
"""Maximum number of requests per bulk decision, so that an administrator can review them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt to decide."""

    decision: Decision | None
    skipped: str = ""
    """Reason why nothing was stored, if that is not an error."""
    kept: tuple[str, ...] = ()
    """Requests that stay answered after an undo."""


def decide_each(
    request_ids: Iterable[str],
    decide: Callable[[str, int | None], Outcome],
    request_of: Callable[[str], StoredRequest],
    expected: Mapping[str, int],
) -> tuple[tuple[str, Outcome | SandboxError], ...]:
    """Decide the requests one by one and return their outcomes. A missing right to decide aborts the loop."""
    made: list[Decision] = []
    found: list[tuple[str, Outcome | SandboxError]] = []
    own: dict[str, int] = {}
    away: StoreUnavailable | None = None
    for request_id in _checked(request_ids):
        if away is not None:
            found.append((request_id, away))  # waiting for the store again for each request would take minutes
            continue
        try:
            version = expected.get(request_id)
            if version is not None and own:
                # A change by an earlier decision of this loop is not a conflict with another administrator.
                version = max(version, own.get(request_of(request_id).access.digest, 0))
            outcome: Outcome | SandboxError = decide(request_id, version)
        except ExternalAccessAdminRequired:
            raise
        except DecisionConflict as error:
            # A decision of this loop may also have answered this request, which is not a conflict.
            answer = request_of(request_id).decision_id
            outcome = next((Outcome(decision) for decision in made if decision.id == answer), error)
        except StoreUnavailable as error:
            outcome = away = error
        except SandboxError as error:
            outcome = error
        if isinstance(outcome, Outcome) and outcome.decision is not None:
            made.append(outcome.decision)
            own[outcome.decision.access.digest] = outcome.decision.generation
        found.append((request_id, outcome))
    return tuple(found)


def _checked(request_ids: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(request_ids))
    if not unique:
        raise InvalidInputError.of("name at least one request", pointer="/request_ids")
    if len(unique) > MOST_AT_ONCE:
        message = f"expected at most {MOST_AT_ONCE} requests, got {len(unique)}"
        raise InvalidInputError.of(message, pointer="/request_ids")
    return unique


@dataclass(frozen=True, slots=True)
class AdminVerdict:
    """Decision that an administrator makes about a request."""

    effect: DecisionEffect
    scope: DecisionScope
    target: str | None
    reason: str
    lifetime: timedelta | None = None
    expected: int | None = None
    bulk: str = ""


_ACTS = MappingProxyType(
    {
        "session": (DecisionEffect.APPROVAL, DecisionScope.SESSION),
        "permanent": (DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        "deny": (DecisionEffect.DENIAL, DecisionScope.PERMANENT),
    }
)
"""Acts about requests."""


def request_act(act: str) -> tuple[DecisionEffect, DecisionScope]:
    """Return the effect and scope of an act, or reject the act."""
    if act not in _ACTS:
        raise InvalidInputError.of(f"unknown act {act!r}; one of: session, permanent, deny", pointer="/act")
    return _ACTS[act]


def checked_id(text: str, name: str) -> str:
    """Return a text that can be an id."""
    if type(text) is not str or len(text) > _LONGEST_ID:
        raise InvalidInputError.of(f"expected an id of at most {_LONGEST_ID} characters", pointer=f"/{name}")
    return text


def with_effect(wanted: DecisionFilter, effect: DecisionEffect) -> DecisionFilter:
    """Return a filter for decisions with this effect."""
    if wanted.effect not in (None, effect):
        raise InvalidInputError.of(f"expected the effect {effect}, got {wanted.effect}", pointer="/effect")
    return replace(wanted, effect=effect)


def check_pattern(resource_type: str, target: str) -> None:
    """Refuse a path that contains pattern characters, because a decision matches paths literally."""
    found = pattern_problem(target, "/target") if resource_type == ResourceType.FILESYSTEM else None
    if found is not None:
        raise InvalidInputError([found])


def expected_state(about: tuple[AccessTuple, ...], version: int | None) -> Expected | None:
    """Return the state that the caller saw, or None without a version."""
    if version is None:
        return None
    if type(version) is not int or version < 0:
        raise InvalidInputError.of("expected a version number (an integer of at least 0)", pointer="/expected")
    return Expected(about, version)


def checked_reason(text: str) -> str:
    """Return a reason that is not too long."""
    if type(text) is not str or len(text) > LONGEST_REASON:
        raise InvalidInputError.of(f"expected a text of at most {LONGEST_REASON} characters", pointer="/reason")
    return text
