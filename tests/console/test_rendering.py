"""Rendering of pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError
from starlette.requests import Request

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.values import RequestState
from democrai_sandbox.console import render as rendering
from democrai_sandbox.console.auth import Visitor
from democrai_sandbox.console.problems import ErrorAnswer
from democrai_sandbox.console.render import MESSAGES, STATIC, ago, id_in_query, redirect, render, url
from democrai_sandbox.host.authentication import Identity
from tests.services.golden import sentence
from tests.services.rows import rows

TEMPLATES = Path(rendering.__file__).parent / "templates"
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def asked(path="/requests", query="", root=""):
    """An HTTP request of a server, with a root path if mounted."""
    app = SimpleNamespace(state=SimpleNamespace(sandbox=SimpleNamespace(accounts=object())))
    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "server": ("localhost", 80),
        "path": root + path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [],
        "app": app,
        "state": {},
    }
    return Request(scope)


def visitor(role="super"):
    return Visitor(Identity("ada", "key"), Caller(user_id="ada", session_key="key", role=role), "Ada")


def page(request, who=None, **told):
    """The error page, which stands for all pages."""
    request.state.visitor = who or getattr(request.state, "visitor", None)
    answer = render(request, "error.html", told=ErrorAnswer(404, "not_found", **told), number="17")
    return answer.body.decode()


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_addresses_know_where_the_console_is_mounted():
    """Every address starts with the mount point."""
    request = asked(root="/sandbox")
    assert url(request, "/requests", state="denied", text="", page=None) == "/sandbox/requests?state=denied"
    assert redirect(request, "/denials", done="denied").headers["location"] == "/sandbox/denials?done=denied"
    text = page(request, visitor())
    links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
    assert links
    assert all(link.startswith(("/sandbox/", "#")) for link in links), links
    assert 'href="/sandbox/requests" aria-current="page"' in text


def test_an_address_can_carry_any_field():
    """Field names can equal parameter names, and values can be any text."""
    assert (
        url(asked(), "/audit", request="1", path="/x", text="a b&c=\udcff")
        == "/audit?request=1&path=%2Fx&text=a+b%26c%3D%3F"
    )


def test_every_template_takes_its_addresses_from_the_function():
    """No template has a literal address."""
    own = re.compile(r'(?:href|src|action|formaction)="(?!\{\{|#)')
    found = {str(file): own.findall(file.read_text()) for file in TEMPLATES.rglob("*.html")}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_no_template_has_script_or_style_of_its_own():
    """The content policy forbids inline scripts, styles and handlers."""
    inline = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|\|safe\b", re.IGNORECASE)
    found = {str(file): inline.findall(file.read_text()) for file in TEMPLATES.rglob("*.html")}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_scripts_put_no_text_on_the_page_as_html():
    """Scripts insert text only, and evaluate nothing."""
    for file in STATIC.glob("*.js"):
        text = file.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert word not in text, (file.name, word)


# ---- messages --------------------------------------------------------------------------------------------------------


def test_a_message_is_a_known_code():
    """The page says what the code stands for, if that is true of it; anything else in the address is not shown."""
    for holds, found in (({"denied": True}, True), ({"denied": False}, False), ({}, False)):
        answer = render(asked(query="done=denied"), "login.html", next="", name="", trouble="", holds=holds)
        assert (MESSAGES["denied"] in answer.body.decode()) is found
    assert "All+is+well" not in page(asked(query="done=All+is+well"), visitor())
    assert "All is well" not in page(asked(query="done=All+is+well"), visitor())
    with pytest.raises(ValueError, match="'well done'"):
        redirect(asked(), "/requests", done="well done")


@rows(("text", "found"), [("01abc-_Z", "01abc-_Z"), ('"><b>', ""), ("a/b", ""), ("", ""), ("x" * 101, "")])
def test_an_id_in_an_address_is_one(text, found):
    """Only valid ids are accepted."""
    request = asked()
    request.scope["query_string"] = f"about={text}".encode()
    assert id_in_query(Request(request.scope), "about") == found


# ---- the frame -------------------------------------------------------------------------------------------------------


def test_who_may_not_decide_sees_why_a_place_is_not_for_them():
    """Unavailable entries have the reason instead of a link."""
    text = page(asked(), visitor(role=""))
    why = re.search(r'<span class="nowhere" title="([^"]*)">Audit', text)[1]
    sentence("audit, not for everybody", why)
    assert 'href="/requests"' in text
    assert 'href="/audit"' not in text
    assert 'href="/people"' not in text
    assert 'href="/people"' in page(asked(), visitor())


def test_nobody_sees_no_navigation():
    """Before the sign-in there is no navigation."""
    text = page(asked())
    assert "<nav" not in text
    assert "Sign out" not in text


def test_an_error_of_somebody_known_keeps_the_frame():
    """Error pages of signed-in users have the navigation."""
    request = asked()
    request.state.visitor = visitor()
    assert 'aria-label="Main"' in page(request)


def test_a_page_has_what_screen_readers_need():
    """A language, a title, a way past the navigation, a region for news, and one main heading."""
    text = page(asked(), visitor())
    for part in (
        '<html lang="en">',
        "<title>Not Found · democrai sandbox</title>",
        'href="#content"',
        'id="content"',
        'aria-live="polite"',
    ):
        assert part in text, part
    assert text.count("<h1") == 1


def test_what_an_error_says_is_shown_visibly():
    """Foreign text in errors is escaped."""
    text = page(asked(), visitor(), detail="no <b>such</b> \u202ething")
    assert "<b>such" not in text
    assert "U+202E" in text


def test_a_name_that_a_template_does_not_get_is_an_error():
    """An unknown template variable raises an error."""
    with pytest.raises(UndefinedError):
        render(asked(), "error.html")


def test_half_a_character_does_not_break_a_page():
    """Lone surrogates are escaped."""
    assert (
        "nothing at half\\udcff"
        in render(asked(), "error.html", told=ErrorAnswer(404, "x", "y"), number="nothing at half\udcff").body.decode()
    )


def test_static_files_change_their_address_with_their_content():
    """Browsers can cache static files."""
    text = page(asked(), visitor())
    for name in ("console.css", "console.js", "icon.svg"):
        assert re.search(rf'"/static/{re.escape(name)}\?v=[0-9a-f]{{12}}"', text), name


# ---- pieces ----------------------------------------------------------------------------------------------------------


@rows(
    ("span", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(seconds=-5), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=3, minutes=59), "3 hours ago"),
        (timedelta(days=40), "40 days ago"),
        (timedelta(hours=-30), "in 1 day"),
    ],
)
def test_times_are_told_in_the_coarsest_unit(span, words):
    """Relative times, with the exact time in the title."""
    assert ago(NOW - span, NOW) == words
    assert ago(None) == "never"


def test_a_state_is_a_sign_and_a_word():
    """No state is shown by color alone."""
    template = rendering._environment().from_string(
        '{% import "parts.html" as parts with context %}{% for one in states %}{{ parts.state(one) }}\n{% endfor %}'
    )
    states = [*RequestState, "brand_new"]
    lines = template.render(states=states, request=asked(), visitor=visitor()).strip().splitlines()
    assert len(lines) == len(states)
    assert all("<svg" in line and re.search(r"<span>[a-z ]+</span>", line) for line in lines)
    assert "<span>brand new</span>" in lines[-1]
