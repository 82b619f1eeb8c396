"""Filter options of lists, with their names in the API, and ``--limit``."""

from __future__ import annotations

from types import MappingProxyType

from .values import a_number, a_subject, a_text, an_id, moment
from .words import AUDIT_ACTIONS, OPERATIONS, RESOURCE_TYPES, SUBJECT_KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from democrai_sandbox.cli.parsing import Parser

_USUAL = 100


def one_of(values: tuple[str, ...], metavar: str, words: str) -> dict[str, Any]:
    """Return the options of an argument with a few choices, which its help lists."""
    return {"choices": values, "metavar": metavar, "help": f"{words}: {', '.join(values)}"}


_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
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


def add_filters(parser: Parser, *names: str) -> None:
    """Add the named filter options."""
    group = parser.add_argument_group("filters")
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", **_OPTIONS[name])
    parser.set_defaults(filters=names)


def add_limit(parser: Parser) -> None:
    """Add ``--limit``."""
    parser.add_argument(
        "-n", "--limit", metavar="N", type=a_number, default=_USUAL, help=f"maximum number of rows (default: {_USUAL})"
    )
