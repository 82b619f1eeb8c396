"""Run system programs from fixed folders, with an empty environment and a timeout."""

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
# Not inherited: the user who started the helper controls the environment.
_ENVIRONMENT = {"PATH": ":".join(PLACES), "LC_ALL": "C"}


class Finished(NamedTuple):
    """Result of a program."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Runner of programs. It does not use ``PATH``, which the user who started the helper controls."""

    places: tuple[str, ...] = PLACES
    seconds: float = _SECONDS

    def find(self, name: str) -> str | None:
        """Return the path of a program."""
        candidates = (Path(place, name) for place in self.places)
        return next((str(path) for path in candidates if os.access(path, os.X_OK)), None)

    def run(self, argv: Sequence[str], text: str = "") -> Finished:
        """Run a program until it ends or the timeout passes."""
        try:
            done = subprocess.run(  # noqa: S603 - a path from fixed folders, no shell, no client input
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
            error = f"{argv[0]} did not finish within {self.seconds:g} seconds"
            raise Refused("table_failed", error, "check which process holds the lock /run/xtables.lock") from None
        except OSError as error:
            raise Refused("table_failed", f"{argv[0]} cannot be run: {error.strerror}", "reinstall iptables") from None
        return Finished(done.returncode, done.stdout, done.stderr)
