"""Untrusted text on pages."""

from __future__ import annotations

import html
import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from democrai_sandbox.console.render import (
    split_target,
    target_shown,
    target_whole,
    visible,
    visible_lines,
    visible_text,
)
from democrai_sandbox.policy.hosts import mixed_scripts, unicode_host
from tests.services.golden import sentence
from tests.services.rows import rows

HIDDEN = {
    "\u202e": "RIGHT-TO-LEFT OVERRIDE",
    "\u2066": "LEFT-TO-RIGHT ISOLATE",
    "\u200b": "ZERO WIDTH SPACE",
    "\u200d": "ZERO WIDTH JOINER",
    "\ufeff": "ZERO WIDTH NO-BREAK SPACE",
    "\u00ad": "SOFT HYPHEN",
    "\u00a0": "NO-BREAK SPACE",
    "\u2028": "LINE SEPARATOR",
    "\u3164": "HANGUL FILLER",
    "\u2800": "BRAILLE PATTERN BLANK",
    "\ufe0f": "VARIATION SELECTOR-16",
    "\U000e0041": "TAG LATIN CAPITAL LETTER A",
    "\x00": "NULL",
    "\x1b": "ESCAPE",
    "\n": "LINE FEED",
    "\ue000": "private use",
    "\ud800": "lone surrogate",
    "\u0378": "unassigned",
}


def words(markup):
    """The visible text."""
    return html.unescape(re.sub(r"<[^>]*>", "", str(markup)))


@rows("character", HIDDEN, ids=HIDDEN.get)
def test_a_character_that_does_not_show_is_a_labelled_mark(character):
    """Invisible characters are shown by number and name."""
    shown = visible(f"a{character}b")
    assert character not in shown
    assert f'title="{HIDDEN[character]}">U+{ord(character):04X}</span>' in shown
    assert visible_text(f"a{character}b") == f"a[{HIDDEN[character]}]b"


def test_spaces_at_the_ends_and_in_a_row_are_marked():
    """Only single spaces between words are kept."""
    assert visible("two words") == "two words"
    assert words(visible(" a  b ")) == "U+0020a U+0020bU+0020"


def test_markup_is_text():
    """Foreign HTML is escaped in texts and attributes."""
    hostile = "<script>alert(1)</script>\" onmouseover='x' &amp;"
    assert "<" not in visible(hostile)
    assert '"' not in visible(hostile)
    assert words(visible(hostile)) == hostile
    assert isinstance(visible(hostile), Markup)
    assert not isinstance(visible_text(hostile), Markup)


def test_a_pile_of_combining_characters_is_cut_and_counted():
    """Two per letter are shown, further ones counted."""
    shown = words(visible("e" + "\u0301" * 50 + "x"))
    assert shown == "e\u0301\u0301+48 combiningx"
    assert words(visible("e\u0301a")) == "e\u0301a"
    assert words(visible("\u0301a")) == "U+0301a"


def test_lines_that_a_person_wrote_stay_lines():
    """Line ends are kept, the rest is marked as usual."""
    assert visible_lines("one\r\ntwo\u202e") == Markup(
        'one<br>two<span class="mark" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>'
    )


@given(st.text())
def test_nothing_invisible_is_left(text):
    """No invisible character remains, and the page can be encoded."""
    shown = str(visible(text))
    kinds = {unicodedata.category(character) for character in shown}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    shown.encode()
    assert "  " not in words(shown)
    assert not {unicodedata.category(character) for character in visible_text(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


# ---- targets ---------------------------------------------------------------------------------------------------------

LONG_HOST = ".".join(["a" * 60] * 4)


@rows(
    ("target", "whole"),
    [
        (f"https://api.example.com:8443/{'x' * 300}/end", "https://api.example.com:8443"),
        (f"https://{LONG_HOST}/{'x' * 300}", f"https://{LONG_HOST}"),
        (f"{LONG_HOST}:443", f"{LONG_HOST}:443"),
        (f"https://user@evil.example/{'y' * 200}", "https://user@evil.example"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("10.0.0.0/8", "10.0.0.0/8"),
    ],
)
def test_who_is_at_the_other_end_is_never_cut(target, whole):
    """Scheme, host and port are never shortened."""
    shown = words(target_shown(target))
    assert shown.startswith(whole)
    assert f'<span class="origin">{whole}</span>' in target_shown(target)


def test_a_long_path_keeps_both_ends():
    """The middle is shortened; the title has the whole text."""
    path = "/srv/" + "deep/" * 100 + "secret.txt"
    shown = target_shown(path)
    assert words(shown).startswith("/srv/deep/")
    assert words(shown).endswith("secret.txt")
    assert "…" in shown
    assert f'title="{path}"' in shown
    assert len(words(shown)) < 120
    assert words(target_whole(path)) == path


def test_a_long_title_of_a_hostile_target_is_text():
    """Titles are escaped, too."""
    shown = target_shown('/srv/"onclick="x\u202e' + "z" * 500)
    assert '"onclick' not in shown
    assert "\u202e" not in shown


def test_both_forms_of_a_name_in_other_letters_are_shown():
    """The ASCII and the readable form are both shown."""
    assert "пример.com" in words(target_shown("https://xn--e1afmkfd.com/x"))
    assert "xn--e1afmkfd.com" in words(target_shown("https://пример.com/x"))
    assert "Cyrillic" in words(target_shown("https://xn--80ak6aa92e.com"))
    assert "(" not in words(target_shown("https://api.example.com/v1"))


def test_a_name_that_mixes_scripts_is_pointed_out():
    """Mixed scripts are named, except for scripts that belong together."""
    shown = target_shown("https://xn--pple-43d.com/")
    sentence("mixed scripts", words(shown))
    assert 'class="idn mixed"' in shown
    assert mixed_scripts("日本語テスト.jp") == ()
    assert mixed_scripts(unicode_host("xn--pple-43d.com")) == ("CYRILLIC", "LATIN")


def test_a_target_does_not_turn_the_line_around():
    """A target is isolated from left to right."""
    assert target_shown("https://example.com/שלום").startswith('<bdi class="target" dir="ltr">')


@given(st.text())
def test_any_text_can_be_shown_as_a_target(text):
    """Malformed targets do not break a page."""
    str(target_shown(text)).encode()
    str(target_whole(text)).encode()
    assert "".join(split_target(text)) == text
