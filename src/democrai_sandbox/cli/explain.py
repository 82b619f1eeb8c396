"""``democrai-sandbox explain``, ``status`` and ``doctor``: explain errors and accesses, and report the layers."""

from __future__ import annotations

import sys
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox import errors
from democrai_sandbox.policy import Operation, ResourceType, Subject, chain_from_list

from . import connection
from .connection import configuration
from .output import Exit, Mood, plural, visible, when
from .terminal import columns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from democrai_sandbox.errors.catalogue import ErrorEntry
    from democrai_sandbox.errors.error_line import ErrorLine
    from democrai_sandbox.host.explain.explanation import Explanation

    from .output import CommandOutput

_LAYER_MOODS: Mapping[str, Mood] = MappingProxyType(
    {"ok": Mood.OK, "degraded": Mood.WARNING, "off": Mood.FAINT, "unsupported": Mood.FAINT}
)


def show_layers(output: CommandOutput, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines of a report (``Line.as_dict()``), grouped by area, each with its fix."""
    wide = max((len(line["title"]) for line in lines), default=0)
    for area, found in groupby(lines, lambda line: line["area"]):
        output.line(visible(str(area)), Mood.STRONG)
        for line in found:
            _show_layer(output, line, wide)


def is_well(line: Mapping[str, Any]) -> bool:
    """Return whether a line needs no action; a control that is not enabled may be off."""
    return bool(line["state"] == "ok" or (not line["wanted"] and line["state"] != "degraded"))


def _conclude(output: CommandOutput, lines: Sequence[Mapping[str, Any]], well: str) -> None:
    """Write the titles of the lines that need an action, or a text if there are none."""
    ill = [visible(line["title"]) for line in lines if not is_well(line)]
    output.line(f"{plural(len(ill), 'problem')}: {', '.join(ill)}" if ill else well, Mood.BAD if ill else Mood.OK)


def _show_layer(output: CommandOutput, line: Mapping[str, Any], wide: int) -> None:
    state, well = line["state"], is_well(line)
    mood = _LAYER_MOODS[state] if well or state == "degraded" else Mood.BAD
    asked = "" if line["wanted"] or state == "ok" else " (not enabled)"
    painted = output.coloured(f"{visible(state):<11}", mood)
    output.line(f"  {painted}  {visible(line['title']):<{wide}}  {visible(line['summary'])}{asked}")
    if line["fix"] and state != "ok":
        output.line(f"  {'':11}  {'':{wide}}  fix: {visible(line['fix'])}")


def run_status(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show every layer of a node."""
    node = connection.node(options)
    found = node.get("/status")
    if not output.data("status.show/1", found):
        head = f"node {found['node']} at {node.url}, version {found['version']}, process {found['pid']}"
        output.line(visible(f"{head}, {when(found['at'])}"))
        show_layers(output, found["lines"])
        _conclude(output, found["lines"], "everything that the configuration enables works")
    return Exit.OK if found["ok"] else Exit.FAILED


def run_doctor(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run all checks and report them."""
    settings = configuration(options).settings
    from democrai_sandbox.host.doctor import examine  # noqa: PLC0415 - takes its time

    report = examine(settings, egress=options.egress, tell=lambda what: output.progress(f"checking {what}"))
    output.progress("")
    found = {name: value for name, value in report.as_dict().items() if name not in {"node", "pid"}}
    if not output.data("doctor.show/1", found):
        lines = [line.as_dict() for line in report.lines]
        show_layers(output, lines)
        if options.attempts:
            output.line("tried", Mood.STRONG)
        for attempt in report.attempts if options.attempts else ():
            mark = "stopped" if attempt.ok else "HOLE"
            text = f"  {mark:<11}  {attempt.where}: {attempt.act}: {attempt.outcome}"
            output.line(visible(text), None if attempt.ok else Mood.BAD)
        _conclude(output, lines, "everything that the configuration enables works here")
    return Exit.OK if report.is_well else Exit.FAILED


_LAYERS = ("landlock", "seccomp", "egress", "helper", "spawn")
_ANSWERS = {"allows": "allows", "denies": "denies", "silent": "-"}
_MOODS = {"allowed": Mood.OK, "denied": Mood.BAD, "refused": Mood.BAD}
_WIDE = 20
_HEAD = 11


def show_entry(output: CommandOutput, entry: ErrorEntry) -> None:
    """Show the help for a code."""
    if output.data("explain.code/1", _entry(entry)):
        return
    output.line(f"{entry.code}: {entry.title}", Mood.STRONG)
    _facts(output, {"layer": str(entry.layer), "shape": entry.shape, "class": ", ".join(entry.classes)})
    _texts(output, entry)
    for word in entry.words:
        _paragraph(output, f"{word.word}: {_plain(word.meaning)}; {_plain(word.fix)}", 2)
    output.line("example:")
    for line in entry.example.splitlines():
        output.line(f"  {line}")


def show_line(output: CommandOutput, reading: ErrorLine, answer: Mapping[str, Any], unasked: str) -> None:
    """Show the help for an error line, and the answer of the node."""
    entry = reading.entry
    told = {name: getattr(reading, name) for name in ("subject", "operation", "target", "request_id")}
    told["chain"] = list(reading.chain)
    asked = {"node": answer or None, "not_asked": unasked}
    if output.data("explain.line/1", {**_entry(entry), "told": {**told, "detail": reading.detail}, **asked}):
        return
    if entry.is_ours:
        output.line(f"{entry.code}: {entry.title}", Mood.STRONG)
    else:
        output.line(f"{entry.title}: not an error of democrai-sandbox, but the kernel layer can cause it", Mood.STRONG)
    _facts(output, {"layer": str(entry.layer), **told, "chain": " -> ".join(reading.chain), "detail": reading.detail})
    _texts(output, entry)
    if reading.word is not None:
        _paragraph(output, f"{reading.word.word}: {_plain(reading.word.meaning)}; {_plain(reading.word.fix)}", 0)
    _now(output, reading, answer, unasked)


def _now(output: CommandOutput, reading: ErrorLine, answer: Mapping[str, Any], unasked: str) -> None:
    if unasked:
        _would_be_declared(output, reading)
        output.say(f"no node was asked: {visible(unasked)}")
        return
    output.line()
    output.line(f"now, at {visible(str(answer['url']))}:", Mood.STRONG)
    if "status" in answer:
        lines = [line for line in answer["status"]["lines"] if line["name"].startswith(_LAYERS)]
        show_layers(output, lines)
        return
    for place, found in enumerate(answer["explanations"]):
        _explanation(output, found, is_first=not place)
    if answer["note"]:
        _paragraph(output, f"note: {visible(answer['note'])}", 0)
    if not answer["explanations"]:
        _would_be_declared(output, reading)


def _would_be_declared(output: CommandOutput, reading: ErrorLine) -> None:
    """Show the missing manifest entry, from the line alone."""
    from democrai_sandbox.errors.error_line import entry_for  # noqa: PLC0415 - takes its time

    if entry := entry_for(reading):
        output.line(f"{'entry:':<{_HEAD}}{visible(entry)}")


def _explanation(output: CommandOutput, found: Mapping[str, Any], *, is_first: bool = True) -> None:
    output.line(visible(found["words"]), _MOODS.get(found["verdict"], Mood.WARNING))
    if not is_first:  # the layers and the advice are those of the first
        return
    for layer in found["layers"]:
        mark = "*" if layer["decides"] else " "
        name, answer = visible(layer["layer"].replace("_", " ")), _ANSWERS[layer["answer"]]
        _paragraph(output, f"{mark} {name:<{_WIDE - 2}}  {answer:<6}  {visible(layer['text'])}", 0, _WIDE + 10)
    if found["kernel"]:
        _paragraph(output, f"the layers disagree: {visible(found['kernel'])}", 0)
    if found.get("entry"):
        from json import dumps  # noqa: PLC0415 - not needed elsewhere

        output.line(f"entry: {visible(dumps(found['entry'], ensure_ascii=False))}")
        if found["file"]:
            output.line(f"file:  {visible(found['file'])}")
    for step in found["advice"]:
        _paragraph(output, f"- {visible(step)}", 0, 2)


def _texts(output: CommandOutput, entry: ErrorEntry) -> None:
    for head, text in (("meaning", entry.meaning), ("cause", entry.cause), ("fix", entry.fix)):
        _paragraph(output, f"{head + ':':<{_HEAD}}{_plain(text)}", 0, _HEAD)
    if entry.see:
        _paragraph(output, f"{'see:':<{_HEAD}}{', '.join(f'docs/{place}' for place in entry.see)}", 0, _HEAD)


def _facts(output: CommandOutput, facts: Mapping[str, object]) -> None:
    for name, value in facts.items():
        if value:
            output.line(f"{name + ':':<{_HEAD}}{visible(str(value))}")


def _paragraph(output: CommandOutput, text: str, indent: int, hanging: int = 0) -> None:
    """Write a paragraph: wrapped on a terminal, on one line otherwise."""
    start = " " * indent
    if not output.is_watched:
        output.line(f"{start}{text}")
        return
    from textwrap import wrap  # noqa: PLC0415 - not needed elsewhere

    width = columns(sys.stdout)
    after = " " * (indent + hanging)
    for line in wrap(
        text, width, initial_indent=start, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    ):
        output.line(line)


def _plain(text: str) -> str:
    from democrai_sandbox.errors.catalogue.pages import plain  # noqa: PLC0415 - takes its time

    return plain(text)


def _entry(entry: ErrorEntry) -> dict[str, Any]:
    texts = {name: _plain(getattr(entry, name)) for name in ("meaning", "cause", "fix")}
    words = [{"word": one.word, "meaning": _plain(one.meaning), "fix": _plain(one.fix)} for one in entry.words]
    named = {"code": entry.code, "title": entry.title, "layer": entry.layer.value, "is_ours": entry.is_ours}
    shown = {"shape": entry.shape, **texts, "example": entry.example}
    return {**named, **shown, "words": words, "classes": list(entry.classes)}


_STDIN = "-"
_MOST_READ = 1 << 20
_UNASKED = (
    errors.CommandRefused,
    errors.NodeUnreachable,
    errors.NodeRefused,
    errors.ConfigInvalid,
    errors.StateUnusable,
)
"""Errors of asking a node; the line is explained without it."""
_NETWORK = frozenset({Operation.CONNECT, Operation.RECEIVE, Operation.SEND})


def run_explain(options: argparse.Namespace, output: CommandOutput) -> int:
    """Explain the given line, code or access."""
    given = [name for name in ("line", "code", "subject") if getattr(options, name) is not None]
    if len(given) != 1:
        what = "nothing to explain" if not given else f"{' and '.join(given)} cannot be combined"
        raise errors.CommandMisused(what, fix="give an error line, --code, or --subject with --operation and --target")
    if options.code is not None:
        from democrai_sandbox.errors.catalogue import entry_of  # noqa: PLC0415 - takes its time

        show_entry(output, entry_of(options.code))
        return Exit.OK
    return _line(options, output) if options.line is not None else _access(options, output)


def _line(options: argparse.Namespace, output: CommandOutput) -> int:
    from democrai_sandbox.errors.error_line import read_line  # noqa: PLC0415 - takes its time

    line = _read() if options.line == _STDIN else options.line
    reading = read_line(line)
    answer, unasked = _from_node(options, line, reading)
    show_line(output, reading, answer, unasked)
    return Exit.OK


def _read() -> str:
    with open(0, "rb", closefd=False) as stream:  # by number: sys.stdin can be None
        data = stream.read(_MOST_READ + 1)
    if len(data) > _MOST_READ:
        raise errors.CommandMisused(
            f"more than {_MOST_READ} bytes", fix="pass only the end of the log, for example with tail -n 100"
        )
    return data.decode("utf-8", "backslashreplace")


def _from_node(options: argparse.Namespace, line: str, reading: ErrorLine) -> tuple[dict[str, Any], str]:
    """Return the answer of the node about a line, and the reason if it was not asked."""
    if options.offline:
        return {}, "--offline"
    if reading.entry.is_ours and not (reading.resource_type and reading.target):
        return {}, "the line names no target"
    try:
        node = connection.node(options)
        if not reading.entry.is_ours:
            return {"status": node.get("/status"), "url": node.url}, ""
        about = {"line": line, "user_id": options.user, "session_key": options.session}
        return {**node.post("/explain/line", about), "url": node.url}, ""
    except _UNASKED as error:
        return {}, str(error)


def _access(options: argparse.Namespace, output: CommandOutput) -> int:
    for name in ("operation", "target"):
        if getattr(options, name) is None:
            raise errors.CommandMisused(f"--{name} is missing", fix="give --subject, --operation and --target")
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
        node = connection.node(options)
        found, unasked = {**node.post("/explain", question), "url": node.url}, ""
    if not output.data("explain.access/1", {**found, "not_asked": unasked}):
        _explanation(output, found)
        if unasked:
            output.say(f"no node was asked ({visible(unasked)})")
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
    from democrai_sandbox.host.explain.explainer import explain_by_manifest  # noqa: PLC0415 - the same
    from democrai_sandbox.host.explain.explanation import AccessToExplain  # noqa: PLC0415 - takes its time

    access = (Subject.parse(asked["subject"]), asked["resource_type"], asked["operation"], asked["target"])
    chain = chain_from_list(asked["chain"], pointer="/chain")
    return explain_by_manifest(file, AccessToExplain(*access, ancestors=chain, installing=asked["installing"]))


def _told(found: Explanation) -> dict[str, Any]:
    """Return an explanation in the format of the API."""
    layers = [
        {"layer": one.layer, "answer": one.answer.value, "text": one.text, "decides": one.decides}
        for one in found.layers
    ]
    told = {"verdict": found.verdict.value, "words": found.words, "layers": layers, "hint": found.hint}
    return {**told, "file": found.file, "kernel": "", "chain": [], "advice": found.hint.splitlines()}
