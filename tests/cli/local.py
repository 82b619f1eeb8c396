"""Commands that need no node."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.cli.goldens import Piped, within


class Result(Piped):
    """Output and exit status of a command."""

    @property
    def data(self) -> Any:
        """The output as data."""
        return json.loads(self.out)


def says(*arguments, environ=None, stdin=""):
    """Run a command in this process, without a terminal."""
    found = Result(*within(arguments, environ, stdin))
    assert "Traceback" not in found.err
    return found


def configured(folder, **more):
    """Write a configuration whose state is in a folder, and return its file."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "server": {"port": 0}, **more}))
    file.chmod(0o600)
    return file
