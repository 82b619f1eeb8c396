"""What the tests of the runtimes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.cases import PreparedCase
from tests.runtime.versioned import VERSIONED

HERE = Path(__file__).parent


@pytest.fixture
def case(tmp_path, prepared_file):
    """Make a private world in which a body runs in a process of its own."""
    return PreparedCase(tmp_path, prepared_file)


@pytest.fixture(scope="module")
def shared_case(tmp_path_factory, prepared_file, request):
    """Make a world for the tests of a file that look at different parts of what one body did."""
    return PreparedCase(tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2]), prepared_file)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run tests that depend on the interpreter on each of them, and everything else on the default one only."""
    here, versioned = f"{HERE}/", tuple(VERSIONED)
    for item in items:
        path = str(item.path)
        if path.startswith(here):
            name = f"{path.removeprefix(here)}::{item.name}"
            item.add_marker(pytest.mark.every if name.startswith(versioned) else pytest.mark.once)
