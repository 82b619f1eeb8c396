"""What attempts to decide come to: one, or many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, SandboxError, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .values import Decision, Request

MOST_AT_ONCE = 500
"""Requests that are decided in one go: a person has to have looked at them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt to decide came to."""

    decision: Decision | None
    skipped: str = ""
    """Why nothing was stored, where that is no error."""


def decide_each(
    request_ids: Iterable[str],
    decide: Callable[[str, int | None], Outcome],
    request_of: Callable[[str], Request],
    expected: Mapping[str, int],
) -> tuple[tuple[str, Outcome | SandboxError], ...]:
    """Decide one after the other; return what each came to. One that may not be decided by this caller ends it all."""
    made: list[Decision] = []
    found: list[tuple[str, Outcome | SandboxError]] = []
    own: dict[str, int] = {}
    away: StoreUnavailable | None = None
    for request_id in _checked(request_ids):
        if away is not None:
            found.append((request_id, away))  # to wait for the store again for each of them would take minutes
            continue
        try:
            version = expected.get(request_id)
            if version is not None and own:
                # What was changed just now, for another of these requests, is not a change by another administrator.
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
    """Return the decision, of those made just now, that has answered this request too; it is no conflict then."""
    return next((Outcome(decision) for decision in made if decision.id == request.decision_id), None)


def _checked(request_ids: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(request_ids))
    if not unique:
        raise InvalidInputError.of("no request is named", pointer="/request_ids")
    if len(unique) > MOST_AT_ONCE:
        message = f"at most {MOST_AT_ONCE} requests are decided at once, got {len(unique)}"
        raise InvalidInputError.of(message, pointer="/request_ids")
    return unique
