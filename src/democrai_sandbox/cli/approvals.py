"""``democrai-sandbox approvals``: list and revoke decisions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import Scope
from democrai_sandbox.errors import DecisionConflict, NodeRefused, SandboxError

from . import asking, places
from .deciding import cells, misused, repeated, spoken
from .exits import Exit
from .narrowing import given_filters, listed, show_list
from .node import below
from .output import Mood, visible
from .times import ago, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .node import Node
    from .output import Output

_GONE = (404, 409)


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List approvals or denials."""
    found = listed(places.node(options), _path(options), options, state=options.state, scope=options.scope)
    empty = f"no {'denial' if options.denials else 'approval'} was found"
    show_list(output, "approvals.list/1", found, lambda items: _show(output, items), empty)
    return Exit.OK


def _path(options: argparse.Namespace) -> str:
    return "/denials" if options.denials else "/approvals"


def _show(output: Output, items: Sequence[Mapping[str, Any]]) -> None:
    output.table(
        ("ID", "SCOPE", "SUBJECT", "OPERATION", "TARGET", "BY", "MADE", "USED", "ENDS"),
        [
            (one["id"], one["scope"], *cells(one), one["created_by"], ago(one["created_at"]), _used(one), _end(one))
            for one in items
        ],
    )


def _used(decision: Mapping[str, Any]) -> str:
    return ago(decision["last_used"]) if decision["last_used"] else "never"


def _end(decision: Mapping[str, Any]) -> str:
    if decision["ended_at"]:
        return f"ended {when(decision['ended_at'])} by {decision['ended_by']}"
    if decision["expires_at"]:
        return when(decision["expires_at"])
    return "when the session ends" if decision["scope"] == Scope.SESSION.value else "when revoked"


# ---- revoke ----------------------------------------------------------------------------------------------------------


def run_revoke(options: argparse.Namespace, output: Output) -> int:
    """Revoke decisions, by id or by filters."""
    narrowed = {name: value for name, value in given_filters(options).items() if value}
    if options.scope:
        narrowed["scope"] = options.scope
    if bool(options.ids) == bool(narrowed):
        what = "ids and filters cannot be combined" if options.ids else "nothing to revoke was given"
        raise misused(what, "give ids, or filters such as --subject module:reports")
    node = places.node(options)
    if options.ids:
        found = [node.get(f"/decisions{below(one)}") for one in dict.fromkeys(options.ids)]
    else:
        found = list(node.items(_path(options), state="live", **narrowed))
    if not found:
        output.say("nothing to revoke was found")
    elif not options.dry_run:
        asking.confirm(f"{repeated([spoken(one) for one in found])}\n{_question(found)}", yes=options.yes)
    items: list[dict[str, Any]] = []
    try:
        items.extend(_would(one) if options.dry_run else _revoked(node, one, options.reason or "") for one in found)
    except (SandboxError, KeyboardInterrupt):  # completed revocations are not undone
        if items:
            _told(output, items, is_dry=options.dry_run)
        raise
    return _told(output, items, is_dry=options.dry_run)


def _question(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the question, such as ``revoke 3 permanent approvals of module:reports?``."""
    kinds = Counter((one["scope"], one["effect"]) for one in found)
    counted = " and ".join(
        f"{number} {scope} {effect}{'s' if number > 1 else ''}" for (scope, effect), number in sorted(kinds.items())
    )
    subjects = sorted({one["access"]["subject"] for one in found})
    of = visible(subjects[0]) if len(subjects) == 1 else f"{len(subjects)} subjects"
    return f"revoke {counted} of {of}?"


def _would(decision: Mapping[str, Any]) -> dict[str, Any]:
    if decision["ended_at"]:
        return _item(decision, f"{spoken(decision)} has already ended: {_end(decision)}", DecisionConflict.code)
    return _item(decision, f"{spoken(decision)}: would be revoked")


def _revoked(node: Node, decision: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Revoke one decision; a decision that already ended does not stop the others."""
    try:
        node.post(f"/decisions{below(decision['id'])}/revoke", {"reason": reason})
    except NodeRefused as error:
        if error.status not in _GONE:
            raise
        return _item(decision, str(error.answer.get("detail")), str(error.answer.get("code")))
    return _item(decision, f"{spoken(decision)}: revoked")


def _item(decision: Mapping[str, Any], told: str, code: str = "") -> dict[str, Any]:
    return {"id": decision["id"], "done": not code, "told": told, "code": code}


def _told(output: Output, items: list[dict[str, Any]], *, is_dry: bool) -> int:
    if output.is_json:
        output.data("approvals.revoke/1", {"dry_run": is_dry, "items": items})
    else:
        for one in items:
            output.line(f"{one['id']}  {visible(one['told'])}", None if one["done"] else Mood.BAD)
    failed = [item for item in items if not item["done"]]
    if any(item["code"] == DecisionConflict.code for item in failed):
        return Exit.CONFLICT
    return Exit.FAILED if failed else Exit.OK
