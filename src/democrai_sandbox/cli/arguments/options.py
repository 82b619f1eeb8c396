"""Tables of arguments: functions that describe verbs and arguments, converters of values, and shared options.

An item of a table is a function that adds an argument, or several, to a parser or to a group of one.
"""

from __future__ import annotations

import argparse
import re
from functools import partial
from types import MappingProxyType

from democrai_sandbox.cli.parser import add_verbs

from .choices import AUDIT_ACTIONS, OPERATIONS, RESOURCE_TYPES, SUBJECT_KINDS

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from democrai_sandbox.cli.parser import CommandParser

    Item = Callable[[Any], Any]
    Verb = Callable[[Any, tuple[Item, ...]], None]

_ID = r"[0-9A-Za-z_-]{1,100}"
_LONG_TEXT = 500
SECONDS = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800})
"""Seconds per unit of time."""
_SPAN = r"([0-9]{1,9})([smhdw])"
_LONGEST = 36525 * 86400
_EXAMPLES = "30m, 2h, 7d"


def an_id(text: str) -> str:
    """Return an id, unchanged."""
    if not re.fullmatch(_ID, text):
        raise _refused(text, "is not an id")
    return text


def a_text(text: str) -> str:
    """Return a short printable text."""
    if not text or len(text) > _LONG_TEXT or not text.isprintable():
        raise _refused(text, "is empty, too long, or contains non-printable characters")
    return text


def a_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of a setting such as ``language=en``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise _refused(name, "is not NAME=VALUE")  # without the value, which may be secret
    return name, value


def written_value(text: str) -> Any:
    """Return the value of a setting: parsed JSON, or the text itself."""
    import json  # noqa: PLC0415 - not needed for --help

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def a_subject(text: str) -> str:
    """Return a valid subject, unchanged."""
    from democrai_sandbox.policy import InvalidInputError, Subject  # noqa: PLC0415 - not needed for --help

    try:
        Subject.parse(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) <= most:
        raise _refused(text, f"is not a number from 1 to {most}")
    return int(text)


a_number = partial(_number, most=100_000)
milliseconds = partial(_number, most=3_600_000)


def seconds(text: str) -> float:
    """Return a duration in seconds, greater than zero; argparse shows the name of this function in errors."""
    found = float(text)
    if not 0 < found < float("inf"):
        raise ValueError(text)
    return found


def span(text: str) -> int:
    """Return the seconds of a duration such as ``2h``."""
    match = re.fullmatch(_SPAN, text)
    found = int(match[1]) * SECONDS[match[2]] if match else 0
    if not 0 < found <= _LONGEST:
        raise _refused(text, f"is not a duration; write {_EXAMPLES}")
    return found


def moment(text: str) -> str:
    """Return a time for the API, from an ISO time or a duration before now."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - not needed for --help

    try:
        if re.fullmatch(_SPAN, text):
            return (datetime.now(UTC) - timedelta(seconds=span(text))).isoformat()
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise _refused(
            text, f"is not a time; write 2026-01-31T12:00:00Z, or a duration before now: {_EXAMPLES}"
        ) from None


def _refused(text: str, why: str) -> argparse.ArgumentTypeError:
    from democrai_sandbox.cli.output import shortened  # noqa: PLC0415 - not needed for --help

    return argparse.ArgumentTypeError(f"{shortened(repr(text))} {why}")


def arguments(run: str, *items: Item, description: str = "") -> Item:
    """Return an item with the arguments of a command without verbs."""

    def add(parser: CommandParser) -> None:
        parser.description = description or parser.description
        _add_all(items, parser)
        parser.set_defaults(run=run)

    return add


def verbs(*each: Verb, shared: tuple[Item, ...] = ()) -> Item:
    """Return an item with the verbs of a command; each comes from ``verb``, and has the ``shared`` arguments last."""

    def add(parser: CommandParser) -> None:
        parsers = add_verbs(parser)
        for add_one in each:
            add_one(parsers, shared)

    return add


def verb(name: str, summary: str, description: str, run: str, *items: Item) -> Verb:
    """Return a verb, which runs ``module:function``; its parser is built on first use."""

    def add(parsers: Any, shared: tuple[Item, ...]) -> None:
        takes = partial(_add_all, (*items, *shared))
        parsers.add_parser(name, help=summary, description=description, takes=takes, run=run)

    return add


def argument(name: str, metavar: str | None, words: str, *others: str, **options: Any) -> Item:
    """Return an argument with its metavar and help; ``others`` are more names of an option."""
    return lambda parser: parser.add_argument(name, *others, metavar=metavar, help=words, **options)


def flag(name: str, words: str, *others: str, **options: Any) -> Item:
    """Return an option without a value."""
    options.setdefault("action", "store_true")
    return lambda parser: parser.add_argument(name, *others, help=words, **options)


def one_of(name: str, metavar: str, words: str, values: tuple[str, ...], **options: Any) -> Item:
    """Return an option with a few choices, which its help lists."""
    return argument(name, metavar, f"{words}: {', '.join(values)}", choices=values, **options)


def repeated(name: str, metavar: str, words: str, **options: Any) -> Item:
    """Return an option that may be repeated."""
    return argument(name, metavar, words, action="append", default=[], **options)


def either(*items: Item, required: bool = False) -> Item:
    """Return options that exclude each other."""
    return lambda parser: _add_all(items, parser.add_mutually_exclusive_group(required=required))


def defaults(**values: Any) -> Item:
    """Return values of options that are not arguments."""
    return lambda parser: parser.set_defaults(**values)


def _add_all(items: tuple[Item, ...], parser: Any) -> None:
    for add in items:
        add(parser)


URL_VARIABLE = "DEMOCRAI_URL"
TOKEN_VARIABLE = "DEMOCRAI_TOKEN"  # noqa: S105 - a name, not a secret
TOKEN_FILE = "cli.token"  # noqa: S105 - a name, not a secret
"""File in the state folder, written by ``admin token create --save``."""
SURFACES = ("action", "command", "task", "tool")
"""Functions of a module that can be called by name."""
_USUAL_LIMIT = 100

CONFIG = argument("--config", "FILE", "configuration file (default: DEMOCRAI_CONFIG_FILE)")
JSON = flag("--json", "print JSON instead of text")
YES = flag("--yes", "do not ask for confirmation; required without a terminal")
LOCAL = (CONFIG, JSON)
"""Options of a command that uses the configuration."""
NODE = (
    CONFIG,
    argument("--url", "URL", f"address of the node (default: {URL_VARIABLE}, then the configuration)"),
    argument(
        "--token-file",
        "FILE",
        f"file with a token (default: {TOKEN_VARIABLE}, then {TOKEN_FILE} in the state folder)",
    ),
    JSON,
)
"""Options of a command that asks a node."""
DATABASE = (
    CONFIG,
    argument(
        "--database",
        "URL",
        "database to use: sqlite:////path/to/file or postgresql://user@host/name, without a password",
    ),
    JSON,
)
"""Options of a command that opens the database."""
LIMIT = argument(
    "-n", "N", f"maximum number of rows (default: {_USUAL_LIMIT})", "--limit", type=a_number, default=_USUAL_LIMIT
)
_FILTERS = MappingProxyType(
    {
        "subject": argument("--subject", "KIND:NAME", "of this subject, such as module:reports", type=a_subject),
        "kind": one_of("--kind", "KIND", "of subjects of this kind", SUBJECT_KINDS),
        "resource_type": one_of("--resource-type", "TYPE", "about this type of resource", RESOURCE_TYPES),
        "operation": one_of("--operation", "OPERATION", "about this operation", OPERATIONS),
        "user": argument("--user", "ID", "requested for this user", type=a_text),
        "organization": argument("--organization", "ID", "requested for this organization", type=a_text),
        "session": argument("--session", "KEY", "of this session", type=a_text),
        "text": argument("--text", "TEXT", "target contains this text, ignoring case", type=a_text),
        "newer_than": argument("--newer-than", "TIME", "first seen at this time or later; 2h means ago", type=moment),
        "older_than": argument("--older-than", "TIME", "first seen before this time; 2h means ago", type=moment),
        "action": one_of("--action", "ACTION", "with this action; may be repeated", AUDIT_ACTIONS, action="append"),
        "actor": argument("--actor", "NAME", "by this user", type=a_text),
        "request": argument("--request", "ID", "about this request", type=an_id),
        "since": argument("--since", "TIME", "at this time or later; 2h means ago", type=moment),
        "until": argument("--until", "TIME", "before this time; 2h means ago", type=moment),
    }
)


def filters(*names: str) -> Item:
    """Return the named filter options."""

    def add(parser: CommandParser) -> None:
        _add_all(tuple(_FILTERS[name] for name in names), parser.add_argument_group("filters"))
        parser.set_defaults(filters=names)

    return add
