"""Output of a command without control characters: results, messages and tables; times, and the exit status."""

from __future__ import annotations

import errno
import io
import sys
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Self, TextIO

from democrai_sandbox.cli.arguments.options import SECONDS

from .terminal import columns, has_colour

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class Exit(IntEnum):
    """Documented exit statuses of all commands; ``run`` returns that of the program instead."""

    OK = 0
    FAILED = 1
    """Refused, failed, or (status, doctor, manifest check) a problem was found."""
    USAGE = 2
    UNREACHABLE = 3
    """The node or the database does not answer."""
    CONFLICT = 4
    """Another user decided first, or another decision blocks this one."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141


_ESCAPES = {"ok": "32", "warning": "33", "bad": "31", "faint": "2", "strong": "1"}
_GAP = "  "
_NARROWEST = 12
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Invisible letters."""
_MARKS = ("Mn", "Me")
_MOST_MARKS = 4
"""Maximum marks per letter. Scripts need no more, and many of them would cover other lines."""
_LONGEST = 300


class Mood(StrEnum):
    """Meaning of a color. Color never is the only sign."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"
    FAINT = "faint"
    STRONG = "strong"


class CommandOutput:
    """Output streams of a command. Use either ``data`` once, or ``line`` and ``table`` any number of times."""

    def __init__(self, *, is_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.is_json = is_json
        self._out = out or sys.stdout or _Closed()
        self._err = err or sys.stderr or io.StringIO()
        self._progress = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress("")
        self._out.flush()  # a write error must be known before the exit status

    @property
    def is_watched(self) -> bool:
        """Whether standard output is a terminal."""
        return self._out.isatty()

    # ---- data --------------------------------------------------------------------------------------------------------

    def data(self, schema: str, content: Mapping[str, Any]) -> bool:
        """Write one JSON document, if the command was asked for JSON; return whether it was.

        ``schema`` is ``noun.verb/version``: fields are only added within a version.
        """
        if self.is_json:
            self._out.write(_json({"schema": f"democrai-sandbox/{schema}", **content}, indent=2) + "\n")
        return self.is_json

    def record(self, content: Mapping[str, Any]) -> None:
        """Write one JSON document per line, for commands that follow changes."""
        self._out.write(_json(content) + "\n")
        self._out.flush()

    def exactly(self, data: bytes) -> None:
        """Write a line of existing data: unchanged, or escaped on a terminal."""
        if self.is_watched or not isinstance(self._out, io.TextIOWrapper):
            self._out.write(visible(data.decode("utf-8", "replace").rstrip("\r\n")) + "\n")
        else:
            self._out.buffer.write(data)

    def line(self, text: str = "", mood: Mood | None = None) -> None:
        """Write a line of text; foreign texts in it must be ``visible``."""
        self._out.write(self.coloured(text, mood) + "\n")

    def coloured(self, text: str, mood: Mood | None, stream: TextIO | None = None) -> str:
        """Return a text in its color, if the stream, by default standard output, shows colors."""
        if mood is None or not text or not has_colour(stream or self._out):
            return text
        return f"\x1b[{_ESCAPES[mood]}m{text}\x1b[0m"

    def flush(self) -> None:
        """Flush standard output."""
        self._out.flush()

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[object]],
        moods: Mapping[str, Mood] | None = None,
        *,
        empty: str = "",
    ) -> None:
        """Write a table. On a terminal the widest columns are shortened in the middle to fit.

        Ids are never shortened, because users copy them. Cells are made visible here. ``moods`` maps cell texts to
        colors. ``empty`` is a message that replaces a table without rows.
        """
        cells = [[visible(str(cell)) for cell in row] for row in rows]
        if empty and not cells:
            self.say(empty)
            return
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        if self.is_watched:
            _narrow(widths, columns(self._out), [place for place, head in enumerate(heads) if not head.endswith("ID")])
        self._row(heads, widths, dict.fromkeys(heads, Mood.FAINT))
        for row in cells:
            self._row(row, widths, moods or {})

    def _row(self, cells: Sequence[str], widths: Sequence[int], moods: Mapping[str, Mood]) -> None:
        shown = [
            self.coloured(shortened(cell, width).ljust(width if place < len(widths) - 1 else 0), moods.get(cell))
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        self._out.write(_GAP.join(shown).rstrip() + "\n")

    # ---- talk --------------------------------------------------------------------------------------------------------

    def say(self, text: str, mood: Mood | None = None) -> None:
        """Write a message to standard error."""
        self.progress("")
        self._err.write(self.coloured(text, mood, self._err) + "\n")
        self._err.flush()

    def progress(self, text: str) -> None:
        """Show progress in a line that the next one replaces, on a terminal only."""
        if (text or self._progress) and self._err.isatty():
            self._err.write("\r" + text.ljust(self._progress) + ("" if text else "\r"))
            self._err.flush()
            self._progress = len(text)


class _Closed(io.StringIO):
    """Replacement for a closed standard output, which fails instead of losing data."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def _json(content: Mapping[str, Any], **options: Any) -> str:
    import json  # noqa: PLC0415 - seldom needed

    return json.dumps(content, **options)


def visible(text: str) -> str:
    """Return a text as one line, with hidden, control and stacked characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        sign
        if sign.isprintable() and sign not in _BLANK and marks <= _MOST_MARKS
        else sign.encode("unicode_escape").decode()
        for sign, marks in _marked(text)
    )


def _marked(text: str) -> Iterator[tuple[str, int]]:
    """Yield each character with the number of marks on its letter so far; 0 if it is not a mark."""
    from unicodedata import category  # noqa: PLC0415 - seldom needed

    marks = 0
    for sign in text:
        marks = marks + 1 if category(sign) in _MARKS else 0
        yield sign, marks


def _narrow(widths: list[int], room: int, places: list[int]) -> None:
    """Shrink the widest columns until the table fits the terminal."""
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    for place in sorted(places, key=widths.__getitem__, reverse=True):
        taken = max(min(over, widths[place] - _NARROWEST), 0)
        widths[place] -= taken
        over -= taken


def shortened(text: str, width: int = _LONGEST) -> str:
    """Shorten a text in the middle, because the host of a URL and the end of a path matter most."""
    if len(text) <= width:
        return text
    left = width // 2
    return text[:left] + "…" + text[len(text) - (width - 1 - left) :]


def plural(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def when(text: str | None) -> str:
    """Return a time of the API to the second, in UTC; ``-`` for None."""
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return the age of a time of the API in its largest unit, such as ``5m``; ``-`` for None."""
    if not text:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()))
    for unit in ("d", "h", "m"):
        if seconds >= SECONDS[unit]:
            return f"{seconds // SECONDS[unit]}{unit}"
    return f"{seconds}s"
