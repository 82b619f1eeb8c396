"""Rules as JSON text, for the environment of a child process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .problems import InvalidInputError
from .rules import AccessRule, parse_access
from .text import exact_str, shown

if TYPE_CHECKING:
    from collections.abc import Iterable


def rules_to_json(rules: Iterable[AccessRule]) -> str:
    """Return the rules as a JSON list in manifest form. The text is ASCII, also for paths that are not UTF-8."""
    return json.dumps([rule.to_dict() for rule in rules], ensure_ascii=True, separators=(",", ":"))


def rules_from_json(text: str, *, pointer: str = "") -> tuple[AccessRule, ...]:
    """Parse the output of ``rules_to_json``.

    Anything else is rejected and never treated as an empty list, because unreadable rules must not run.
    """
    exact = exact_str(text)
    if exact is None:
        raise InvalidInputError.of(f"expected a JSON text, got {shown(text)}", pointer=pointer)
    return parse_access(_decode(exact, pointer), base=None, pointer=pointer)


def _decode(text: str, pointer: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved(pointer) for problem in error.problems) from None
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        message = "the JSON is nested too deeply"
    except ValueError:
        message = "the JSON contains a number that is too long"
    raise InvalidInputError.of(message, pointer=pointer)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject an object with a duplicate key, because readers differ in the value they keep."""
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InvalidInputError.of(f"duplicate key {shown(repeated)}")
    return members


def _refuse_constant(name: str) -> object:
    raise InvalidInputError.of(f"{name} is not JSON")
