"""Environment variables of children: built from guard state, parsed in a Python child."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import (
    InvalidInputError,
    Problem,
    Subject,
    SubjectChain,
    chain_from_list,
    chain_to_list,
    rules_from_json,
    rules_to_json,
)

from . import _core
from .contexts import make_guard
from .views import RawView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from democrai_sandbox.policy import AccessRule

    from ._core import Guard

SUBJECT = "DEMOCRAI_NETWORK_SUBJECT"
SUBJECT_KIND = "DEMOCRAI_NETWORK_SUBJECT_KIND"
ACCESS = "DEMOCRAI_ACCESS"
SUBJECT_CHAIN = "DEMOCRAI_SUBJECT_CHAIN"
IDENTITY = {
    "user_id": "DEMOCRAI_USER_ID",
    "organization_id": "DEMOCRAI_ORGANIZATION_ID",
    "session_key": "DEMOCRAI_SESSION_KEY",
}


def environment_of(view: tuple[Any, ...], approved: Iterable[AccessRule] = ()) -> dict[str, str]:
    """Return the ``DEMOCRAI_*`` variables for a child of this guard state, with rules for its approvals."""
    raw = RawView(*view)
    kind, name = raw.actor
    declared = (rule for link in raw.allow_chain for rule in link.rules)
    rules = dict.fromkeys((*declared, *approved))
    made = {
        SUBJECT: name,
        SUBJECT_KIND: kind,
        ACCESS: rules_to_json(tuple(rules)),
        SUBJECT_CHAIN: json.dumps(chain_to_list(raw.chain)),
    }
    for attribute, variable in IDENTITY.items():
        value = getattr(raw, attribute)
        if value is not None:
            made[variable] = str(value)
    return made


def child_environment() -> dict[str, str]:
    """Return the ``DEMOCRAI_*`` variables for a child process of the active guard; empty without a guard."""
    view = _core.current_view()
    return {} if view is None else environment_of(view)


def process_guard_context_from_env(environ: Mapping[str, str] | None = None) -> Guard:
    """Return the guard that the parent's environment describes. A missing or malformed value is an error."""
    given = os.environ if environ is None else environ
    missing = [name for name in (SUBJECT, SUBJECT_KIND, ACCESS) if not given.get(name)]
    if missing:
        raise InvalidInputError([Problem(f"/{name}", "the variable is missing or empty") for name in missing])
    _check_subject(given)
    return make_guard(
        subject=given[SUBJECT],
        subject_kind=given[SUBJECT_KIND],
        access=rules_from_json(given[ACCESS], pointer=f"/{ACCESS}"),
        ancestors=_chain(given.get(SUBJECT_CHAIN)),
        user_id=given.get(IDENTITY["user_id"]),
        organization_id=given.get(IDENTITY["organization_id"]),
        session_key=given.get(IDENTITY["session_key"]),
    )


def _check_subject(given: Mapping[str, str]) -> None:
    """Name the variable instead of the argument in problems of the subject."""
    places = {"/kind": f"/{SUBJECT_KIND}", "/name": f"/{SUBJECT}"}
    try:
        Subject(given[SUBJECT_KIND], given[SUBJECT])  # type: ignore[arg-type] # text is taken and checked
    except InvalidInputError as error:
        moved = (replace(problem, pointer=places.get(problem.pointer, problem.pointer)) for problem in error.problems)
        raise InvalidInputError(moved) from None


def _chain(text: str | None) -> SubjectChain:
    if text is None:
        return ()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError.of(f"not JSON: {error}", pointer=f"/{SUBJECT_CHAIN}") from None
    return chain_from_list(value, pointer=f"/{SUBJECT_CHAIN}")
