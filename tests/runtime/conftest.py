"""What the tests of the runtimes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.cases import FreshCase, McpCase, PreparedCase
from tests.runtime.versioned import VERSIONED

HERE = Path(__file__).parent


@pytest.fixture
def case(tmp_path, prepared_file):
    """Make a private world in which a body runs in a process of its own."""
    return PreparedCase(tmp_path, prepared_file)


@pytest.fixture
def fresh_case(tmp_path, prepared_file):
    """The same, for tests whose point is also how worker processes are started."""
    return FreshCase(tmp_path, prepared_file)


@pytest.fixture
def mcp_case(tmp_path, prepared_file):
    """The same, for bodies that talk to MCP servers: loading the library takes them a second."""
    return McpCase(tmp_path, prepared_file)


@pytest.fixture(scope="module")
def shared_case(tmp_path_factory, prepared_file, request):
    """Make a world for the tests of a file that look at different parts of what one body did."""
    return PreparedCase(tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2]), prepared_file)


@pytest.fixture(scope="session")
def prepared_tools(tmp_path_factory):
    """The folder of tools that installations make once: a copy of pip."""
    from democrai_sandbox.runtime.installs.pip import find_pip

    tools = tmp_path_factory.mktemp("tools")
    find_pip(tools)
    return tools


@pytest.fixture
def equipped_case(case, prepared_tools):
    """The same world, with pip there already."""
    case.give_tools(prepared_tools)
    return case


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run tests that depend on the interpreter on each of them, and everything else on the default one only."""
    here, versioned = f"{HERE}/", tuple(VERSIONED)
    for item in items:
        path = str(item.path)
        if path.startswith(here):
            name = f"{path.removeprefix(here)}::{item.name}"
            item.add_marker(pytest.mark.every if name.startswith(versioned) else pytest.mark.once)
