"""Command of the helper, and the protocol of its socket: one JSON object per line, one request, one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

VERSION = 1
LONGEST_LINE = 64 * 1024
LONGEST_SOCKET_PATH = 107
"""Size of the path in a unix socket address, without the terminating zero."""
_LONGEST_TEXT = 2000

# fmt: off
Reason = Literal[
    "bad_arguments", "bad_request", "busy", "cgroup_read_only", "confined", "failed", "foreign_uid", "gone",
    "no_cgroup2", "no_ip6tables", "no_iptables", "not_a_descendant", "not_privileged", "not_the_parent",
    "other_network", "policy_invalid", "policy_missing", "policy_mode", "policy_owner", "policy_too_large",
    "policy_torn", "policy_type", "socket_path_too_long", "socket_refused", "socket_taken", "table_failed",
    "unknown_action",
]
# fmt: on


def helper_command() -> tuple[str, ...]:
    """Return the fixed start of the helper's command line, which a ``sudo`` rule permits."""
    # The interpreter itself instead of the link in a virtual environment, which is not needed.
    interpreter = getattr(sys, "_base_executable", "") or sys.executable
    return (str(Path(interpreter).resolve()), "-I", "-S", "-B", str(Path(__file__).resolve().with_name("__main__.py")))


class RequestRefused(Exception):  # noqa: N818 - part of the protocol, with a reason
    """Request that the helper refused or could not complete; ``reason`` is machine-readable."""

    def __init__(self, reason: Reason, error: str, fix: str = "") -> None:
        super().__init__(reason, error, fix)
        self.reason: Reason = reason
        self.error = error
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.reason}: {self.error}" + (f"; to fix it: {self.fix}" if self.fix else "")

    def again(self) -> RequestRefused:
        """Return a copy: a raised exception keeps its traceback and context."""
        return RequestRefused(self.reason, self.error, self.fix)

    def answer(self) -> dict[str, Any]:
        """Return the answer for the client."""
        return {
            "ok": False,
            "reason": self.reason,
            "error": self.error[:_LONGEST_TEXT],
            "fix": self.fix[:_LONGEST_TEXT],
        }


class HelperRequest(NamedTuple):
    """Request of a client."""

    action: str
    fields: dict[str, Any]


def parse_request(line: bytes) -> HelperRequest:
    """Parse and validate one line; raise ``bad_request`` for malformed input."""
    if len(line) > LONGEST_LINE:
        raise _bad(f"the request is longer than {LONGEST_LINE} bytes")
    try:
        fields = strict_json(line)
    except ValueError as error:
        raise _bad(f"the request is not one line of valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise _bad("the request is not a JSON object")
    version = fields.pop("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise _bad(f"this helper uses protocol version {VERSION}", "use the application and the helper of one release")
    action = fields.pop("action", None)
    if not isinstance(action, str) or not action:
        raise _bad("the request has no action")
    return HelperRequest(action, fields)


def strict_json(data: bytes) -> Any:
    """Parse strict JSON: UTF-8, without JavaScript constants and duplicate keys. Raise ``ValueError`` otherwise."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the nesting is too deep") from None


def encode_answer(answer: dict[str, Any]) -> bytes:
    """Return the line to send, with lists shortened to the client's limit."""
    answer = dict(answer)
    while len(line := _line(answer)) > LONGEST_LINE:
        name = max((key for key in answer if key != "shortened"), key=lambda key: len(_line(answer[key])))
        value = answer[name]
        answer[name] = value[: len(value) // 2] if isinstance(value, list) and len(value) > 1 else None
        answer["shortened"] = list(dict.fromkeys((*answer.get("shortened", ()), name)))
    return line


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _bad(error: str, fix: str = "send one JSON object on one line, with an action") -> RequestRefused:
    return RequestRefused("bad_request", error, fix)
