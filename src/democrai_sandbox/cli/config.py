"""``democrai-sandbox config``: show and check the configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .connection import configuration
from .output import Exit, Mood, visible

if TYPE_CHECKING:
    import argparse

    from .output import CommandOutput


def run_show(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print every value."""
    from democrai_sandbox.host.config.display import shown_values  # noqa: PLC0415
    from democrai_sandbox.host.config.keys import DEFAULT  # noqa: PLC0415 - takes its time

    found = [
        each for each in shown_values(configuration(options)) if not (options.given and each.origin.source == DEFAULT)
    ]
    if output.is_json:
        values = [
            {"name": each.name, "pointer": each.pointer, "value": each.value, "origin": each.origin.source}
            for each in found
        ]
        output.data("config.show/1", {"values": values})
    elif options.origin:
        output.table(
            ("SETTING", "VALUE", "ORIGIN"), ((each.name, _text(each.value), each.origin.source) for each in found)
        )
    else:
        output.table(("SETTING", "VALUE"), ((each.name, _text(each.value)) for each in found))
    return Exit.OK


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """Load the configuration, which raises an error with all problems, and report success."""
    loaded = configuration(options)
    file = loaded.settings.config_file
    variables = sorted({each.source for each in loaded.origins.values() if each.source.startswith("DEMOCRAI_")})
    if output.is_json:
        output.data("config.check/1", {"ok": True, "file": file, "variables": variables})
    else:
        named = [visible(file) if file else "the defaults", *map(visible, variables)]
        output.line(f"valid: {', '.join(named)}", Mood.OK)
    return Exit.OK


def _text(value: Any) -> str:
    """Return a value as in the file, a dash for None, and a list without brackets unless it is empty."""
    if value is None:
        return "-"
    if value in ([], {}):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
