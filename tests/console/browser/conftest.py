"""A real Chromium with a real server. It uses the Chromium of the system and never downloads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.browser.browser_host import House
from tests.console.browser.windows import Windows

HERE = Path(__file__).parent
_house = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Let fixtures see the result of their test."""
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
    """Shared objects of these tests; decisions remain, so each test requests a different target."""
    global _house
    _house = _house or House(tmp_path_factory.mktemp("house"))
    return _house


@pytest.fixture
def served(house):
    """The serving process."""
    return house.served


@pytest.fixture
def desk(house):
    """Files requests."""
    return house.desk


@pytest.fixture
def people(request, house, tmp_path):
    """Windows of one test, closed afterwards; browser errors fail the test."""
    found = Windows(house.browser, house.served.url, tmp_path, house.cookie, house.idle)
    yield found
    failed = getattr(request.node, "failed", True)
    found.close(failed=failed, name=request.node.name.replace("/", "_"))
    assert failed or found.complaints == []


@pytest.fixture
def standing(request, house):
    """Windows that stay open, one per user; browser errors fail the test."""
    yield house.standing
    name = request.node.name.replace("/", "_")
    house.standing.settle(failed=getattr(request.node, "failed", True), name=name)
