"""Words of a text."""

from __future__ import annotations

import re

VERSION = "1.0"


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.lower())
