"""Options that many commands share: converters, configuration, node, database, filters, and the code to run."""

from __future__ import annotations

import argparse
import re
from types import MappingProxyType

from .choices import AUDIT_ACTIONS, OPERATIONS, RESOURCE_TYPES, SUBJECT_KINDS

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from democrai_sandbox.cli.parser import CommandParser


_MOST_ITEMS = 100_000
_HOUR_MILLISECONDS = 3_600_000
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


def a_number(text: str) -> int:
    """Return a positive number."""
    return _number(text, _MOST_ITEMS)


def milliseconds(text: str) -> int:
    """Return a duration in milliseconds, up to an hour."""
    return _number(text, _HOUR_MILLISECONDS)


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) <= most:
        raise _refused(text, f"is not a number from 1 to {most}")
    return int(text)


def positive_seconds(text: str) -> float:
    """Return a duration in seconds, greater than zero."""
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


URL_VARIABLE = "DEMOCRAI_URL"
TOKEN_VARIABLE = "DEMOCRAI_TOKEN"  # noqa: S105 - a name, not a secret
TOKEN_FILE = "cli.token"  # noqa: S105 - a name, not a secret
"""File in the state folder, written by ``admin token create --save``."""


def add_config(parser: CommandParser) -> None:
    """Add ``--config``."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: DEMOCRAI_CONFIG_FILE)")


def add_json(parser: CommandParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_yes(parser: CommandParser) -> None:
    """Add ``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")


def add_node(parser: CommandParser) -> None:
    """Add the options for the node and the token, and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--url", metavar="URL", help=f"address of the node (default: {URL_VARIABLE}, then the configuration)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with a token (default: {TOKEN_VARIABLE}, then {TOKEN_FILE} in the state folder)",
    )
    add_json(parser)


def add_database(parser: CommandParser) -> None:
    """Add the options for the database, and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--database",
        metavar="URL",
        help="database to use: sqlite:////path/to/file or postgresql://user@host/name, without a password",
    )
    add_json(parser)


_USUAL_LIMIT = 100


def one_of(values: tuple[str, ...], metavar: str, words: str) -> dict[str, Any]:
    """Return the options of an argument with a few choices, which its help lists."""
    return {"choices": values, "metavar": metavar, "help": f"{words}: {', '.join(values)}"}


_FILTER_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "subject": {"metavar": "KIND:NAME", "type": a_subject, "help": "of this subject, such as module:reports"},
        "kind": one_of(SUBJECT_KINDS, "KIND", "of subjects of this kind"),
        "resource_type": one_of(RESOURCE_TYPES, "TYPE", "about this type of resource"),
        "operation": one_of(OPERATIONS, "OPERATION", "about this operation"),
        "user": {"metavar": "ID", "type": a_text, "help": "requested for this user"},
        "organization": {"metavar": "ID", "type": a_text, "help": "requested for this organization"},
        "session": {"metavar": "KEY", "type": a_text, "help": "of this session"},
        "text": {"metavar": "TEXT", "type": a_text, "help": "target contains this text, ignoring case"},
        "newer_than": {"metavar": "TIME", "type": moment, "help": "first seen at this time or later; 2h means ago"},
        "older_than": {"metavar": "TIME", "type": moment, "help": "first seen before this time; 2h means ago"},
        "action": {"action": "append", **one_of(AUDIT_ACTIONS, "ACTION", "with this action; may be repeated")},
        "actor": {"metavar": "NAME", "type": a_text, "help": "by this user"},
        "request": {"metavar": "ID", "type": an_id, "help": "about this request"},
        "since": {"metavar": "TIME", "type": moment, "help": "at this time or later; 2h means ago"},
        "until": {"metavar": "TIME", "type": moment, "help": "before this time; 2h means ago"},
    }
)


def add_filters(parser: CommandParser, *names: str) -> None:
    """Add the named filter options."""
    group = parser.add_argument_group("filters")
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", **_FILTER_OPTIONS[name])
    parser.set_defaults(filters=names)


def add_limit(parser: CommandParser) -> None:
    """Add ``--limit``."""
    parser.add_argument(
        "-n",
        "--limit",
        metavar="N",
        type=a_number,
        default=_USUAL_LIMIT,
        help=f"maximum number of rows (default: {_USUAL_LIMIT})",
    )


SURFACES = ("action", "command", "task", "tool")
"""Functions of a module that can be called by name."""


def add_run_options(parser: CommandParser, *, seconds: float | None = None) -> None:
    """Add the options of every verb."""
    usual = "no limit" if seconds is None else f"{seconds:g}"
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=seconds,
        metavar="SECONDS",
        help=f"timeout (default: {usual})",
    )
    add_config(parser)
    add_json(parser)


def add_manifest(parser: CommandParser, otherwise: str) -> None:
    """Add ``--manifest``."""
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        help=f"a manifest, or a file with only access and allowed_imports; {otherwise}",
    )


def add_environment(parser: CommandParser) -> None:
    """Add the options for packages and environment variables."""
    parser.add_argument(
        "--environment", metavar="FOLDER", help="virtual environment with its packages (default: that of this command)"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass this variable, with its current or the given value; a few such as PATH are always passed",
    )


def add_script(parser: CommandParser) -> None:
    """Add the file and its arguments."""
    parser.add_argument("file", metavar="FILE", help="a file with Python code")
    parser.add_argument("arguments", nargs="...", metavar="ARGUMENT", help="arguments of the script")
    add_manifest(parser, "default: no access")
    add_environment(parser)


def add_call(parser: CommandParser, *, methods: bool) -> None:
    """Add the options for the called function of an extension."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the extension, with its manifest.json")
    if methods:
        parser.add_argument(
            "--method", metavar="NAME", help="the method to call; without it, the extension is only imported"
        )
    else:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--render", action="store_true", help="render its page")
        for surface in SURFACES:
            which.add_argument(f"--{surface}", metavar="NAME", help=f"the {surface} to call")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter: JSON such as 3 or [1, 2], otherwise text",
    )
    parser.add_argument("--params", metavar="JSON", help="all parameters as a JSON object")
    add_environment(parser)
