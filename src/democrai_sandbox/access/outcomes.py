"""Outcomes of decisions about one request or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, SandboxError, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .values import Decision, Request

MOST_AT_ONCE = 500
"""Maximum number of requests per bulk decision, so that an administrator can review them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt to decide."""

    decision: Decision | None
    skipped: str = ""
    """Reason why nothing was stored, if that is not an error."""


def decide_each(
    request_ids: Iterable[str],
    decide: Callable[[str, int | None], Outcome],
    request_of: Callable[[str], Request],
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
            outcome = _answered_before(request_of(request_id), made) or error
        except StoreUnavailable as error:
            outcome = away = error
        except SandboxError as error:
            outcome = error
        if isinstance(outcome, Outcome) and outcome.decision is not None:
            made.append(outcome.decision)
            own[outcome.decision.access.digest] = outcome.decision.generation
        found.append((request_id, outcome))
    return tuple(found)


def _answered_before(request: Request, made: list[Decision]) -> Outcome | None:
    """Return the decision of this loop that also answered this request, so that it is not reported as a conflict."""
    return next((Outcome(decision) for decision in made if decision.id == request.decision_id), None)


def _checked(request_ids: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(request_ids))
    if not unique:
        raise InvalidInputError.of("name at least one request", pointer="/request_ids")
    if len(unique) > MOST_AT_ONCE:
        message = f"expected at most {MOST_AT_ONCE} requests, got {len(unique)}"
        raise InvalidInputError.of(message, pointer="/request_ids")
    return unique
