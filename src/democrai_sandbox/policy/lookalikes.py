"""Non-ASCII host names: their readable form and the scripts they mix."""

from __future__ import annotations

import unicodedata

_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "LATIN"}),
    frozenset({"CJK", "HANGUL", "LATIN"}),
    frozenset({"CJK", "BOPOMOFO", "LATIN"}),
)
"""Scripts that one language combines."""


def unicode_host(host: str) -> str:
    """Return a host with its ``xn--`` labels decoded; labels that do not decode stay unchanged."""
    return ".".join(_decoded(label) for label in host.split("."))


def scripts_of(text: str) -> frozenset[str]:
    """Return the scripts of a text's letters, by the first word of their Unicode names."""
    return frozenset(
        unicodedata.name(letter, "UNKNOWN").split(" ")[0].split("-")[0] for letter in text if letter.isalpha()
    )


def mixed_scripts(host: str) -> tuple[str, ...]:
    """Return the scripts of a label that mixes scripts which no language combines."""
    for label in host.split("."):
        scripts = scripts_of(label)
        if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
            return tuple(sorted(scripts))
    return ()


def _decoded(label: str) -> str:
    if not label.lower().startswith("xn--"):
        return label
    try:
        import idna  # noqa: PLC0415 - only names that are not ASCII need it

        return idna.ulabel(label)
    except (ImportError, UnicodeError):
        return label
