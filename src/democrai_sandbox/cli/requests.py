"""``democrai-sandbox requests``: what extensions ask for, and saying yes or no to it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import RequestState

from . import asking, deciding, places
from .exits import Exit
from .narrowing import a_text, add_filters, add_limit, an_id, listed, one_of, show_list
from .node import below
from .output import Mood, visible
from .parsing import add_verbs
from .times import ago, span, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .output import Output

_FILTERS = (
    *("subject", "kind", "resource_type", "operation", "user", "organization", "session", "text"),
    *("newer_than", "older_than"),
)
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


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    _add_list(verbs.add_parser("list", help="what was asked for", description="List requests, those seen last first."))
    show = verbs.add_parser("show", help="one request", description="Show a request and what helps to decide it.")
    show.add_argument("id", metavar="ID", type=an_id, help="of the request")
    _finish(show, run_show)
    _add_approve(verbs.add_parser("approve", help="say yes", description=_APPROVE))
    _add_deny(verbs.add_parser("deny", help="say no", description=_DENY))


_APPROVE = "Approve requests: the extension may do what it asked for, on every node, until that ends or is revoked."
_DENY = "Deny requests: what was asked for stays closed, and is not asked for again, until somebody revokes that."


def _add_list(parser: argparse.ArgumentParser) -> None:
    words = "in this state, and may be repeated; pending if not given"
    parser.add_argument("--state", action="append", **one_of(RequestState, "STATE", words))
    parser.add_argument(
        "--grouped", action="store_true", help="one row for all who wait for the same, the riskiest first"
    )
    add_filters(parser, *_FILTERS)
    add_limit(parser)
    _finish(parser, run_list)


def _add_approve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="of a request")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--session", action="store_true", help="until the session of the request ends")
    scope.add_argument("--permanent", action="store_true", help="until somebody revokes it")
    scope.add_argument("--for", dest="lifetime", metavar="TIME", type=span, help="for so long, such as 2h or 7d")
    _add_verdict(parser, needs_reason=False)
    _finish(parser, deciding.run_approve)


def _add_deny(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="of a request")
    _add_verdict(parser, needs_reason=True)
    _finish(parser, deciding.run_deny)


def _add_verdict(parser: argparse.ArgumentParser, *, needs_reason: bool) -> None:
    parser.add_argument(
        "--target", metavar="TARGET", type=a_text, help="decide about this instead: it has to cover what was asked for"
    )
    parser.add_argument("--reason", metavar="TEXT", type=a_text, required=needs_reason, help="why; the audit keeps it")
    parser.add_argument("--dry-run", action="store_true", help="only say what would become of each")
    asking.add_yes(parser)


def _finish(parser: argparse.ArgumentParser, run: Any) -> None:
    places.add_node(parser)
    places.add_json(parser)
    parser.set_defaults(run=run)


# ---- list ------------------------------------------------------------------------------------------------------------


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List requests, or groups of them."""
    node = places.node(options)
    if options.grouped:
        if options.state and options.state != [RequestState.PENDING.value]:
            raise deciding.misused("only pending requests are grouped", "leave out --state or --grouped")
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
    """Return what is known about a request, by name; what is not there is left out."""
    request, resume = found["request"], found["resume"]
    origin, access = request["origin"], request["access"]
    raw = request["raw_target"]
    facts = [
        ("request", request["id"]),
        ("state", request["state"]),
        ("subject", access["subject"]),
        ("chain", " -> ".join(request["chain"]) if len(request["chain"]) > 1 else ""),
        ("wants to", f"{access['operation']} {access['target']}"),
        ("written as", raw if raw != access["target"] else ""),
        ("resource", access["resource_type"]),
        ("user", origin["user_id"]),
        ("organization", origin["organization_id"]),
        ("session", origin["session_key"] + (" (it has ended)" if request["session_ended"] else "")),
        ("task", origin["task_id"]),
        (
            "asked",
            f"{_times(request['count'])}, first {when(request['first_seen'])}, last {when(request['last_seen'])}",
        ),
        ("goes on by", request["resume_action"]),
        ("gone on", f"{resume['state']}: {resume['last_error']}".removesuffix(": ") if resume else ""),
        ("decided", f"{when(request['decided_at'])} by {request['decided_by']}" if request["decided_by"] else ""),
        ("reason", request["reason"]),
    ]
    return [(name, str(value)) for name, value in facts if value]


def _head(output: Output, text: str) -> None:
    output.line()
    output.line(text, Mood.STRONG)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _show_choices(output: Output, choices: Sequence[Mapping[str, Any]]) -> None:
    """Say what a decision could be about; the first is what was asked for."""
    _head(output, "targets to choose from, with --target:")
    for one in choices:
        output.line(f"  {visible(one['target'])}")
        output.line(f"    {visible(one['words'])}", Mood.FAINT)
        for warning in one["warnings"]:
            output.line(f"    careful: {visible(warning)}", Mood.WARNING)
