"""Users: administrators add, change, disable and enable them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox.access.identity import SUPER
from democrai_sandbox.console.rendering import is_present, redirect, render, state_mark
from democrai_sandbox.console.visitors import own_path, require_fresh
from democrai_sandbox.errors import AccountConflict
from democrai_sandbox.host.accounts.passwords import random_password
from democrai_sandbox.policy import InvalidInputError

from .admitting import Administrator  # noqa: TC001 - FastAPI reads the annotations
from .login import Field, OwnAccounts  # noqa: TC001 - the same

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.console.visitors import Visitor
    from democrai_sandbox.host.accounts import Accounts
    from democrai_sandbox.host.accounts.values import Person

router = APIRouter()
_CHANGES = ("person_created", "person_changed", "person_disabled", "person_enabled")
"""Messages about a user, which are true until the user changes again."""


@router.get("/people")
def list_people(request: Request, visitor: Administrator, accounts: OwnAccounts) -> Response:
    """List users."""
    return _page(request, visitor, accounts)


@router.post("/people")
def add_person(
    request: Request,
    visitor: Administrator,
    accounts: OwnAccounts,
    *,
    name: Field = "",
    role: Field = "",
    organization: Field = "",
    password: Field = "",
) -> Response:
    """Add a user; without a password, one is generated and shown once."""
    _fresh(request, visitor)
    given = password or random_password()
    what = {"role": role, "organization_id": organization.strip()}
    typed = {"name": name, **what}
    try:
        person = accounts.create_person(name.strip(), given, **what, actor=visitor.caller.user_id)
    except InvalidInputError as error:
        wrong = {problem.pointer.strip("/"): _words(problem.message, problem.suggestion) for problem in error.problems}
        return _page(request, visitor, accounts, 422, wrong=wrong, given=typed)
    except AccountConflict as error:
        return _page(request, visitor, accounts, 409, wrong={"name": f"Refused: {error}."}, given=typed)
    if password:
        return _done(request, accounts, person.id, "person_created")
    return _shown_once(request, visitor, "New user", f"The password of {person.name}", given)


@router.post("/people/{name}/role")
def change_role(
    request: Request,
    name: str,
    visitor: Administrator,
    accounts: OwnAccounts,
    *,
    role: Field = "",
    organization: Field = "",
    seen: Field = "",
) -> Response:
    """Change the role or organization of a user."""
    _fresh(request, visitor)
    _check_unchanged(accounts.person(name), seen)
    accounts.set_role(name, role=role, organization_id=organization.strip(), actor=visitor.caller.user_id)
    return _done(request, accounts, name, "person_changed")


@router.post("/people/{name}/password")
def reset_password(
    request: Request, name: str, visitor: Administrator, accounts: OwnAccounts, *, seen: Field = ""
) -> Response:
    """Generate a new password, show it once, and end the sessions of the user."""
    _fresh(request, visitor)
    _check_unchanged(accounts.person(name), seen)
    secret = accounts.reset_password(name, actor=visitor.caller.user_id)
    return _shown_once(request, visitor, "New password", f"The new password of {name}", secret)


@router.post("/people/{name}/sign-out")
def sign_out(request: Request, name: str, visitor: Administrator, accounts: OwnAccounts) -> Response:
    """End all sessions of a user."""
    accounts.end_all(accounts.person(name).id, actor=visitor.caller.user_id)
    return redirect(request, "/people", done="person_signed_out", about=name)


@router.post("/people/{name}/disable")
def disable(request: Request, name: str, visitor: Administrator, accounts: OwnAccounts) -> Response:
    """Disable a user."""
    _fresh(request, visitor)
    accounts.disable(name, actor=visitor.caller.user_id)
    return _done(request, accounts, name, "person_disabled")


@router.post("/people/{name}/enable")
def enable(request: Request, name: str, visitor: Administrator, accounts: OwnAccounts) -> Response:
    """Enable a user."""
    _fresh(request, visitor)
    accounts.enable(name, actor=visitor.caller.user_id)
    return _done(request, accounts, name, "person_enabled")


def _done(request: Request, accounts: Accounts, name: str, done: str) -> Response:
    """Redirect to the list, which shows the message until the user changes again."""
    return redirect(request, "/people", done=done, about=name, seen=state_mark(accounts.person(name)))


def _holds(request: Request, accounts: Accounts, everybody: Iterable[Person]) -> dict[str, bool]:
    """Return which messages are true for the user in the address."""
    about = request.query_params.get("about", "")
    person = next((one for one in everybody if one.id == about), None)
    if person is None:
        return {}
    changes = dict.fromkeys(_CHANGES, is_present(request, person))
    return {**changes, "person_signed_out": not accounts.sessions_of(person.id)}


def _check_unchanged(person: Person, seen: str) -> None:
    """Refuse a form that shows an outdated state."""
    if seen != state_mark(person):
        raise AccountConflict(f"{person.name} was changed after you opened the page. Nothing was done; reload the page")


def _fresh(request: Request, visitor: Visitor) -> None:
    require_fresh(request, visitor, back=own_path(request, "/people"))


def _words(message: str, suggestion: str | None) -> str:
    return f"Refused: {message}." + (f" Did you mean {suggestion}?" if suggestion else "")


def _shown_once(request: Request, visitor: Visitor, title: str, about: str, secret: str) -> Response:
    return render(request, "secret.html", visitor=visitor, title=title, about=about, secret=secret, back="/people")


def _page(
    request: Request,
    visitor: Visitor,
    accounts: Accounts,
    status: int = 200,
    *,
    wrong: dict[str, str] | None = None,
    given: dict[str, str] | None = None,
) -> Response:
    everybody = accounts.people()
    deciders = [person for person in everybody if person.may_decide]
    return render(
        request,
        "people.html",
        visitor=visitor,
        status=status,
        people=everybody,
        last=deciders[0].id if len(deciders) == 1 else "",
        roles=(("", "none: may not decide"), (SUPER, "super: administrator")),
        versions={person.id: state_mark(person) for person in everybody},
        wrong=wrong or {},
        given=given or {},
        holds=_holds(request, accounts, everybody),
    )
