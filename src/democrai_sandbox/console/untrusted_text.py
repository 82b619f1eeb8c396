"""Untrusted text on pages: invisible and misleading characters are marked.

Names, targets and reasons come from code that may try to mislead the administrator.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

import idna
from markupsafe import Markup, escape

from democrai_sandbox.policy.hosts import mixed_scripts, scripts_of, unicode_host

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    return Markup("").join(_mark(*piece) if piece[1] else escape(piece[0]) for piece in _pieces(plain))


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


def _mark(shown: str, name: str) -> Markup:
    return Markup('<span class="mark" title="{}">{}</span>').format(name, shown)


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
