"""Values of an installation: its status, and its progress as read from the output of pip."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

CONTROL = "DEMOCRAI_INSTALL_CONTROL"
"""Descriptor by which a child reaches the host. Its children do not inherit it: ``DEMOCRAI_*`` is set anew for them."""
LONGEST_MESSAGE = 64 * 1024


class InstallStage(StrEnum):
    """Stages of an installation."""

    PREPARE = "prepare"
    RESOLVE = "resolve"
    DOWNLOAD = "download"
    BUILD = "build"
    INSTALL = "install"
    VERIFY = "verify"
    DONE = "done"
    FAILED = "failed"


class InstallStep(NamedTuple):
    """One step of an installation. Plain data, visible to every user who may see the extension."""

    stage: str
    text: str
    fraction: float | None = None
    """Completed fraction of the stage, from 0 to 1; None if unknown."""


InstallReporter: TypeAlias = "Callable[[InstallStep], None]"


class InstallState(StrEnum):
    """State of an extension's environment compared with its manifest."""

    MISSING = "missing"
    """Never installed."""
    INSTALLING = "installing"
    OUTDATED = "outdated"
    """Installed for other requirements, other local packages or another interpreter."""
    READY = "ready"


@dataclass(frozen=True, slots=True)
class InstallStatus:
    """Status of the installation of one extension."""

    state: InstallState
    environment: str | None = None
    """Folder of the finished environment, even if it is outdated."""
    packages: tuple[str, ...] = ()
    """Installed packages, as ``name==version``."""
    progress: InstallStep | None = None
    """Last step of the current or latest installation."""
    problem: str = ""
    """Error of the latest installation; empty if it succeeded."""


_STAGES = (
    (re.compile(r"Progress (\d+) of (\d+)$"), InstallStage.DOWNLOAD),
    (re.compile(r"Collecting |Processing |Requirement already satisfied|Looking in "), InstallStage.RESOLVE),
    (re.compile(r"Downloading |Using cached |Obtaining "), InstallStage.DOWNLOAD),
    (
        re.compile(r"Getting requirements|Installing build dep|Preparing metadata|Building |Created wheel"),
        InstallStage.BUILD,
    ),
    (re.compile(r"Installing collected packages|Successfully installed"), InstallStage.INSTALL),
)
_LONGEST_TEXT = 300


def step_of(line: str) -> InstallStep | None:
    """Return the step that a line of pip reports; None for all other lines."""
    text = line.strip()
    for pattern, stage in _STAGES:
        if found := pattern.match(text):
            done = [int(number) for number in found.groups()]
            fraction = min(done[0] / done[1], 1.0) if done and done[1] else None
            return InstallStep(stage.value, _shown(text), fraction)
    return None


def _shown(text: str) -> str:
    """Return a text without terminal control characters, because package names are untrusted."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= _LONGEST_TEXT else plain[: _LONGEST_TEXT - 1] + "…"
