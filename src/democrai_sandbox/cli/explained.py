"""Output of ``explain``: paragraphs for users, a document for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .layers import show_layers
from .output import Mood, visible
from .terminals import columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.errors.catalogue import Entry
    from democrai_sandbox.errors.reading import Reading

    from .output import Output

_LAYERS = ("landlock", "seccomp", "egress", "helper", "spawn")
_ANSWERS = {"allows": "allows", "denies": "denies", "silent": "-"}
_MOODS = {"allowed": Mood.OK, "denied": Mood.BAD, "refused": Mood.BAD}
_WIDE = 20
_HEAD = 11


def show_entry(output: Output, entry: Entry) -> None:
    """Show the help for a code."""
    if output.is_json:
        output.data("explain.code/1", _entry(entry))
        return
    output.line(f"{entry.code}: {entry.title}", Mood.STRONG)
    _facts(output, {"layer": str(entry.layer), "shape": entry.shape, "class": ", ".join(entry.classes)})
    _texts(output, entry)
    for word in entry.words:
        _paragraph(output, f"{word.word}: {_plain(word.meaning)}; {_plain(word.fix)}", 2)
    output.line("example:")
    for line in entry.example.splitlines():
        output.line(f"  {line}")


def show_line(output: Output, reading: Reading, answer: Mapping[str, Any], unasked: str) -> None:
    """Show the help for an error line, and the answer of the node."""
    entry = reading.entry
    told = {
        **{name: getattr(reading, name) for name in ("subject", "operation", "target", "request_id")},
        "chain": list(reading.chain),
    }
    if output.is_json:
        asked = {"node": answer or None, "not_asked": unasked}
        output.data("explain.line/1", {**_entry(entry), "told": {**told, "detail": reading.detail}, **asked})
        return
    if entry.is_ours:
        output.line(f"{entry.code}: {entry.title}", Mood.STRONG)
    else:
        output.line(f"{entry.title}: not an error of democrai-sandbox, but the kernel layer can cause it", Mood.STRONG)
    _facts(output, {"layer": str(entry.layer), **told, "chain": " -> ".join(reading.chain)})
    if reading.detail:
        _facts(output, {"detail": reading.detail})
    _texts(output, entry)
    if reading.word is not None:
        _paragraph(output, f"{reading.word.word}: {_plain(reading.word.meaning)}; {_plain(reading.word.fix)}", 0)
    _now(output, reading, answer, unasked)


def show_access(output: Output, found: Mapping[str, Any], unasked: str) -> None:
    """Show the explanation of an access."""
    if output.is_json:
        output.data("explain.access/1", {**found, "not_asked": unasked})
        return
    _explanation(output, found)
    if unasked:
        output.say(f"no node was asked ({visible(unasked)})")


def _now(output: Output, reading: Reading, answer: Mapping[str, Any], unasked: str) -> None:
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
        if place:  # the layers and the advice are the same
            output.line(visible(found["words"]), _MOODS.get(found["verdict"], Mood.WARNING))
        else:
            _explanation(output, found)
    if answer["note"]:
        _paragraph(output, f"note: {visible(answer['note'])}", 0)
    if not answer["explanations"]:
        _would_be_declared(output, reading)


def _would_be_declared(output: Output, reading: Reading) -> None:
    """Show the missing manifest entry, from the line alone."""
    from democrai_sandbox.errors.reading import entry_for  # noqa: PLC0415 - takes its time

    if entry := entry_for(reading):
        output.line(f"{'entry:':<{_HEAD}}{visible(entry)}")


def _explanation(output: Output, found: Mapping[str, Any]) -> None:
    output.line(visible(found["words"]), _MOODS.get(found["verdict"], Mood.WARNING))
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


def _texts(output: Output, entry: Entry) -> None:
    for head, text in (("meaning", entry.meaning), ("cause", entry.cause), ("fix", entry.fix)):
        _paragraph(output, f"{head + ':':<{_HEAD}}{_plain(text)}", 0, _HEAD)
    if entry.see:
        _paragraph(output, f"{'see:':<{_HEAD}}{', '.join(f'docs/{place}' for place in entry.see)}", 0, _HEAD)


def _facts(output: Output, facts: Mapping[str, object]) -> None:
    for name, value in facts.items():
        if value:
            output.line(f"{name + ':':<{_HEAD}}{visible(str(value))}")


def _paragraph(output: Output, text: str, indent: int, hanging: int = 0) -> None:
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


def _entry(entry: Entry) -> dict[str, Any]:
    texts = {name: _plain(getattr(entry, name)) for name in ("meaning", "cause", "fix")}
    words = [{"word": one.word, "meaning": _plain(one.meaning), "fix": _plain(one.fix)} for one in entry.words]
    named = {"code": entry.code, "title": entry.title, "layer": entry.layer.value, "is_ours": entry.is_ours}
    shown = {"shape": entry.shape, **texts, "example": entry.example}
    return {**named, **shown, "words": words, "classes": list(entry.classes)}
