"""Fixtures of the runtime tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.cases import FreshCase, McpCase, PreparedCase
from tests.runtime.versioned import VERSIONED

HERE = Path(__file__).parent


@pytest.fixture
def case(tmp_path, prepared_file):
    """Make a private world in which a body runs in a separate process."""
    return PreparedCase(tmp_path, prepared_file)


@pytest.fixture
def fresh_case(tmp_path, prepared_file):
    """Make a world for tests that also cover how worker processes start."""
    return FreshCase(tmp_path, prepared_file)


@pytest.fixture
def mcp_case(tmp_path, prepared_file):
    """Make a world for bodies that use MCP servers, because loading the library takes a second."""
    return McpCase(tmp_path, prepared_file)


@pytest.fixture(scope="module")
def shared_case(tmp_path_factory, prepared_file, request):
    """Make a world for tests of a file that check different parts of one body's results."""
    return PreparedCase(tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2]), prepared_file)


@pytest.fixture(scope="session")
def prepared_tools(tmp_path_factory):
    """Folder of tools that installations create once: a copy of pip."""
    from democrai_sandbox.runtime.installs.pip import find_pip

    tools = tmp_path_factory.mktemp("tools")
    find_pip(tools)
    return tools


@pytest.fixture
def equipped_case(case, prepared_tools):
    """Make a world with pip available in advance."""
    case.give_tools(prepared_tools)
    return case


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run interpreter-dependent tests on each interpreter, and everything else only on the default one."""
    here, versioned = f"{HERE}/", tuple(VERSIONED)
    for item in items:
        path = str(item.path)
        if path.startswith(here):
            name = f"{path.removeprefix(here)}::{item.name}"
            item.add_marker(pytest.mark.every if name.startswith(versioned) else pytest.mark.once)
