"""``requests approve`` and ``requests deny``: confirm, decide and report."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.values import RequestState
from democrai_sandbox.errors import CommandMisused, CommandRefused, DecisionConflict

from . import asking, places
from .exits import Exit
from .node import below
from .output import Mood, visible
from .times import when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .node import Node
    from .output import Output

_MOST_AT_ONCE = 500
_MOST_REPEATED = 20
_MOODS: Mapping[str, Mood] = MappingProxyType({"yes": Mood.OK, "no": Mood.BAD})


def cells(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return subject, operation and target of a document with an ``access``."""
    access = item["access"]
    return access["subject"], access["operation"], access["target"]


def spoken(item: Mapping[str, Any]) -> str:
    """Return the same as one printable text."""
    return visible(" ".join(cells(item)))


def misused(what: str, fix: str) -> CommandMisused:
    """Return the error for arguments that contradict each other."""
    return CommandMisused(what, fix=fix)


def run_approve(options: argparse.Namespace, output: Output) -> int:
    """Approve."""
    if options.session:
        return _decided(options, output, "session", "approve until the session ends")
    words = f"approve for {_length(options.lifetime)}" if options.lifetime else "approve permanently"
    return _decided(options, output, "permanent", words)


def run_deny(options: argparse.Namespace, output: Output) -> int:
    """Deny."""
    return _decided(options, output, "deny", "deny")


def _decided(options: argparse.Namespace, output: Output, act: str, words: str) -> int:
    ids = list(dict.fromkeys(options.ids))
    only_one = options.target or getattr(options, "lifetime", None)
    if len(ids) > 1 and only_one:
        raise misused("--for and --target accept one request only", "decide the requests one by one")
    if len(ids) > _MOST_AT_ONCE:
        raise misused(f"at most {_MOST_AT_ONCE} requests can be decided at once", "split the list")
    node = places.node(options)
    decide = _one if len(ids) == 1 else _many
    items = decide(node, options, ids, act, words)
    return _told(output, f"requests.{'deny' if act == 'deny' else 'approve'}/1", items, is_dry=options.dry_run)


# ---- one request -----------------------------------------------------------------------------------------------------


def _one(node: Node, options: argparse.Namespace, ids: list[str], act: str, words: str) -> list[dict[str, Any]]:
    """Decide one request, with all options, and show its access in the question."""
    path = f"/requests{below(*ids)}"
    found = node.get(path)
    request = found["request"]
    _must_wait(request)
    what = spoken(request)
    about = f", as {visible(options.target)}" if options.target else ""
    item = {"id": ids[0], "done": True, "told": f"{what}: would {words}{about}", "code": "", "decision": None}
    if options.dry_run:
        return [item]
    asking.confirm(f"{what}\n{words}{about}?", yes=options.yes)
    version = _version(found, options.target)
    order = {"target": options.target, "reason": options.reason, "expected_version": version}
    if act == "permanent":
        order["lifetime_seconds"] = options.lifetime
    verb = {"session": "approve-session", "permanent": "approve", "deny": "deny"}[act]
    given = {name: value for name, value in order.items() if value not in (None, "")}
    outcome = node.post(f"{path}/{verb}", given)
    if outcome["decision"] is None:
        raise CommandRefused(f"nothing was stored: {outcome['skipped']}", fix="use --permanent or --for")
    return [item | {"told": _made(outcome["decision"]), "decision": outcome["decision"]}]


def _version(found: Mapping[str, Any], target: str | None) -> int | None:
    """Return the shown version, or None for a target that is not one of the choices."""
    return next((one.get("version") for one in found["choices"] if target in (None, one["target"])), None)


def _must_wait(request: Mapping[str, Any]) -> None:
    """Refuse an answered request, with the text of a node."""
    state = request["state"]
    if state == RequestState.AGED_OUT.value:
        raise DecisionConflict(f"request {request['id']} expired before a decision")
    if state != RequestState.PENDING.value:
        by = visible(request["ended_by"] or request["decided_by"])
        at = when(request["ended_at"] or request["decided_at"])
        raise DecisionConflict(f"request {request['id']} was {state.replace('_', ' ')} by {by} at {at}")


def _made(decision: Mapping[str, Any]) -> str:
    """Report the new decision."""
    until = f" until {when(decision['expires_at'])}" if decision["expires_at"] else ""
    return f"{spoken(decision)}: {decision['scope']} {decision['effect']} {decision['id']}{until}"


def _length(seconds: int) -> str:
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {name}{'s' if seconds > size else ''}"
    return f"{seconds} seconds"


# ---- many ------------------------------------------------------------------------------------------------------------


def _many(node: Node, options: argparse.Namespace, ids: list[str], act: str, words: str) -> list[dict[str, Any]]:
    """Decide several requests separately; a failed one does not stop the others."""
    order: dict[str, Any] = {"request_ids": ids, "act": act, "reason": options.reason or ""}
    if options.dry_run or not options.yes:
        found: list[dict[str, Any]] = node.post("/requests/decide", {**order, "dry_run": True})["items"]
        if options.dry_run:
            return found
        order["expected_versions"] = {one["id"]: one["version"] for one in found if one.get("version") is not None}
        asking.confirm(f"{repeated([item['told'] for item in found])}\n{words}: {len(ids)} requests?", yes=options.yes)
    decided: list[dict[str, Any]] = node.post("/requests/decide", order)["items"]
    return [item | {"told": _made(item["decision"])} if item["decision"] else item for item in decided]


def repeated(texts: Sequence[str]) -> str:
    """Return the first lines of a list, and the number of the others."""
    shown = [f"  {visible(text)}" for text in texts[:_MOST_REPEATED]]
    return "\n".join([*shown, f"  and {len(texts) - _MOST_REPEATED} more"] if len(texts) > _MOST_REPEATED else shown)


def _told(output: Output, schema: str, items: list[dict[str, Any]], *, is_dry: bool) -> int:
    """Report the result of each request; the exit status is that of the worst."""
    if output.is_json:
        output.data(schema, {"dry_run": is_dry, "items": items})
    elif len(items) == 1:
        output.line(visible(items[0]["told"]))
    else:
        head = "RESULT (NOT APPLIED)" if is_dry else "DONE"
        rows = [(one["id"], "yes" if one["done"] else "no", one["told"]) for one in items]
        output.table(("ID", head, "WHAT"), rows, _MOODS)
    failed = [item for item in items if not item["done"]]
    if any(item["code"] == DecisionConflict.code for item in failed):
        return Exit.CONFLICT
    return Exit.FAILED if failed else Exit.OK
