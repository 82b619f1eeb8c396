"""The values of an installation: how far it is, what it came to, and what can be wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox import errors
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

CONTROL = "DEMOCRAI_INSTALL_CONTROL"
"""The descriptor by which a child reaches the host. Its own children do not have it: ``DEMOCRAI_*`` is made anew."""
LONGEST_MESSAGE = 64 * 1024


class Stage(StrEnum):
    """What an installation is doing."""

    PREPARE = "prepare"
    RESOLVE = "resolve"
    DOWNLOAD = "download"
    BUILD = "build"
    INSTALL = "install"
    VERIFY = "verify"
    DONE = "done"
    FAILED = "failed"


class Progress(NamedTuple):
    """One step of an installation. Plain data: it may be shown to anybody who may see the extension."""

    stage: str
    text: str
    fraction: float | None = None
    """How much of the stage is done, from 0 to 1; None when that cannot be told."""


Reporter: TypeAlias = "Callable[[Progress], None]"


class InstallState(StrEnum):
    """Whether an extension has the environment that its manifest asks for."""

    MISSING = "missing"
    """Nothing was ever installed."""
    INSTALLING = "installing"
    OUTDATED = "outdated"
    """There is an environment, made for other requirements, other local packages or another interpreter."""
    READY = "ready"


@dataclass(frozen=True, slots=True)
class InstallStatus:
    """What is known about the installation of one extension."""

    state: InstallState
    environment: str | None = None
    """The folder of the finished environment, also when it is outdated."""
    packages: tuple[str, ...] = ()
    """What is in it, as ``name==version``."""
    progress: Progress | None = None
    """The last step of the present or latest installation."""
    problem: str = ""
    """Why the latest installation failed, if it did."""


class InstallFailed(errors.InstallFailed):
    """An installation did not come to its end. What was installed before is untouched and goes on being used."""

    def __init__(self, message: str, *, lines: tuple[str, ...] = (), denials: tuple[str, ...] = ()) -> None:
        """Take what happened, the last lines of pip, and what the guard refused meanwhile."""
        super().__init__(message)
        self.lines = lines
        self.denials = denials

    def diagnostics(self) -> str:
        """Return what happened, what was refused, and the last lines of pip."""
        parts = [super().diagnostics()]
        parts += [f"  refused: {denial}" for denial in self.denials]
        parts += [f"  {line}" for line in self.lines]
        return "\n".join(parts)


class InstallBusy(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Another process is installing the same extension."""

    code = "extension_install_busy"
