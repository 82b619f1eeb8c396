"""Options that narrow a list, with the names that the API has for them, and how much of it is shown."""

from __future__ import annotations

import argparse
import re
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.policy import InvalidInputError, Operation, ResourceType, Subject, SubjectKind

from .output import shortened
from .times import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import StrEnum

    from .node import Node
    from .output import Output

_MOST = 100_000
_USUAL = 100
_ID = re.compile(r"[0-9A-Za-z_-]{1,100}")
_LONG_TEXT = 500


def an_id(text: str) -> str:
    """Return an id as it was given; for ``type=`` of an argument."""
    if not _ID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is no id")
    return text


def a_text(text: str) -> str:
    """Return a text that can be sent; for ``type=`` of an argument."""
    if not text or len(text) > _LONG_TEXT or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is empty, too long, or has characters nobody sees")
    return text


def a_subject(text: str) -> str:
    """Return a subject as it was given; for ``type=`` of an argument."""
    try:
        Subject.parse(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def a_number(text: str) -> int:
    """Return how many; for ``type=`` of an argument."""
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) <= _MOST:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is not a number from 1 to {_MOST}")
    return int(text)


def one_of(kind: type[StrEnum], metavar: str, words: str) -> dict[str, Any]:
    """Return what an argument takes that is one of a few words, which its help lists."""
    values = tuple(one.value for one in kind)
    return {"choices": values, "metavar": metavar, "help": f"{words}: {', '.join(values)}"}


_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "subject": {"metavar": "KIND:NAME", "type": a_subject, "help": "of this subject, such as module:reports"},
        "kind": one_of(SubjectKind, "KIND", "of subjects of this kind"),
        "resource_type": one_of(ResourceType, "TYPE", "about this type of resource"),
        "operation": one_of(Operation, "OPERATION", "about this operation"),
        "user": {"metavar": "ID", "type": a_text, "help": "asked for on behalf of this user"},
        "organization": {"metavar": "ID", "type": a_text, "help": "asked for on behalf of this organization"},
        "session": {"metavar": "KEY", "type": a_text, "help": "of this session"},
        "text": {"metavar": "TEXT", "type": a_text, "help": "whose target contains this, whatever its case"},
        "newer_than": {"metavar": "TIME", "type": moment, "help": "first seen at this time or later; 2h means ago"},
        "older_than": {"metavar": "TIME", "type": moment, "help": "first seen before this time; 2h means ago"},
        "action": {"action": "append", **one_of(AuditAction, "ACTION", "about this, and may be repeated")},
        "actor": {"metavar": "NAME", "type": a_text, "help": "by this one"},
        "request": {"metavar": "ID", "type": an_id, "help": "about this request"},
        "since": {"metavar": "TIME", "type": moment, "help": "at this time or later; 2h means ago"},
        "until": {"metavar": "TIME", "type": moment, "help": "before this time; 2h means ago"},
    }
)


def add_filters(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options that narrow; one that is not given does not."""
    group = parser.add_argument_group("only those")
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", **_OPTIONS[name])
    parser.set_defaults(filters=names)


def given_filters(options: argparse.Namespace) -> dict[str, Any]:
    """Return what narrows, as the API takes it."""
    return {name: getattr(options, name) for name in options.filters}


def add_limit(parser: argparse.ArgumentParser, usual: int = _USUAL) -> None:
    """Add ``--limit``."""
    parser.add_argument(
        "-n", "--limit", metavar="N", type=a_number, default=usual, help=f"at most so many; {usual} if not given"
    )


def listed(node: Node, path: str, options: argparse.Namespace, **query: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return what a list of the API has, as far as it was asked for, and whether there is more."""
    found = list(islice(node.items(path, most=options.limit + 1, **given_filters(options), **query), options.limit + 1))
    return found[: options.limit], len(found) > options.limit


def show_list(
    output: Output,
    schema: str,
    found: tuple[list[dict[str, Any]], bool],
    show: Callable[[list[dict[str, Any]]], None],
    empty: str,
) -> None:
    """Say what was found, and whether that is all."""
    items, has_more = found
    if output.is_json:
        output.data(schema, {"items": items, "has_more": has_more})
        return
    if items:
        show(items)
    else:
        output.say(empty)
    if has_more:
        output.say(f"there are more than {len(items)}: --limit shows more, and filters narrow")
