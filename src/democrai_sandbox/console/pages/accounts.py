"""Accounts: sign-in, users, sessions and API tokens; and the audit log."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Form, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.caller import SUPER
from democrai_sandbox.access.values import AuditAction, AuditFilter, PageRequest
from democrai_sandbox.console.auth import cookie_options, safe_next, sandbox_of, visit_of, wait_words
from democrai_sandbox.console.render import code, id_in_query, redirect, render, state_mark
from democrai_sandbox.errors import AccountConflict, AccountUnknown, SignInRefused, SignInThrottled
from democrai_sandbox.host.accounts import Accounts
from democrai_sandbox.host.accounts.passwords import random_password
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError

from .extensions import shown_result
from .parameters import ROWS, AdministratorPage, Page, SignedInPage, parsed_subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from democrai_sandbox.access.audit import AuditReport
    from democrai_sandbox.access.values import AuditRecord
    from democrai_sandbox.host.accounts.tables import Person

router = APIRouter()
_LONGEST = 4096
_REFUSED = "The name or the password is wrong."


def own_accounts(request: Request) -> Accounts:
    """Return the accounts; an application with its own users has no such page."""
    found = sandbox_of(request).accounts
    if found is None:
        raise HTTPException(404)
    return found


OwnAccounts = Annotated[Accounts, Depends(own_accounts)]
Field = Annotated[str, Form(max_length=_LONGEST)]


@router.get("/login")
def show_sign_in(request: Request, accounts: OwnAccounts) -> Response:
    """Ask for name and password, or redirect a signed-in user."""
    onward = safe_next(request, request.query_params.get("next", ""))
    identity = accounts.identify(visit_of(request))
    if identity is not None and accounts.roles(identity.user_id) is not None:
        return RedirectResponse(onward, 303)
    return render(request, "login.html", next=onward, name="", trouble="", holds={"signed_out": True})


@router.post("/login")
def sign_in(
    request: Request,
    accounts: OwnAccounts,
    *,
    name: Field = "",
    password: Field = "",
    next: Field = "",  # noqa: A002 - the name of the field
) -> Response:
    """Start a session with a new secret, and redirect."""
    onward = safe_next(request, next)
    visit = visit_of(request)
    before = accounts.identify(visit)
    try:
        signed_in = accounts.sign_in(name, password, visit)
    except SignInRefused:
        return render(request, "login.html", status=401, next=onward, name=name, trouble=_REFUSED)
    except SignInThrottled as error:
        trouble = f"Too many sign-ins have failed. Try again in {wait_words(error.retry_after)}."
        page = render(request, "login.html", status=429, next=onward, name=name, trouble=trouble)
        page.headers["Retry-After"] = str(error.retry_after)
        return page
    if before is not None and before.scopes is None:
        with suppress(AccountUnknown):
            accounts.sign_out(before.session_key)
    answer = RedirectResponse(onward, 303)
    answer.set_cookie(accounts.cookie_name, signed_in.token, **cookie_options(request))
    return answer


@router.post("/logout")
def sign_out(request: Request, accounts: OwnAccounts) -> Response:
    """End the session, here and in the database."""
    identity = accounts.identify(visit_of(request))
    if identity is not None and identity.scopes is None:
        with suppress(AccountUnknown):
            accounts.sign_out(identity.session_key)
    answer = redirect(request, "/login", done="signed_out")
    answer.delete_cookie(accounts.cookie_name, **cookie_options(request))
    return answer


_LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "until it is revoked"))
_DAYS = frozenset(days for days, _ in _LIFETIMES)
_SCOPES = (
    (Scope.REQUESTS_READ, "see requests"),
    (Scope.REQUESTS_DECIDE, "approve and deny requests"),
    (Scope.APPROVALS_READ, "see approvals and denials"),
    (Scope.APPROVALS_REVOKE, "revoke approvals and denials"),
    (Scope.SUBJECTS_READ, "see subjects, extensions and explanations"),
    (Scope.MODULES_RUN, "run renders, actions and commands, and start tasks"),
    (Scope.TASKS_READ, "see tasks"),
    (Scope.TASKS_CANCEL, "cancel tasks"),
    (Scope.AUDIT_READ, "read the audit log"),
    (Scope.STATUS_READ, "see status and metrics"),
    (Scope.ACCOUNTS_MANAGE, "list and end sessions, create and revoke tokens"),
)


@router.get("/account")
def show_account(page: SignedInPage, accounts: OwnAccounts) -> Response:
    """Show the sessions and tokens of the user."""
    return _account_page(page, accounts)


@router.post("/account/password")
def change_password(
    page: SignedInPage, accounts: OwnAccounts, *, current: Field = "", password: Field = "", again: Field = ""
) -> Response:
    """Change the password, and end all other sessions."""
    if password != again:
        return _account_page(page, accounts, 422, again="The passwords differ.")
    try:
        accounts.change_password(page.visitor.identity.session_key, current, password)
    except InvalidInputError as error:
        return _account_page(page, accounts, 422, password=f"Refused: {error.problems[0].message}.")
    except SignInRefused:
        return _account_page(page, accounts, 422, current="Wrong password.")
    except SignInThrottled as error:
        return _account_page(page, accounts, 429, current=f"Try again in {wait_words(error.retry_after)}.")
    return page.redirect("/account", done="password_changed")


@router.post("/account/sessions/end-others")
def end_others(page: SignedInPage, accounts: OwnAccounts) -> Response:
    """End all other sessions."""
    accounts.end_all(page.caller.user_id, page.visitor.identity.session_key)
    return page.redirect("/account", done="sessions_ended")


@router.post("/account/sessions/end-all")
def end_all(page: SignedInPage, accounts: OwnAccounts) -> Response:
    """End all sessions, including this one."""
    accounts.end_all(page.caller.user_id)
    answer = page.redirect("/login", done="signed_out")
    answer.delete_cookie(accounts.cookie_name, **cookie_options(page.request))
    return answer


@router.post("/account/sessions/{session_id}/end")
def end_one(page: SignedInPage, session_id: str, accounts: OwnAccounts) -> Response:
    """End one session of the user."""
    who = page.caller.user_id
    accounts.end_session(session_id, who, owner=who)
    return page.redirect("/account", done="session_ended", about=session_id)


@router.post("/account/tokens")
def make_token(
    page: SignedInPage,
    accounts: OwnAccounts,
    *,
    label: Field = "",
    days: Field = "",
    scopes: Annotated[list[str] | None, Form(max_length=len(Scope))] = None,
) -> Response:
    """Create a token and show its secret once."""
    page.require_fresh("/account")
    if days not in _DAYS:
        raise InvalidInputError.of("choose one of the listed times", pointer="/days")
    lifetime = timedelta(days=int(days)) if days else None
    try:
        token, secret = accounts.create_token(page.caller.user_id, label, scopes or (), lifetime)
    except InvalidInputError as error:
        wrong = {problem.pointer.split("/")[1]: f"Refused: {problem.message}." for problem in error.problems}
        return _account_page(page, accounts, 422, **wrong)
    return _secret_page(page, "New token", f"The secret of the token {token.label}", secret, back="/account")


@router.post("/account/tokens/{token_id}/revoke")
def revoke_token(page: SignedInPage, token_id: str, accounts: OwnAccounts) -> Response:
    """Revoke one token of the user."""
    who = page.caller.user_id
    accounts.revoke_token(token_id, who, owner=who)
    return page.redirect("/account", done="token_revoked", about=token_id)


@router.get("/account/confirm")
def ask_again(page: SignedInPage, accounts: OwnAccounts) -> Response:  # noqa: ARG001 - only where there are accounts
    """Ask for the password again before an action that outlasts the session."""
    onward = safe_next(page.request, page.query.get("next", ""))
    return page.render("confirm.html", next=onward, trouble="")


@router.post("/account/confirm")
def confirm(
    page: SignedInPage,
    accounts: OwnAccounts,
    *,
    password: Field = "",
    next: Field = "",  # noqa: A002 - the name of the field
) -> Response:
    """Check the password and continue."""
    onward = safe_next(page.request, next)
    try:
        accounts.confirm_password(page.visitor.identity.session_key, password)
    except SignInRefused:
        status, trouble = 401, "Wrong password."
    except SignInThrottled as error:
        status, trouble = 429, f"Try again in {wait_words(error.retry_after)}."
    else:
        return RedirectResponse(onward, 303)
    return page.render("confirm.html", status=status, next=onward, trouble=trouble)


def _account_page(page: Page, accounts: Accounts, status: int = 200, **wrong: str) -> Response:
    who, about = page.caller.user_id, id_in_query(page.request, "about")
    sessions, tokens = accounts.sessions_of(who), accounts.tokens_of(who)
    shown: dict[str, Any] = {
        "person": accounts.person(who),
        "sessions": sessions,
        "present": page.visitor.identity.session_key,
        "tokens": tokens,
        "holds": {
            "password_changed": True,
            "sessions_ended": all(one.id == page.visitor.identity.session_key for one in sessions),
            "session_ended": bool(about) and all(one.id != about for one in sessions),
            "token_revoked": any(one.id == about and one.ended_at is not None for one in tokens),
        },
        "scopes": _SCOPES,
        "lifetimes": _LIFETIMES,
        "wrong": wrong,
    }
    return page.render("account.html", status=status, **shown)


_CHANGES = ("person_created", "person_changed", "person_disabled", "person_enabled")
"""Messages about a user, which are true until the user changes again."""


@router.get("/people")
def list_people(page: AdministratorPage, accounts: OwnAccounts) -> Response:
    """List users."""
    return _users_page(page, accounts)


@router.post("/people")
def add_person(
    page: AdministratorPage,
    accounts: OwnAccounts,
    *,
    name: Field = "",
    role: Field = "",
    organization: Field = "",
    password: Field = "",
) -> Response:
    """Add a user; without a password, one is generated and shown once."""
    page.require_fresh("/people")
    given = password or random_password()
    what = {"role": role, "organization_id": organization.strip()}
    typed = {"name": name, **what}
    try:
        person = accounts.create_person(name.strip(), given, **what, actor=page.caller.user_id)
    except InvalidInputError as error:
        wrong = {problem.pointer.strip("/"): _words(problem.message, problem.suggestion) for problem in error.problems}
        return _users_page(page, accounts, 422, wrong=wrong, given=typed)
    except AccountConflict as error:
        return _users_page(page, accounts, 409, wrong={"name": f"Refused: {error}."}, given=typed)
    if password:
        return _done(page, accounts, person.id, "person_created")
    return _secret_page(page, "New user", f"The password of {person.name}", given)


@router.post("/people/{name}/role")
def change_role(
    page: AdministratorPage,
    name: str,
    accounts: OwnAccounts,
    *,
    role: Field = "",
    organization: Field = "",
    seen: Field = "",
) -> Response:
    """Change the role or organization of a user."""
    page.require_fresh("/people")
    _check_unchanged(accounts.person(name), seen)
    accounts.set_role(name, role=role, organization_id=organization.strip(), actor=page.caller.user_id)
    return _done(page, accounts, name, "person_changed")


@router.post("/people/{name}/password")
def reset_password(page: AdministratorPage, name: str, accounts: OwnAccounts, *, seen: Field = "") -> Response:
    """Generate a new password, show it once, and end the sessions of the user."""
    page.require_fresh("/people")
    _check_unchanged(accounts.person(name), seen)
    secret = accounts.reset_password(name, actor=page.caller.user_id)
    return _secret_page(page, "New password", f"The new password of {name}", secret)


@router.post("/people/{name}/sign-out")
def end_sessions_of_user(page: AdministratorPage, name: str, accounts: OwnAccounts) -> Response:
    """End all sessions of a user."""
    accounts.end_all(accounts.person(name).id, actor=page.caller.user_id)
    return page.redirect("/people", done="person_signed_out", about=name)


@router.post("/people/{name}/disable")
def disable(page: AdministratorPage, name: str, accounts: OwnAccounts) -> Response:
    """Disable a user."""
    page.require_fresh("/people")
    accounts.disable(name, actor=page.caller.user_id)
    return _done(page, accounts, name, "person_disabled")


@router.post("/people/{name}/enable")
def enable(page: AdministratorPage, name: str, accounts: OwnAccounts) -> Response:
    """Enable a user."""
    page.require_fresh("/people")
    accounts.enable(name, actor=page.caller.user_id)
    return _done(page, accounts, name, "person_enabled")


def _done(page: Page, accounts: Accounts, name: str, done: str) -> Response:
    """Redirect to the list, which shows the message until the user changes again."""
    return page.redirect("/people", done=done, about=name, seen=state_mark(accounts.person(name)))


def _holds(page: Page, accounts: Accounts, everybody: Iterable[Person]) -> dict[str, bool]:
    """Return which messages are true for the user in the address."""
    about = page.query.get("about", "")
    person = next((one for one in everybody if one.id == about), None)
    if person is None:
        return {}
    changes = dict.fromkeys(_CHANGES, page.is_present(person))
    return {**changes, "person_signed_out": not accounts.sessions_of(person.id)}


def _check_unchanged(person: Person, seen: str) -> None:
    """Refuse a form that shows an outdated state."""
    if seen != state_mark(person):
        raise AccountConflict(f"{person.name} was changed after you opened the page. Nothing was done; reload the page")


def _words(message: str, suggestion: str | None) -> str:
    return f"Refused: {message}." + (f" Did you mean {suggestion}?" if suggestion else "")


def _secret_page(page: Page, title: str, about: str, secret: str, *, back: str = "/people") -> Response:
    return page.render("secret.html", title=title, about=about, secret=secret, back=back)


def _users_page(
    page: Page,
    accounts: Accounts,
    status: int = 200,
    *,
    wrong: dict[str, str] | None = None,
    given: dict[str, str] | None = None,
) -> Response:
    everybody = accounts.people()
    deciders = [person for person in everybody if person.may_decide]
    return page.render(
        "people.html",
        status=status,
        people=everybody,
        last=deciders[0].id if len(deciders) == 1 else "",
        roles=(("", "none: may not decide"), (SUPER, "super: administrator")),
        versions={person.id: state_mark(person) for person in everybody},
        wrong=wrong or {},
        given=given or {},
        holds=_holds(page, accounts, everybody),
    )


_LONGEST_SUMMARY = 160
_FILTERS = ("action", "actor", "subject", "request", "since", "until")


class AuditCheck(NamedTuple):
    """Result of a verification."""

    report: AuditReport
    at: datetime


class ValueDifference(NamedTuple):
    """One value before and after."""

    name: str
    before: str
    after: str
    kind: str
    """``same``, ``changed``, ``added`` or ``removed``."""


@router.get("/audit")
def listed(page: AdministratorPage) -> HTMLResponse:
    """List records, newest first."""
    action = page.choice("action", AuditAction)
    wanted = AuditFilter(
        actions=(action,) if action else (),
        actor=page.text("actor"),
        subject=parsed_subject(text) if (text := page.text("subject")) else None,
        request_id=page.text("request"),
        since=page.moment("since"),
        until=page.moment("until"),
    )
    given = {name: page.text(name) for name in _FILTERS}
    with page.administration() as administration:
        listing = administration.history(wanted, PageRequest(limit=ROWS, after=page.text("after")))
    return page.render(
        "audit/list.html",
        listing=listing,
        summary=summary,
        actions=[("", "any"), *((one.value, one.value.replace("_", " ")) for one in AuditAction)],
        given=given,
        export={**given, "since": _whole(wanted.since), "until": _whole(wanted.until)},
        head=page.sandbox.access.store.audit_head()[0],
        checked=getattr(page.request.app.state, "audit_checked", None),
    )


@router.post("/audit/verify")
def verify(page: AdministratorPage) -> RedirectResponse:
    """Verify the whole hash chain, and keep the result."""
    page.request.app.state.audit_checked = AuditCheck(verify_store(page.sandbox.access.store), datetime.now(UTC))
    return page.redirect("/audit")


@router.get("/audit/{sequence}")
def shown(page: AdministratorPage, sequence: int) -> HTMLResponse:
    """Show one record."""
    with page.administration() as administration:
        record = administration.audit_record(sequence)
    return page.render(
        "audit/show.html",
        record=record,
        code=code,
        differences=tuple(differences(record.before, record.after)),
        head=page.sandbox.access.store.audit_head()[0],
    )


def summary(record: AuditRecord) -> str:
    """Return the content of a record without an access, in one line."""
    told = record.after or record.before
    parts = [
        f"{name.replace('_', ' ')} {value}" for name, value in told.items() if isinstance(value, str | int) and value
    ]
    line = ", ".join(parts)
    return line if len(line) <= _LONGEST_SUMMARY else f"{line[: _LONGEST_SUMMARY - 1]}…"


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[ValueDifference]:
    """Yield the values before and after, changed ones first."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        old = _in_words(before[name]) if name in before else ""
        new = _in_words(after[name]) if name in after else ""
        kept = "same" if old == new else "changed"
        kind = "added" if name not in before else "removed" if name not in after else kept
        found.append(ValueDifference(name, old, new, kind))
    yield from sorted(found, key=lambda one: one.kind == "same")


def _whole(moment: datetime | None) -> str:
    """Return a time for the API, with its zone; empty for None."""
    return "" if moment is None else moment.isoformat()


def _in_words(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return value if isinstance(value, str) else shown_result(value)
