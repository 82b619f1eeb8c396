"""Rendering: pages from templates with their messages, untrusted text, and JSON of plain data.

Everything on a page is escaped; an unknown name in a template is an error. Names, targets and reasons come from code
that may try to mislead the administrator: invisible and misleading characters are marked. JSON can have bytes, numbers
that are not finite, and lone surrogates.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from base64 import b64encode
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import idna
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from democrai_sandbox.host.host_only import once
from democrai_sandbox.policy.hosts import mixed_scripts, scripts_of, unicode_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastapi import Request
    from jinja2.runtime import Context

    from .auth import Visitor

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK_LETTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0\u17b4\u17b5\u034f")
"""Letters, a symbol and combining characters that are invisible in spite of their category."""
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef\u180b-\u180d]")
_COMBINING = frozenset({"Mn", "Me"})
_MOST_COMBINING = 2
"""Maximum of combining characters per letter. Scripts need no more, and many of them would cover other lines."""
_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")

_LONGEST = 72
_KEPT = 26
"""Characters kept at either end of a shortened text."""
_ORIGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#\\]*")


def visible(text: object) -> Markup:
    """Return a text as HTML in which each invisible character is a labeled mark."""
    plain = str(text)
    if _PLAIN.fullmatch(plain):
        return escape(plain)
    mark = Markup('<span class="mark" title="{}">{}</span>')
    return Markup("").join(mark.format(name, shown) if name else escape(shown) for shown, name in _pieces(plain))


def visible_text(text: object) -> str:
    """Return the same for places without elements: titles, attributes, messages."""
    return "".join(f"[{name}]" if name else shown for shown, name in _pieces(str(text)))


def visible_cut(text: object, limit: int = 300) -> Markup:
    """Return a text, shortened in the middle; for sentences about a target that is shown elsewhere in full."""
    plain = str(text)
    if len(plain) <= limit:
        return visible(plain)
    half = limit // 2
    return Markup('{}<span class="cut">…</span>{}').format(visible(plain[:half]), visible(plain[-half:]))


def visible_lines(text: object) -> Markup:
    """Return a text of several lines: line ends are kept, the rest is as in ``visible``."""
    lines = str(text).replace("\r\n", "\n").split("\n")
    return Markup("<br>").join(visible(line) for line in lines)


def target_shown(target: object, limit: int = _LONGEST) -> Markup:
    """Return a target for a list, shortened in the middle; scheme, host and port are never shortened."""
    text = str(target)
    origin, rest = split_target(text)
    note = _name_note(origin)
    if len(text) <= limit or len(rest) <= 2 * _KEPT:
        return _isolated(origin, visible(rest), note)
    gap = Markup('<span class="cut" title="{}"><span class="sr">, {} characters left out, </span>…</span>').format(
        visible_text(text if len(text) <= _LONGEST_TITLE else f"{text[:_LONGEST_TITLE]}…"), len(rest) - 2 * _KEPT
    )
    return _isolated(origin, visible(rest[:_KEPT]) + gap + visible(rest[-_KEPT:]), note)


_LONGEST_TITLE = 2000


def target_whole(target: object) -> Markup:
    """Return a target in full."""
    origin, rest = split_target(str(target))
    return _isolated(origin, visible(rest), _name_note(origin))


def split_target(target: str) -> tuple[str, str]:
    """Return the origin and the path of a target. A host form has only an origin, a file only a path."""
    match = _ORIGIN.match(target)
    if match:
        return match.group(), target[match.end() :]
    if target.startswith(("/", "unix:")):
        return "", target
    name, slash, rest = target.partition("/")  # a range is short
    return (target, "") if rest.isdigit() else (name, slash + rest)


def _isolated(origin: str, rest: Markup, note: Markup) -> Markup:
    # Right-to-left letters would otherwise reorder the rest of the line.
    head = Markup('<span class="origin">{}</span>').format(visible(origin)) if origin else Markup("")
    return Markup('<bdi class="target" dir="ltr">{}{}</bdi>{}').format(head, rest, note)


# ---- names in other letters ------------------------------------------------------------------------------------------


def host_of(origin: str) -> str:
    """Return the host in the origin of a target, as written there."""
    authority = origin.partition("://")[2] if "://" in origin else origin
    authority = authority.rpartition("@")[2]
    if authority.startswith("["):
        return authority
    return authority.partition(":")[0]


def _name_note(origin: str) -> Markup:
    """Return the note beside a host that is not ASCII: its other form, and its scripts."""
    host = host_of(origin)
    if host.isascii() and "xn--" not in host.lower():
        return Markup("")
    readable = unicode_host(host)
    if host.isascii():
        other = readable
    else:
        try:
            other = idna.encode(host, uts46=True).decode("ascii")
        except UnicodeError:
            other = ""
    scripts = mixed_scripts(readable)
    if scripts:
        warning = f"mixes {_listed(scripts)} letters"
    else:
        foreign = sorted(scripts_of("".join(c for c in readable if not c.isascii())))
        warning = f"{_listed(foreign)} letters" if foreign else ""
    sign = Markup('<span class="warn" aria-hidden="true">⚠</span> ') if scripts else Markup("")
    shown = Markup('<bdi dir="ltr">{}</bdi>').format(visible(other)) if other and other != host else Markup("")
    words = Markup(", ").join(part for part in (shown, escape(warning)) if part)
    return Markup(' <span class="idn{}">({}{})</span>').format(" mixed" if scripts else "", sign, words)


def _listed(scripts: tuple[str, ...] | list[str]) -> str:
    names = [name.capitalize() for name in scripts]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---- characters ------------------------------------------------------------------------------------------------------


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield (mark, name) for invisible characters and (text, "") for readable text."""
    run: list[str] = []
    combined = 0
    left_out = 0
    before = ""
    for character in text:
        combining = unicodedata.category(character) in _COMBINING and not _is_hidden(character)
        if combining and before and combined >= _MOST_COMBINING:
            left_out += 1
            continue
        if left_out:
            yield from _flushed(run)
            yield _flood(left_out)
            left_out = 0
        if _is_hidden(character) or (combining and not before) or (character == " " and before in {"", " "}):
            yield from _flushed(run)
            yield f"U+{ord(character):04X}", unicodedata.name(character, "") or _kind_of(character)
            combined = 0
        else:
            run.append(character)
            combined = combined + 1 if combining else 0
        before = character
    trailing = run.pop() if not left_out and run and run[-1] == " " else ""
    yield from _flushed(run)
    if left_out:
        yield _flood(left_out)
    if trailing:
        yield "U+0020", "SPACE"


def _flushed(run: list[str]) -> Iterator[tuple[str, str]]:
    if run:
        yield "".join(run), ""
        run.clear()


def _flood(count: int) -> tuple[str, str]:
    return f"+{count} combining", f"{count} more combining characters on this letter"


def _is_hidden(character: str) -> bool:
    if "!" <= character <= "~" or character == " ":
        return False
    category = unicodedata.category(character)
    return (
        category in _HIDDEN
        or category == "Zs"
        or character in _BLANK_LETTERS
        or _SELECTORS.match(character) is not None
    )


def _kind_of(character: str) -> str:
    """Return a name for a character without one in the Unicode database."""
    kinds = {"Cc": "control character", "Co": "private use", "Cs": "lone surrogate", "Cn": "unassigned"}
    controls = {"\0": "NULL", "\t": "TAB", "\n": "LINE FEED", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE"}
    return controls.get(character) or kinds.get(unicodedata.category(character), "invisible")


_SPACES = re.compile("( +)")


def code(text: object) -> Markup:
    """Return a text for a ``pre`` element, which keeps line ends and spaces."""
    return Markup("\n").join(map(code_line, str(text).replace("\r\n", "\n").split("\n")))


def code_line(line: str) -> Markup:
    """Return one line; a tab is marked and has the width of four spaces."""
    return Markup("").join(part if part.isspace() else visible(part) for part in _SPACES.split(line) if part)


class PlainResponse(JSONResponse):
    """JSON response in ASCII that is never cached, because it is valid only now and for this caller."""

    def __init__(self, content: Any = None, status_code: int = 200, headers: Any = None, **other: Any) -> None:
        super().__init__(content, status_code, {"Cache-Control": "no-store", **(headers or {})}, **other)

    def render(self, content: Any) -> bytes:
        """Return the encoded text."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def speakable(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates, as in file names, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def jsonable(value: Any) -> Any:
    """Return plain data for JSON: bytes as ``{"base64": ...}``, numbers that are not finite as texts.

    Keys become texts. The depth is bounded by the guard.
    """
    if isinstance(value, dict):
        return {_key(name): jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, str):
        return speakable(value)
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def _key(name: Any) -> str:
    if isinstance(name, str):
        return speakable(name)
    return json.dumps(name) if name is None or isinstance(name, bool) else str(name)


def weight(value: Any) -> int:
    """Return the approximate length of the JSON of plain data, without creating it."""
    if isinstance(value, dict):
        return sum(weight(name) + weight(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    return len(value) if isinstance(value, str | bytes) else 1


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


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page, for the user that ``auth.person`` found; without one on pages that need no sign-in.

    An error page of a signed-in user has the usual navigation. ``place`` is the navigation entry of the page, if its
    path does not say so. ``holds`` says which message codes are true for the page, because a user can reload an old
    address; other messages are not shown.
    """
    visitor: Visitor | None = getattr(request.state, "visitor", None)
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
    for size, unit in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if abs(seconds) >= size:
            count = int(abs(seconds) // size)
            words = f"{count} {unit}" + ("" if count == 1 else "s")
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "just now"


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
            label, path, f"{here}/".startswith(f"{path}/"), label in _FIRST, _NOT_SUPER if for_super and not may else ""
        )
        for label, path, for_super in listed
    )


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
