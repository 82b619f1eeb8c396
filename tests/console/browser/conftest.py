"""A real Chromium before a real server. The system's own: it is found, never downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.browser.house import House
from tests.console.browser.windows import Windows

HERE = Path(__file__).parent
_house = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Let fixtures know how their test went."""
    report = (yield).get_result()
    if report.when == "call":
        item.failed = report.failed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(nextitem):
    """End the server and the browser with the last test that needs them: others are not to run beside them.

    The browser's library keeps a loop running in this thread, too, where others want to run their own.
    """
    global _house
    yield
    if _house is not None and (nextitem is None or not nextitem.path.is_relative_to(HERE)):
        leaving, _house = _house, None
        leaving.close()


@pytest.fixture
def house(tmp_path_factory):
    """What all these tests of a worker share; what they decide stays, so each asks for something of its own."""
    global _house
    _house = _house or House(tmp_path_factory.mktemp("house"))
    return _house


@pytest.fixture
def served(house):
    """The process that serves."""
    return house.served


@pytest.fixture
def desk(house):
    """Where requests are put down."""
    return house.desk


@pytest.fixture
def people(request, house, tmp_path):
    """Windows of the test, closed after it; a page that complained fails it."""
    found = Windows(house.browser, house.served.url, tmp_path, house.cookie, house.idle)
    yield found
    failed = getattr(request.node, "failed", True)
    found.close(failed=failed, name=request.node.name.replace("/", "_"))
    assert failed or found.complaints == []


@pytest.fixture
def standing(request, house):
    """Windows that stay open, one of each person; a page that complained fails the test."""
    yield house.standing
    name = request.node.name.replace("/", "_")
    house.standing.settle(failed=getattr(request.node, "failed", True), name=name)
