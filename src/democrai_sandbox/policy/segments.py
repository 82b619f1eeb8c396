"""Path segments of URLs."""

from __future__ import annotations

import re
from urllib.parse import quote

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# An encoded dot, slash or backslash, with the percent sign encoded any number of times, or a control character.
_ENCODED_SYNTAX = re.compile(r"%(?:25)*(?:2[eEfF]|5[cC])|%[01][0-9a-fA-F]|%7[fF]")
# Servers that support path parameters drop ";..." before they look for dots, and some clients decode an escaped ";".
_DOT_SEGMENT = re.compile(r"(?:^|/)\.\.?(?:(?:;|%(?:25)*3[bB])[^/]*)?(?=/|$)")
_SYNTAX = re.compile(r"%(?:2[eEfF]|5[cC])")
# A path that is still encoded after this many decodings is rejected.
_MOST_DECODINGS = 8
_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~"
# Reserved characters that are valid in a segment. Clients that rewrite paths send them unescaped, except "+", which
# some read as a space.
_RESERVED = "!$&'()*,:;=@"
_DECODED = frozenset(_UNRESERVED + _RESERVED)
# Additionally the plus sign, the dot, and existing escapes.
_KEPT = _RESERVED + "+.%"


def is_ambiguous(path: str) -> bool:
    """Return whether servers and clients may interpret this path differently.

    This applies to dot segments and to encoded dots, slashes, backslashes and control characters, which some decode and
    collapse and others do not. It also applies to a percent sign without an escape, and to several leading slashes, of
    which some clients send only one.
    """
    if path.startswith("//") and path.strip("/"):
        return True
    found = _DOT_SEGMENT.search(path) or _ENCODED_SYNTAX.search(path) or _BROKEN_ESCAPE.search(path)
    return found is not None or ("%25" in path and _hides_syntax(path))


def _hides_syntax(path: str) -> bool:
    """Return whether repeated decoding reveals an encoded dot, slash or backslash, or a dot segment.

    Each character of an escape may be encoded: "%25%32%65" is "%2e" after one decoding.
    """
    for _ in range(_MOST_DECODINGS):
        if _DOT_SEGMENT.search(path) or _SYNTAX.search(path):
            return True
        path, number = _ESCAPE.subn(lambda escape: chr(int(escape.group(1), 16)), path)
        if number == 0:
            return False
    return True


def normalise_segments(path: str) -> tuple[str, ...]:
    """Return the canonical segments of a URL's path, without empty ones at the end.

    Escapes of characters that are valid in a segment are decoded, other escapes get upper-case digits, and invalid
    characters are escaped. An ambiguous path keeps its escapes.
    """
    plain = path if is_ambiguous(path) else _ESCAPE.sub(_canonical_escape, path)
    segments = quote(plain, safe="/" + _KEPT).rstrip("/").split("/")
    return tuple(segments[1:])


def _canonical_escape(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return character if character in _DECODED else match.group().upper()
