"""Conversion of pip's output to steps of an installation."""

from __future__ import annotations

import re

from .interface import Progress, Stage

_STAGES = (
    (re.compile(r"Progress (\d+) of (\d+)$"), Stage.DOWNLOAD),
    (re.compile(r"Collecting |Processing |Requirement already satisfied|Looking in "), Stage.RESOLVE),
    (re.compile(r"Downloading |Using cached |Obtaining "), Stage.DOWNLOAD),
    (re.compile(r"Getting requirements|Installing build dep|Preparing metadata|Building |Created wheel"), Stage.BUILD),
    (re.compile(r"Installing collected packages|Successfully installed"), Stage.INSTALL),
)
_LONGEST_TEXT = 300


def step_of(line: str) -> Progress | None:
    """Return the step that a line of pip reports; None for all other lines."""
    text = line.strip()
    for pattern, stage in _STAGES:
        if found := pattern.match(text):
            done = [int(number) for number in found.groups()]
            fraction = min(done[0] / done[1], 1.0) if done and done[1] else None
            return Progress(stage.value, _shown(text), fraction)
    return None


def _shown(text: str) -> str:
    """Return a text without terminal control characters, because package names are untrusted."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= _LONGEST_TEXT else plain[: _LONGEST_TEXT - 1] + "…"
