"""``democrai-sandbox config``: what is configured, and where each value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .exits import Exit
from .output import Mood, visible
from .parsing import add_verbs
from .places import add_config, add_json, configuration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from democrai_sandbox.host.config.showing import ShownValue

    from .output import Output


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    show = verbs.add_parser(
        "show",
        help="print every value",
        description="Print every value of the configuration; passwords are hidden. Changes nothing.",
    )
    show.add_argument("--origin", action="store_true", help="say where each one was given: file and line, or variable")
    show.add_argument("--given", action="store_true", help="leave out what is a default")
    check = verbs.add_parser(
        "check",
        help="say everything that is wrong",
        description="Read the configuration as serve does, and say everything that is wrong with it. Changes nothing.",
    )
    for verb, run in ((show, _show), (check, _check)):
        add_config(verb)
        add_json(verb)
        verb.set_defaults(run=run)


def _show(options: argparse.Namespace, output: Output) -> int:
    from democrai_sandbox.host.config.origins import DEFAULT  # noqa: PLC0415 - takes its time
    from democrai_sandbox.host.config.showing import shown_values  # noqa: PLC0415

    found = [
        each for each in shown_values(configuration(options)) if not (options.given and each.origin.source == DEFAULT)
    ]
    if output.is_json:
        output.data("config.show/1", {"values": [_as_dict(each) for each in found]})
    elif options.origin:
        output.table(
            ("SETTING", "VALUE", "ORIGIN"), ((each.name, _text(each.value), each.origin.source) for each in found)
        )
    else:
        output.table(("SETTING", "VALUE"), ((each.name, _text(each.value)) for each in found))
    return Exit.OK


def _check(options: argparse.Namespace, output: Output) -> int:
    """Loading says what is wrong, all at once; what is left to do is to say that nothing is."""
    loaded = configuration(options)
    file = loaded.settings.config_file
    variables = sorted({each.source for each in loaded.origins.values() if each.source.startswith("DEMOCRAI_")})
    if output.is_json:
        output.data("config.check/1", {"ok": True, "file": file, "variables": variables})
    else:
        output.line(_sources(file, variables), Mood.OK)
    return Exit.OK


def _sources(file: str, variables: Iterable[str]) -> str:
    named = [visible(file) if file else "the defaults", *map(visible, variables)]
    return f"nothing is wrong with {', '.join(named)}"


def _as_dict(each: ShownValue) -> dict[str, Any]:
    return {"name": each.name, "pointer": each.pointer, "value": each.value, "origin": each.origin.source}


def _text(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
