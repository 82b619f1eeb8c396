"""Code and data of others as people read them: every space where it stands, everything else made visible."""

from __future__ import annotations

import re

from markupsafe import Markup

from democrai_sandbox.console.text import visible

_SPACES = re.compile("( +)")


def code(text: object) -> Markup:
    """Return a text for a ``pre``: line ends and spaces show as what they are there."""
    return Markup("\n").join(map(code_line, str(text).replace("\r\n", "\n").split("\n")))


def code_line(line: str) -> Markup:
    """Return one line of it; a tab shows as four spaces would, and is marked like all that cannot be seen."""
    return Markup("").join(part if part.isspace() else visible(part) for part in _SPACES.split(line) if part)
