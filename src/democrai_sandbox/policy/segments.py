"""Paths of URLs, compared segment by segment."""

from __future__ import annotations

import re
from urllib.parse import quote

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# An encoded dot, slash or backslash, however many times the percent sign itself was encoded, or a control character.
_ENCODED_SYNTAX = re.compile(r"%(?:25)*(?:2[eEfF]|5[cC])|%[01][0-9a-fA-F]|%7[fF]")
# Servers that know path parameters drop ";..." before they look for dots, and some clients decode an escaped ";".
_DOT_SEGMENT = re.compile(r"(?:^|/)\.\.?(?:(?:;|%(?:25)*3[bB])[^/]*)?(?=/|$)")
_SYNTAX = re.compile(r"%(?:2[eEfF]|5[cC])")
# A path in which this many decodings still find something to decode is refused.
_MOST_DECODINGS = 8
_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~"
# Reserved characters that may stand in a segment as they are. Clients that rewrite paths send their escapes plain, all
# but that of "+", which means a space to some.
_RESERVED = "!$&'()*,:;=@"
_DECODED = frozenset(_UNRESERVED + _RESERVED)
# Beside those: the plus sign, the dot, and the escapes that are already there.
_KEPT = _RESERVED + "+.%"


def is_ambiguous(path: str) -> bool:
    """Tell whether servers and clients may take this path for another one.

    That is the case with dot segments and with encoded dots, slashes, backslashes and control characters: some
    decode and collapse them, others do not. Likewise with a percent sign that begins no escape, and with slashes at
    the front, of which some clients send only one.
    """
    if path.startswith("//") and path.strip("/"):
        return True
    found = _DOT_SEGMENT.search(path) or _ENCODED_SYNTAX.search(path) or _BROKEN_ESCAPE.search(path)
    return found is not None or ("%25" in path and _hides_syntax(path))


def _hides_syntax(path: str) -> bool:
    """Tell whether decoding the path again and again finds an encoded dot, slash or backslash, or a dot segment.

    Each sign of an escape may be encoded itself: "%25%32%65" is "%2e" after one decoding.
    """
    for _ in range(_MOST_DECODINGS):
        if _DOT_SEGMENT.search(path) or _SYNTAX.search(path):
            return True
        path, number = _ESCAPE.subn(lambda escape: chr(int(escape.group(1), 16)), path)
        if number == 0:
            return False
    return True


def normalise_segments(path: str) -> tuple[str, ...]:
    """Return the segments of a URL's path with one spelling for each; empty ones at the end go away.

    Escapes of letters, digits and what else may stand in a segment are decoded, other escapes get upper-case digits,
    and what has to be escaped is. An ambiguous path keeps its escapes as they are.
    """
    plain = path if is_ambiguous(path) else _ESCAPE.sub(_canonical_escape, path)
    segments = quote(plain, safe="/" + _KEPT).rstrip("/").split("/")
    return tuple(segments[1:])


def _canonical_escape(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return character if character in _DECODED else match.group().upper()
