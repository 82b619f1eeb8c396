"""Pages from templates, and their messages. Everything is escaped; an unknown name in a template is an error."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

from democrai_sandbox.host.host_only import once

from .untrusted_text import target_shown, target_whole, visible, visible_cut, visible_lines, visible_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Request
    from jinja2.runtime import Context

    from .auth import Visitor

MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        # requests and decisions
        "approved_for_session": "Approved until that session ends.",
        "approved": "Approved permanently.",
        "denied": "Denied.",
        "noted": "The note is saved.",
        "revoked": "Revoked.",
        "denial_removed": "The denial is removed.",
        "undone": "Undone. The decision has ended, and its requests are pending again.",
        "undone_partly": "Undone. Requests that have already resumed, or were filed again, stay answered.",
        "undone_some": "The decisions below were not undone, with the reason beside each. The others have ended.",
        # users and sessions
        "signed_out": "Signed out.",
        "session_ended": "The session has ended.",
        "sessions_ended": "All other sessions have ended.",
        "password_changed": "The password is changed.",
        "person_created": "The user can sign in now.",
        "person_disabled": "The user is disabled, and all sessions of the user have ended.",
        "person_signed_out": "All sessions of the user have ended.",
        "person_enabled": "The user is enabled.",
        "person_changed": "The user is changed.",
        "token_revoked": "The token is revoked.",
        # extensions and tasks
        "task_started": "The task is started.",
        "task_cancelled": "The task is canceled.",
        "install_started": "The installation is running.",
        "settings_changed": "The setting is changed. The next call starts a worker with it.",
        "server_added": "The MCP server is registered.",
        "server_enabled": "The MCP server is enabled.",
        "server_disabled": "The MCP server is disabled.",
        "server_removed": "The MCP server is removed.",
        "model_added": "The model is added. Agents can use it at once.",
        "model_changed": "The model is changed. Agents use the change from their next call.",
        "model_key_removed": "The key of the model is removed.",
        "model_removed": "The model is removed.",
        "shadow_started": "The shadow run has started. The current manifest still decides.",
        "shadow_ended": "The shadow run has ended. Its findings are kept.",
        "self_test_done": "The self-test has run.",
    }
)
"""Messages by the value of ``done`` in the address."""


_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MARK = 16
"""Length of a state mark."""
_NOT_SUPER = "only for users who may decide: the super role, without an organization"


class NavigationEntry(NamedTuple):
    """One entry of the navigation."""

    label: str
    path: str
    current: bool
    first: bool
    """Whether it starts a group."""
    why_not: str = ""
    """The reason why this user cannot use it; empty otherwise."""


_PLACES = (
    ("Requests", "/requests", False),
    ("Approvals", "/approvals", True),
    ("Denials", "/denials", True),
    ("Subjects", "/subjects", True),
    ("Extensions", "/extensions", False),
    ("Shadow runs", "/shadows", True),
    ("Tasks", "/tasks", False),
    ("Audit", "/audit", True),
    ("Status", "/status", True),
    ("Explain", "/explain", True),
)
"""Label, path, and whether it needs the right to decide."""
_FIRST = frozenset({"Subjects", "Audit", "Users"})
"""Entries that start a group."""


def render(
    request: Request, template: str, *, visitor: Visitor | None = None, status: int = 200, **context: Any
) -> HTMLResponse:
    """Return a page. ``visitor`` is None on pages without a sign-in, and for errors.

    An error page of a signed-in user has the usual navigation. ``place`` is the navigation entry of the page, if its
    path does not say so. ``holds`` says which message codes are true for the page, because a user can reload an old
    address; other messages are not shown.
    """
    visitor = visitor or getattr(request.state, "visitor", None)
    done = request.query_params.get("done", "")
    message = MESSAGES.get(done, "") if context.pop("holds", {}).get(done, False) else ""
    values = {
        "request": request,
        "visitor": visitor,
        "places": _navigation(request, visitor, context.pop("place", "")),
        "has_accounts": _has_accounts(request),
        "message": message,
        "message_more": "",
        "message_link": None,
        "now": datetime.now(UTC),
        **context,
    }
    text = _environment().get_template(template).render(values)
    # File names can contain lone surrogates, which UTF-8 cannot encode; the visible ones are already escaped.
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), status_code=status)


def url(request: Request, path: str, /, **query: object) -> str:
    """Return the address of a path below the mount point of the console; empty values are omitted."""
    given = {name: value for name, value in query.items() if value not in (None, "", ())}
    tail = f"?{urlencode(given, doseq=True, errors='replace')}" if given else ""
    return f"{_root(request)}{path}{tail}"


def redirect(request: Request, path: str, /, *, done: str = "", **query: object) -> RedirectResponse:
    """Redirect the browser after a POST; ``done`` is a code of ``MESSAGES``."""
    if done and done not in MESSAGES:
        raise ValueError(f"{done!r} is not a message")
    return RedirectResponse(url(request, path, done=done, **query), status_code=303)


def state_mark(state: object) -> str:
    """Return a mark that changes with a state, for forms and addresses."""
    return hashlib.sha256(repr(state).encode("utf-8", "backslashreplace")).hexdigest()[:_MARK]


def is_present(request: Request, state: object) -> bool:
    """Return whether the mark ``seen`` of the address is that of the state."""
    return request.query_params.get("seen", "") == state_mark(state)


def is_id(text: str) -> bool:
    """Return whether a text can be an id."""
    return bool(_ID.fullmatch(text))


def id_in_query(request: Request, name: str) -> str:
    """Return a valid id from the address, or an empty text."""
    text = request.query_params.get(name, "")
    return text if is_id(text) else ""


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """Return the distance of a time from now, in its largest unit."""
    if moment is None:
        return "never"
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    words = _span(abs(seconds))
    if words == "now":
        return "just now"
    return f"{words} ago" if seconds > 0 else f"in {words}"


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return "now"


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _navigation(request: Request, visitor: Visitor | None, place: str) -> tuple[NavigationEntry, ...]:
    if visitor is None:
        return ()
    here = place or request.url.path.removeprefix(_root(request))
    may = visitor.may_decide
    listed = _PLACES + ((("Users", "/people", True),) if may and _has_accounts(request) else ())
    return tuple(
        NavigationEntry(
            label, path, _is_below(here, path), label in _FIRST, _NOT_SUPER if for_super and not may else ""
        )
        for label, path, for_super in listed
    )


def _is_below(here: str, path: str) -> bool:
    return here == path or here.startswith(f"{path}/")


def _has_accounts(request: Request) -> bool:
    sandbox = getattr(request.app.state, "sandbox", None)
    return getattr(sandbox, "accounts", None) is not None


# ---- the environment of the templates --------------------------------------------------------------------------------


def prepare() -> None:
    """Compile all templates before any module runs.

    A compiled template keeps its functions; one compiled later could use functions that a module has replaced.
    """
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


def _new_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(url=_url, asset=_asset, kept=_kept)
    environment.filters.update(
        visible=visible,
        visible_cut=visible_cut,
        visible_text=visible_text,
        visible_lines=visible_lines,
        target_shown=target_shown,
        target_whole=target_whole,
        ago=ago,
        exactly=_exactly,
        machine=_machine,
        plural=_plural,
        verb=_verb,
    )
    return environment


_environment = once(_new_environment, "console")


@pass_context
def _url(context: Context, path: str, /, **query: object) -> str:
    return url(context["request"], path, **query)


@pass_context
def _asset(context: Context, name: str) -> str:
    """Return the address of a static file, which changes with its content; empty for a missing file."""
    version = _versions().get(name)
    return url(context["request"], f"/static/{name}", v=version) if version else ""


@pass_context
def _kept(context: Context, **changes: object) -> Mapping[str, object]:
    """Return the query of this page with changed values, without the parameters of a single page."""
    query = {
        name: value
        for name, value in context["request"].query_params.multi_items()
        if name not in {"after", "done", "about", "seen"} and len(value) <= _LONGEST_KEPT
    }
    return {**query, **changes}


_LONGEST_KEPT = 500


@cache
def _versions() -> Mapping[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in STATIC.iterdir()}


def _exactly(moment: datetime | None) -> str:
    return "never" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _machine(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _verb(operation: object) -> str:
    """Return an operation as it precedes a target."""
    text = str(operation)
    return f"{text} {_PREPOSITIONS[text]}" if text in _PREPOSITIONS else text


_PREPOSITIONS: Mapping[str, str] = MappingProxyType({"receive": "from", "send": "to", "connect": "to"})
