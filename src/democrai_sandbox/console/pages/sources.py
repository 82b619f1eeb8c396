"""Foreign code and data on pages, with spaces kept and other characters made visible."""

from __future__ import annotations

import re

from markupsafe import Markup

from democrai_sandbox.console.text import visible

_SPACES = re.compile("( +)")


def code(text: object) -> Markup:
    """Return a text for a ``pre`` element, which keeps line ends and spaces."""
    return Markup("\n").join(map(code_line, str(text).replace("\r\n", "\n").split("\n")))


def code_line(line: str) -> Markup:
    """Return one line; a tab is marked and has the width of four spaces."""
    return Markup("").join(part if part.isspace() else visible(part) for part in _SPACES.split(line) if part)
