"""``democrai-sandbox explain``: explain an error line, a code or an access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import (
    CommandMisused,
    CommandRefused,
    ConfigInvalid,
    NodeRefused,
    NodeUnreachable,
    StateUnusable,
)
from democrai_sandbox.policy import Operation, ResourceType, Subject, chain_from_list

from . import places
from .exits import Exit
from .explained import show_access, show_entry, show_line

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.errors.reading import Reading
    from democrai_sandbox.host.explanations import Explanation

    from .output import Output

_STDIN = "-"
_MOST_READ = 1 << 20
_UNASKED = (CommandRefused, NodeUnreachable, NodeRefused, ConfigInvalid, StateUnusable)
"""Errors of asking a node; the line is explained without it."""
_NETWORK = frozenset({Operation.CONNECT, Operation.RECEIVE, Operation.SEND})


def run(options: argparse.Namespace, output: Output) -> int:
    """Explain the given line, code or access."""
    given = [name for name in ("line", "code", "subject") if getattr(options, name) is not None]
    if len(given) != 1:
        what = "nothing to explain" if not given else f"{' and '.join(given)} cannot be combined"
        raise CommandMisused(what, fix="give an error line, --code, or --subject with --operation and --target")
    if options.code is not None:
        return _code(options.code, output)
    return _line(options, output) if options.line is not None else _access(options, output)


# ---- codes and lines -------------------------------------------------------------------------------------------------


def _code(code: str, output: Output) -> int:
    from democrai_sandbox.errors.catalogue import entry_of  # noqa: PLC0415 - takes its time

    show_entry(output, entry_of(code))
    return Exit.OK


def _line(options: argparse.Namespace, output: Output) -> int:
    from democrai_sandbox.errors.reading import read_line  # noqa: PLC0415 - takes its time

    line = _read() if options.line == _STDIN else options.line
    reading = read_line(line)
    answer, unasked = _from_node(options, line, reading)
    show_line(output, reading, answer, unasked)
    return Exit.OK


def _read() -> str:
    with open(0, "rb", closefd=False) as stream:  # by number: sys.stdin can be None
        data = stream.read(_MOST_READ + 1)
    if len(data) > _MOST_READ:
        raise CommandMisused(
            f"more than {_MOST_READ} bytes", fix="pass only the end of the log, for example with tail -n 100"
        )
    return data.decode("utf-8", "backslashreplace")


def _from_node(options: argparse.Namespace, line: str, reading: Reading) -> tuple[dict[str, Any], str]:
    """Return the answer of the node about a line, and the reason if it was not asked."""
    if options.offline:
        return {}, "--offline"
    if reading.entry.is_ours and not (reading.resource_type and reading.target):
        return {}, "the line names no target"
    try:
        node = places.node(options)
        if not reading.entry.is_ours:
            return {"status": node.get("/status"), "url": node.url}, ""
        about = {"line": line, "user_id": options.user, "session_key": options.session}
        return {**node.post("/explain/line", about), "url": node.url}, ""
    except _UNASKED as error:
        return {}, str(error)


# ---- accesses --------------------------------------------------------------------------------------------------------


def _access(options: argparse.Namespace, output: Output) -> int:
    for name in ("operation", "target"):
        if getattr(options, name) is None:
            raise CommandMisused(f"--{name} is missing", fix="give --subject, --operation and --target")
    chain = [part for part in options.chain.replace("->", ",").replace(" ", "").split(",") if part]
    question = {
        "subject": options.subject,
        "resource_type": _resource_type(options),
        "operation": options.operation,
        "target": options.target,
        "chain": chain,
        "installing": options.install,
        "user_id": options.user,
        "session_key": options.session,
    }
    if options.manifest is not None:
        found = _told(_by_manifest(options.manifest, question))
        unasked = "--manifest: runtime paths, decisions and the kernel layer are not considered"
    else:
        node = places.node(options)
        found, unasked = {**node.post("/explain", question), "url": node.url}, ""
    show_access(output, found, unasked)
    return Exit.FAILED if found["verdict"] == "refused" else Exit.OK


def _resource_type(options: argparse.Namespace) -> str:
    if options.resource_type:
        return str(options.resource_type)
    if options.operation in _NETWORK:
        return ResourceType.NETWORK
    if options.operation == Operation.EXECUTE and not options.target.startswith("/"):
        return ResourceType.SYSTEM_DEPENDENCY
    return ResourceType.FILESYSTEM


def _by_manifest(file: str, asked: dict[str, Any]) -> Explanation:
    from democrai_sandbox.host.explanations import Question  # noqa: PLC0415 - takes its time
    from democrai_sandbox.host.manifest_answers import explain_by_manifest  # noqa: PLC0415 - the same

    question = Question(
        Subject.parse(asked["subject"]),
        asked["resource_type"],
        asked["operation"],
        asked["target"],
        ancestors=chain_from_list(asked["chain"], pointer="/chain"),
        installing=asked["installing"],
    )
    return explain_by_manifest(file, question)


def _told(found: Explanation) -> dict[str, Any]:
    """Return an explanation in the format of the API."""
    layers = [{"layer": one.layer, "answer": one.answer.value, "text": one.text} for one in found.layers]
    return {
        "verdict": found.verdict.value,
        "words": found.words,
        "layers": [{**layer, "decides": one.decides} for layer, one in zip(layers, found.layers, strict=True)],
        "hint": found.hint,
        "file": found.file,
        "kernel": "",
        "chain": [],
        "advice": found.hint.splitlines(),
    }
