"""The few programs of the system that the helper runs: found in fixed places, with an empty environment and a limit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_SECONDS = 15.0
# Nothing is handed on: the helper may have been started by a user who chose the variables.
_ENVIRONMENT = {"PATH": ":".join(PLACES), "LC_ALL": "C"}


class Finished(NamedTuple):
    """What a program has left."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Finds and runs them. Never looked for in ``PATH``, which is whoever's who started the helper."""

    places: tuple[str, ...] = PLACES
    seconds: float = _SECONDS

    def find(self, name: str) -> str | None:
        """Return where a program is."""
        candidates = (Path(place, name) for place in self.places)
        return next((str(path) for path in candidates if os.access(path, os.X_OK)), None)

    def run(self, argv: Sequence[str], text: str = "") -> Finished:
        """Run a program to its end, which has to come in time."""
        try:
            done = subprocess.run(  # noqa: S603 - a path from the fixed places, no shell, nothing of a client's in it
                argv,
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
                env=_ENVIRONMENT,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            error = f"{argv[0]} did not finish in {self.seconds:g} seconds"
            raise Refused("table_failed", error, "see who holds the lock /run/xtables.lock") from None
        except OSError as error:
            raise Refused("table_failed", f"{argv[0]} cannot be run: {error.strerror}", "reinstall iptables") from None
        return Finished(done.returncode, done.stdout, done.stderr)
