"""Report of layers and their states, for ``status`` and ``doctor``."""

from __future__ import annotations

from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .output import Mood, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .output import Output

_MOODS: Mapping[str, Mood] = MappingProxyType(
    {"ok": Mood.OK, "degraded": Mood.WARNING, "off": Mood.FAINT, "unsupported": Mood.FAINT}
)


def show_layers(output: Output, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines of a report (``Line.as_dict()``), grouped by area, each with its fix."""
    wide = max((len(line["title"]) for line in lines), default=0)
    for area, found in groupby(lines, lambda line: line["area"]):
        output.line(visible(str(area)), Mood.STRONG)
        for line in found:
            _show(output, line, wide)


def is_well(line: Mapping[str, Any]) -> bool:
    """Return whether a line needs no action; a control that is not enabled may be off."""
    return bool(line["state"] == "ok" or (not line["wanted"] and line["state"] != "degraded"))


def trouble(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines that need an action as a sentence, or an empty text."""
    ill = [visible(line["title"]) for line in lines if not is_well(line)]
    return f"{len(ill)} problem{'s' if len(ill) > 1 else ''}: {', '.join(ill)}" if ill else ""


def _show(output: Output, line: Mapping[str, Any], wide: int) -> None:
    state, well = line["state"], is_well(line)
    mood = _MOODS[state] if well or state == "degraded" else Mood.BAD
    asked = "" if line["wanted"] or state == "ok" else " (not enabled)"
    painted = output.coloured(f"{visible(state):<11}", mood)
    output.line(f"  {painted}  {visible(line['title']):<{wide}}  {visible(line['summary'])}{asked}")
    if line["fix"] and state != "ok":
        output.line(f"  {'':11}  {'':{wide}}  fix: {visible(line['fix'])}")
