"""``democrai-sandbox requests``: list, show and decide requests."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import RequestState

from . import deciding, places
from .exits import Exit
from .narrowing import listed, show_list
from .node import below
from .output import Mood, visible
from .times import ago, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .output import Output

_MOODS: Mapping[str, Mood] = MappingProxyType(
    {
        "pending": Mood.WARNING,
        "approved": Mood.OK,
        "approved_for_session": Mood.OK,
        "denied": Mood.BAD,
        "low": Mood.OK,
        "medium": Mood.WARNING,
        "high": Mood.BAD,
    }
)


# ---- list ------------------------------------------------------------------------------------------------------------


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List requests, or groups of them."""
    node = places.node(options)
    if options.grouped:
        if options.state and options.state != [RequestState.PENDING.value]:
            raise deciding.misused("only pending requests can be grouped", "remove --state or --grouped")
        found = listed(node, "/requests/queue", options)
        show_list(output, "requests.list-grouped/1", found, lambda items: _show_groups(output, items), _NONE)
    else:
        found = listed(node, "/requests", options, state=options.state)
        is_plain = not options.state
        show_list(output, "requests.list/1", found, lambda items: _show_all(output, items, is_plain=is_plain), _NONE)
    return Exit.OK


_NONE = "no request was found"


def _show_all(output: Output, items: Sequence[Mapping[str, Any]], *, is_plain: bool) -> None:
    heads = ["ID", "SUBJECT", "OPERATION", "TARGET", "USER", "TIMES", "SEEN"]
    rows = [[one["id"], *deciding.cells(one), _user(one), one["count"], ago(one["last_seen"])] for one in items]
    if not is_plain:
        heads.insert(1, "STATE")
        for row, one in zip(rows, items, strict=True):
            row.insert(1, one["state"])
    output.table(heads, rows, _MOODS)


def _user(request: Mapping[str, Any]) -> str:
    return str(request["origin"]["user_id"] or "-")


def _show_groups(output: Output, items: Sequence[Mapping[str, Any]]) -> None:
    output.table(
        ("NEWEST ID", "RISK", "SUBJECT", "OPERATION", "TARGET", "USERS", "TIMES", "SEEN"),
        [
            (
                one["newest_id"],
                one["risk"],
                *deciding.cells(one),
                one["user_count"],
                one["count"],
                ago(one["last_seen"]),
            )
            for one in items
        ],
        _MOODS,
    )


# ---- show ------------------------------------------------------------------------------------------------------------


def run_show(options: argparse.Namespace, output: Output) -> int:
    """Show one request."""
    found = places.node(options).get(f"/requests{below(options.id)}")
    if output.is_json:
        output.data("requests.show/1", found)
        return Exit.OK
    for name, value in _facts(found):
        output.line(f"{name:<11} {visible(value)}", _MOODS.get(value))
    _show_choices(output, found["choices"])
    if found["similar"]:
        _head(output, "similar decisions:")
        output.table(
            ("ID", "EFFECT", "SCOPE", "SUBJECT", "OPERATION", "TARGET"),
            [(one["id"], one["effect"], one["scope"], *deciding.cells(one)) for one in found["similar"]],
        )
    _head(output, "history:")
    output.table(
        ("AT", "ACTION", "BY"), [(when(one["at"]), one["action"], one["actor"]) for one in found["history"]], _MOODS
    )
    return Exit.OK


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the non-empty facts of a request, with their labels."""
    request, resume = found["request"], found["resume"]
    origin, access = request["origin"], request["access"]
    raw = request["raw_target"]
    facts = [
        ("request", request["id"]),
        ("state", request["state"]),
        ("subject", access["subject"]),
        ("chain", " -> ".join(request["chain"]) if len(request["chain"]) > 1 else ""),
        ("access", f"{access['operation']} {access['target']}"),
        ("requested", raw if raw != access["target"] else ""),
        ("resource", access["resource_type"]),
        ("risk", _risk(found)),
        ("user", origin["user_id"]),
        ("organization", origin["organization_id"]),
        ("session", origin["session_key"] + (" (ended)" if request["session_ended"] else "")),
        ("task", origin["task_id"]),
        (
            "asked",
            f"{_times(request['count'])}, first {when(request['first_seen'])}, last {when(request['last_seen'])}",
        ),
        ("resumes", request["resume_action"]),
        ("resumed", f"{resume['state']}: {resume['last_error']}".removesuffix(": ") if resume else ""),
        ("decided", f"{when(request['decided_at'])} by {request['decided_by']}" if request["decided_by"] else ""),
        ("reason", request["reason"]),
        ("ended", f"{when(request['ended_at'])} by {request['ended_by']}" if request["ended_at"] else ""),
    ]
    return [(name, str(value)) for name, value in facts if value]


def _risk(found: Mapping[str, Any]) -> str:
    """Return the risk level with its reasons, or nothing for a user who may not decide."""
    reasons = [reason["text"] for reason in found["risk_reasons"] if reason["level"] == found["risk"]]
    return f"{found['risk']}: {'; '.join(reasons)}" if reasons else ""


def _head(output: Output, text: str) -> None:
    output.line()
    output.line(text, Mood.STRONG)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _show_choices(output: Output, choices: Sequence[Mapping[str, Any]]) -> None:
    """List the possible targets of a decision; the first is the requested one."""
    _head(output, "possible values of --target:")
    for one in choices:
        output.line(f"  {visible(one['target'])}")
        output.line(f"    {visible(one['words'])}", Mood.FAINT)
        if one.get("risk"):
            output.line(f"    risk {_risk(one)}", _MOODS.get(one["risk"]))
        for warning in one["warnings"]:
            output.line(f"    warning: {visible(warning)}", Mood.WARNING)
