"""``democrai-sandbox requests``, ``approvals``, ``audit``: decide on requests, revoke decisions, read the audit log."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from democrai_sandbox.access.values import DecisionScope, RequestState
from democrai_sandbox.errors import CommandMisused, CommandRefused, DecisionConflict, NodeRefused, SandboxError

from . import connection, files
from .connection import below, database_url, given_filters, list_items, open_database, show_items
from .errors import status_of
from .files import open_text, write_whole
from .output import Exit, Mood, ago, plural, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .connection import NodeClient
    from .output import CommandOutput

_MOST_AT_ONCE = 500
_MOST_REPEATED = 20
_ANSWER_MOODS: Mapping[str, Mood] = MappingProxyType({"yes": Mood.OK, "no": Mood.BAD})


def cells(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return subject, operation and target of a document with an ``access``."""
    access = item["access"]
    return access["subject"], access["operation"], access["target"]


def access_words(item: Mapping[str, Any]) -> str:
    """Return the same as one printable text."""
    return visible(" ".join(cells(item)))


def run_approve(options: argparse.Namespace, output: CommandOutput) -> int:
    """Approve."""
    if options.session:
        return _decide(options, output, "session", "approve until the session ends")
    words = f"approve for {_length(options.lifetime)}" if options.lifetime else "approve permanently"
    return _decide(options, output, "permanent", words)


def run_deny(options: argparse.Namespace, output: CommandOutput) -> int:
    """Deny."""
    return _decide(options, output, "deny", "deny")


def _decide(options: argparse.Namespace, output: CommandOutput, act: str, words: str) -> int:
    ids = list(dict.fromkeys(options.ids))
    if len(ids) > 1 and (options.target or getattr(options, "lifetime", None)):
        raise CommandMisused("--for and --target accept one request only", fix="decide the requests one by one")
    if len(ids) > _MOST_AT_ONCE:
        raise CommandMisused(f"at most {_MOST_AT_ONCE} requests can be decided at once", fix="split the list")
    decide = _decide_one if len(ids) == 1 else _decide_many
    items = decide(connection.node(options), options, ids, act, words)
    schema = f"requests.{'deny' if act == 'deny' else 'approve'}/1"
    return _report_decisions(output, schema, items, is_dry=options.dry_run)


def _decide_one(
    node: NodeClient, options: argparse.Namespace, ids: list[str], act: str, words: str
) -> list[dict[str, Any]]:
    """Decide one request, with all options, and show its access in the question."""
    path = f"/requests{below(*ids)}"
    found = node.get(path)
    request = found["request"]
    _must_wait(request)
    what = access_words(request)
    about = f", as {visible(options.target)}" if options.target else ""
    item = {"id": ids[0], "done": True, "told": f"{what}: would {words}{about}", "code": "", "decision": None}
    if options.dry_run:
        return [item]
    files.confirm(f"{what}\n{words}{about}?", yes=options.yes)
    version = _version(found, options.target)
    order = {"target": options.target, "reason": options.reason, "expected_version": version}
    if act == "permanent":
        order["lifetime_seconds"] = options.lifetime
    verb = {"session": "approve-session", "permanent": "approve", "deny": "deny"}[act]
    given = {name: value for name, value in order.items() if value not in (None, "")}
    outcome = node.post(f"{path}/{verb}", given)
    if outcome["decision"] is None:
        raise CommandRefused(f"nothing was stored: {outcome['skipped']}", fix="use --permanent or --for")
    return [item | {"told": _report_decision(outcome["decision"]), "decision": outcome["decision"]}]


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


def _report_decision(decision: Mapping[str, Any]) -> str:
    """Report the new decision."""
    until = f" until {when(decision['expires_at'])}" if decision["expires_at"] else ""
    return f"{access_words(decision)}: {decision['scope']} {decision['effect']} {decision['id']}{until}"


def _length(seconds: int) -> str:
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            return f"{seconds // size} {name}{'s' if seconds > size else ''}"
    return f"{seconds} seconds"


def _decide_many(
    node: NodeClient, options: argparse.Namespace, ids: list[str], act: str, words: str
) -> list[dict[str, Any]]:
    """Decide several requests separately; a failed one does not stop the others."""
    order: dict[str, Any] = {"request_ids": ids, "act": act, "reason": options.reason or ""}
    if options.dry_run or not options.yes:
        found: list[dict[str, Any]] = node.post("/requests/decide", {**order, "dry_run": True})["items"]
        if options.dry_run:
            return found
        order["expected_versions"] = {one["id"]: one["version"] for one in found if one.get("version") is not None}
        listed = shortened_list([item["told"] for item in found])
        files.confirm(f"{listed}\n{words}: {len(ids)} requests?", yes=options.yes)
    decided: list[dict[str, Any]] = node.post("/requests/decide", order)["items"]
    return [item | {"told": _report_decision(item["decision"])} if item["decision"] else item for item in decided]


def shortened_list(texts: Sequence[str]) -> str:
    """Return the first lines of a list, and the number of the others."""
    shown = [f"  {visible(text)}" for text in texts[:_MOST_REPEATED]]
    return "\n".join([*shown, f"  and {len(texts) - _MOST_REPEATED} more"] if len(texts) > _MOST_REPEATED else shown)


def _report_decisions(output: CommandOutput, schema: str, items: list[dict[str, Any]], *, is_dry: bool) -> int:
    """Report the result of each request."""
    if output.data(schema, {"dry_run": is_dry, "items": items}):
        return _worst_status(items)
    if len(items) == 1:
        output.line(visible(items[0]["told"]))
    else:
        head = "RESULT (NOT APPLIED)" if is_dry else "DONE"
        rows = [(one["id"], "yes" if one["done"] else "no", one["told"]) for one in items]
        output.table(("ID", head, "WHAT"), rows, _ANSWER_MOODS)
    return _worst_status(items)


def _worst_status(items: Sequence[Mapping[str, Any]]) -> Exit:
    failed = [item for item in items if not item["done"]]
    if any(item["code"] == DecisionConflict.code for item in failed):
        return Exit.CONFLICT
    return Exit.FAILED if failed else Exit.OK


_STATE_MOODS: Mapping[str, Mood] = MappingProxyType(
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


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List requests, or groups of them."""
    node = connection.node(options)
    heads: tuple[str, ...]
    row: Callable[[dict[str, Any]], tuple[object, ...]]
    if options.grouped:
        if options.state and options.state != [RequestState.PENDING.value]:
            raise CommandMisused("only pending requests can be grouped", fix="remove --state or --grouped")
        schema, found = "requests.list-grouped/1", list_items(node, "/requests/queue", options)
        heads, row = ("NEWEST ID", "RISK", "SUBJECT", "OPERATION", "TARGET", "USERS", "TIMES", "SEEN"), _group_row
    else:
        schema, found = "requests.list/1", list_items(node, "/requests", options, state=options.state)
        state = ("state",) if options.state else ()
        heads = ("ID", *map(str.upper, state), "SUBJECT", "OPERATION", "TARGET", "USER", "TIMES", "SEEN")
        row = partial(_request_row, state)
    show_items(output, schema, found, heads, row, moods=_STATE_MOODS, empty="no request was found")
    return Exit.OK


def _request_row(more: Iterable[str], one: Mapping[str, Any]) -> tuple[object, ...]:
    user = one["origin"]["user_id"] or "-"
    return (one["id"], *(one[name] for name in more), *cells(one), user, one["count"], ago(one["last_seen"]))


def _group_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    return (one["newest_id"], one["risk"], *cells(one), one["user_count"], one["count"], ago(one["last_seen"]))


def run_show(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show one request."""
    found = connection.node(options).get(f"/requests{below(options.id)}")
    if output.data("requests.show/1", found):
        return Exit.OK
    for name, value in _facts(found):
        output.line(f"{name:<11} {visible(value)}", _STATE_MOODS.get(value))
    _show_choices(output, found["choices"])
    if found["similar"]:
        _head(output, "similar decisions:")
        similar = [(one["id"], one["effect"], one["scope"], *cells(one)) for one in found["similar"]]
        output.table(("ID", "EFFECT", "SCOPE", "SUBJECT", "OPERATION", "TARGET"), similar)
    _head(output, "history:")
    history = [(when(one["at"]), one["action"], one["actor"]) for one in found["history"]]
    output.table(("AT", "ACTION", "BY"), history, _STATE_MOODS)
    return Exit.OK


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the non-empty facts of a request, with their labels."""
    request, resume = found["request"], found["resume"]
    origin, access = request["origin"], request["access"]
    raw = request["raw_target"]
    times = "once" if request["count"] == 1 else f"{request['count']} times"
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
        ("asked", f"{times}, first {when(request['first_seen'])}, last {when(request['last_seen'])}"),
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


def _head(output: CommandOutput, text: str) -> None:
    output.line()
    output.line(text, Mood.STRONG)


def _show_choices(output: CommandOutput, choices: Sequence[Mapping[str, Any]]) -> None:
    """List the possible targets of a decision; the first is the requested one."""
    _head(output, "possible values of --target:")
    for one in choices:
        output.line(f"  {visible(one['target'])}")
        output.line(f"    {visible(one['words'])}", Mood.FAINT)
        if one.get("risk"):
            output.line(f"    risk {_risk(one)}", _STATE_MOODS.get(one["risk"]))
        for warning in one["warnings"]:
            output.line(f"    warning: {visible(warning)}", Mood.WARNING)


_GONE = (404, 409)


def run_list_decisions(options: argparse.Namespace, output: CommandOutput) -> int:
    """List approvals or denials."""
    node, path = connection.node(options), _decisions_path(options)
    found = list_items(node, path, options, state=options.state, scope=options.scope)
    heads = ("ID", "SCOPE", "SUBJECT", "OPERATION", "TARGET", "BY", "MADE", "USED", "ENDS")
    empty = f"no {'denial' if options.denials else 'approval'} was found"
    show_items(output, "approvals.list/1", found, heads, _decision_row, empty=empty)
    return Exit.OK


def _decisions_path(options: argparse.Namespace) -> str:
    return "/denials" if options.denials else "/approvals"


def _decision_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    used = ago(one["last_used"]) if one["last_used"] else "never"
    return (one["id"], one["scope"], *cells(one), one["created_by"], ago(one["created_at"]), used, _end(one))


def _end(decision: Mapping[str, Any]) -> str:
    if decision["ended_at"]:
        return f"ended {when(decision['ended_at'])} by {decision['ended_by']}"
    if decision["expires_at"]:
        return when(decision["expires_at"])
    return "when the session ends" if decision["scope"] == DecisionScope.SESSION.value else "when revoked"


def run_revoke(options: argparse.Namespace, output: CommandOutput) -> int:
    """Revoke decisions, by id or by filters."""
    given = {**given_filters(options), "scope": options.scope}
    narrowed = {name: value for name, value in given.items() if value}
    if bool(options.ids) == bool(narrowed):
        what = "ids and filters cannot be combined" if options.ids else "nothing to revoke was given"
        raise CommandMisused(what, fix="give ids, or filters such as --subject module:reports")
    node = connection.node(options)
    if options.ids:
        found = [node.get(f"/decisions{below(one)}") for one in dict.fromkeys(options.ids)]
    else:
        found = list(node.items(_decisions_path(options), state="live", **narrowed))
    if not found:
        output.say("nothing to revoke was found")
    elif not options.dry_run:
        listed = shortened_list([access_words(one) for one in found])
        files.confirm(f"{listed}\n{_revoke_question(found)}", yes=options.yes)
    items: list[dict[str, Any]] = []
    try:
        items.extend(_revoke_one(node, one, options) for one in found)
    except (SandboxError, KeyboardInterrupt):  # completed revocations are not undone
        if items:
            _report_revocations(output, items, is_dry=options.dry_run)
        raise
    return _report_revocations(output, items, is_dry=options.dry_run)


def _revoke_question(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the question, such as ``revoke 3 permanent approvals of module:reports?``."""
    kinds = Counter((one["scope"], one["effect"]) for one in found)
    counted = " and ".join(plural(number, f"{scope} {effect}") for (scope, effect), number in sorted(kinds.items()))
    subjects = sorted({one["access"]["subject"] for one in found})
    of = visible(subjects[0]) if len(subjects) == 1 else f"{len(subjects)} subjects"
    return f"revoke {counted} of {of}?"


def _revoke_one(node: NodeClient, decision: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Revoke one decision, unless it is a dry run; a decision that already ended does not stop the others."""
    words = access_words(decision)
    if options.dry_run and decision["ended_at"]:
        return _item(decision, f"{words} has already ended: {_end(decision)}", DecisionConflict.code)
    if options.dry_run:
        return _item(decision, f"{words}: would be revoked")
    try:
        node.post(f"/decisions{below(decision['id'])}/revoke", {"reason": options.reason or ""})
    except NodeRefused as error:
        if error.status not in _GONE:
            raise
        return _item(decision, str(error.answer.get("detail")), str(error.answer.get("code")))
    return _item(decision, f"{words}: revoked")


def _item(decision: Mapping[str, Any], told: str, code: str = "") -> dict[str, Any]:
    return {"id": decision["id"], "done": not code, "told": told, "code": code}


def _report_revocations(output: CommandOutput, items: list[dict[str, Any]], *, is_dry: bool) -> int:
    if not output.data("approvals.revoke/1", {"dry_run": is_dry, "items": items}):
        for one in items:
            output.line(f"{one['id']}  {visible(one['told'])}", None if one["done"] else Mood.BAD)
    return _worst_status(items)


_SECONDS = 1.0
"""Seconds between two polls."""


def run_tail(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show the last records, and follow new ones on request."""
    node = connection.node(options)
    query = given_filters(options)
    found = list(node.items("/audit", most=options.n, **query))
    last = _show_records(output, found)
    if options.follow:
        _follow(options, output, node, last)
    if not found:
        output.say("no record was found")
    return Exit.OK


def _follow(options: argparse.Namespace, output: CommandOutput, node: NodeClient, last: int) -> NoReturn:
    """Follow the records after the given one. Records made while the node is unreachable are shown afterwards."""
    query, is_away = given_filters(options), False
    while True:
        time.sleep(_SECONDS)
        try:
            if is_away:
                node = connection.node(options)  # its address may have changed
            found = list(_since(node, last, query))  # completely, or it is requested again
        except SandboxError as error:
            if status_of(error) is not Exit.UNREACHABLE:
                raise
            if not is_away:
                output.say(f"{visible(str(error))}; retrying until it answers")
            is_away = True
            continue
        if is_away:
            output.say(f"{visible(node.url)} answers again")
        is_away = False
        last = _show_records(output, found) or last


def _since(node: NodeClient, last: int, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return takewhile(lambda record: record["sequence"] > last, node.items("/audit", **query))


def _show_records(output: CommandOutput, newest_first: list[dict[str, Any]]) -> int:
    """Show records in order; return the number of the last."""
    for record in reversed(newest_first):
        if output.is_json:
            output.record({"schema": "democrai-sandbox/audit.tail/1", **record})
        else:
            output.line(_line(record))
    output.flush()
    return int(newest_first[0]["sequence"]) if newest_first else 0


def _line(record: Mapping[str, Any]) -> str:
    access, after = record["access"], record["after"]
    reason, person, text = after.get("reason"), after.get("person"), after.get("text")
    parts = [
        f"{record['sequence']:>6}  {when(record['at'])}  {record['action']:<20}",
        f"by {record['actor']}" if record["actor"] else "",
        f"{access['subject']} {access['operation']} {access['target']}" if access else "",
        f"user {person}" if person else "",
        f"request {record['request_id']}" if record["request_id"] else "",
        str(text) if text else "",
        f"reason: {reason}" if reason else "",
    ]
    return visible("  ".join(filter(None, parts)))


_TELL_EVERY = 500


def run_export(options: argparse.Namespace, output: CommandOutput) -> int:
    """Export the audit log."""
    if options.json and not options.output and options.format != "jsonl":
        raise CommandMisused("--json and --format csv cannot be combined", fix="remove one of them, or add --output")
    node = connection.node(options)
    lines = _with_progress(node.lines("/audit/export", format=options.format, **given_filters(options)), output)
    if not options.output:
        for line in lines:
            output.exactly(line)
        return Exit.OK
    files.confirm_replacing(options.output, yes=options.yes)
    with write_whole(options.output, fix="name another file with --output") as file:
        facts = _FACTS[options.format](_copied(lines, file))
    end = f"; the last one is {facts['last_sequence']} with hash {facts['last_hash']}" if facts.get("last_hash") else ""
    if not output.data("audit.export/1", {"file": options.output, "format": options.format, **facts}):
        output.say(visible(f"{facts['records']} records written to {options.output}{end}"))
    return Exit.OK


def _with_progress(lines: Iterator[bytes], output: CommandOutput) -> Iterator[bytes]:
    """Pass lines on, and show their number unless they go to the same terminal."""
    for count, line in enumerate(lines, 1):
        if count % _TELL_EVERY == 0 and not output.is_watched:
            output.progress(f"{count} lines")
        yield line
    output.progress("")


def _copied(lines: Iterator[bytes], file: IO[bytes]) -> Iterator[str]:
    for line in lines:
        file.write(line)
        yield line.decode("utf-8", "replace")


def _facts_of_jsonl(lines: Iterator[str]) -> dict[str, Any]:
    """Return the number of records, and the last hash, by which a later check detects a truncated file."""
    count, last = 0, "{}"
    for count, last in enumerate(lines, 1):  # noqa: B007 - the last ones count
        pass
    found = json.loads(last)
    return {"records": count, "last_sequence": found.get("sequence"), "last_hash": found.get("hash")}


def _facts_of_csv(lines: Iterator[str]) -> dict[str, Any]:
    return {"records": max(0, sum(1 for _ in csv.reader(lines)) - 1)}  # without the header line


_FACTS = MappingProxyType({"jsonl": _facts_of_jsonl, "csv": _facts_of_csv})


_VERIFY_TIMEOUT = 3600.0
"""Timeout in seconds; the duration grows with the audit log."""


def run_verify(options: argparse.Namespace, output: CommandOutput) -> int:
    """Verify the hash chain."""
    if options.export or options.database is not None:
        report = _verified_here(options)
    else:
        node = connection.node(options)
        node.patience = _VERIFY_TIMEOUT
        output.progress("the node verifies every record")
        report = node.get("/audit/verify")
        output.progress("")
    text = f"{report['count']} records, the hash chain is valid"
    if not report["ok"]:
        text = f"the hash chain is broken at record {report['first_bad']}: {visible(report['what'])}"
    if not output.data("audit.verify/1", report):
        output.line(text, Mood.OK if report["ok"] else Mood.BAD)
    return Exit.OK if report["ok"] else Exit.FAILED


def _verified_here(options: argparse.Namespace) -> dict[str, Any]:
    """Verify an export or a database without a node."""
    from democrai_sandbox.access.audit import verify_export, verify_store  # noqa: PLC0415 - takes its time

    if options.export:
        with open_text(options.export, fix="name a file written by audit export") as lines:
            return asdict(verify_export(lines))
    options.database = options.database or None
    with open_database(database_url(options)) as store:
        return asdict(verify_store(store))
