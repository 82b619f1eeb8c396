"""Configuration files, and the problems of invalid ones."""

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
    """Write a configuration with this text, and return its path."""

    def write(text, mode=0o644):
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


@pytest.fixture
def refused(home):
    """Load an invalid configuration; return the problems by pointer."""

    def load_it(source=None, **environ):
        with pytest.raises(ConfigInvalid) as error:
            load(source, environ={**home, **environ})
        return {problem.pointer: problem for problem in error.value.problems}

    return load_it
