"""Draw the layers of the import contract: ``python scripts/architecture.py docs/architecture.svg``."""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PURPOSES = {
    "cli": "command line",
    "console": "web pages and HTTP API",
    "host": "sets everything up from one configuration file",
    "sdk": "package that extension code imports",
    "runtime": "loads and calls extensions, in workers or in process",
    "guard": "checks Python calls (C core)",
    "access": "requests and decisions",
    "kernel": "Landlock, seccomp, egress",
    "manifests": "declarations",
    "errors": "every error with cause and fix",
    "policy": "subjects, rules, matching; no I/O",
    "_util": "helpers without a domain",
}
NOTE = "Each row imports only rows below it; packages in one row do not import each other."
WIDTH, ROW, GAP, MARGIN = 860, 56, 14, 16


def layers() -> list[list[str]]:
    """Return the rows of the contract, the highest first."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    rows = [[name.strip(" ()") for name in row.split("|")] for row in contract["layers"]]
    return [row for row in rows if row != ["_moved"]]  # old import paths are not a layer


def box(name: str, x: float, y: int, width: float) -> list[str]:
    """Return a rectangle with a name and its purpose."""
    middle = x + width / 2
    return [
        f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW}" rx="6"/>',
        f'<text class="name" x="{middle:g}" y="{y + 24}">{escape(name)}</text>',
        f'<text x="{middle:g}" y="{y + 43}">{escape(PURPOSES[name])}</text>',
    ]


def drawing(rows: list[list[str]]) -> str:
    """Return the diagram. Each row imports only rows below it."""
    height = 2 * MARGIN + len(rows) * ROW + (len(rows) - 1) * GAP + 28
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Packages of democrai_sandbox: each row imports only rows below it</title>",
        "<style>",
        "rect { fill: #eef3fb; stroke: #3b5b8c; }",
        "text { font: 12px sans-serif; text-anchor: middle; fill: #1c2b45; }",
        ".name { font: bold 15px monospace; }",
        "</style>",
        f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill: #ffffff; stroke: none"/>',
    ]
    for number, row in enumerate(rows):
        width = (WIDTH - 2 * MARGIN - (len(row) - 1) * GAP) / len(row)
        for place, name in enumerate(row):
            lines += box(name, MARGIN + place * (width + GAP), MARGIN + number * (ROW + GAP), width)
    lines += [
        f'<text x="{WIDTH // 2}" y="{height - 16}">{NOTE}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawing(layers()))
