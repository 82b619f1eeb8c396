"""A configuration file to write, and what is told about one that is refused."""

from __future__ import annotations

import pytest

from democrai_sandbox.errors import ConfigInvalid
from democrai_sandbox.host.config import load


@pytest.fixture
def home(tmp_path):
    """An environment with a home folder and nothing else."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def config(tmp_path):
    """Writes a configuration of this text, and returns its path."""

    def write(text, mode=0o644):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


@pytest.fixture
def refused(home):
    """Loads what must be refused; returns the problems by their pointers."""

    def load_it(source=None, **environ):
        with pytest.raises(ConfigInvalid) as error:
            load(source, environ={**home, **environ})
        return {problem.pointer: problem for problem in error.value.problems}

    return load_it
