"""The console mounted in another application, with the users of that application."""

from __future__ import annotations

import os
import re
import shutil
import signal

import httpx
import pytest
import yaml
from playwright.sync_api import expect

from democrai_sandbox.console.render import MESSAGES
from tests.console.browser.windows import Windows
from tests.console.serving import EXTENSIONS, PLAIN, ROOT, SAME_ORIGIN, Web, until
from tests.services.commands import Forked, instead
from tests.services.ports import port

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of examples/embedding.py, served and stopped in order."""
    folder = tmp_path_factory.mktemp("embedded")
    shutil.copytree(EXTENSIONS / "modules" / "weather", folder / "modules" / "weather")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "modules_path": str(folder / "modules")}))
    config.chmod(0o600)
    with port() as number:
        program = instead("uvicorn", "embedding:app", "--app-dir", EXAMPLES, "--port", number)
        environ = os.environ | {"APP_CONFIG": str(config), "no_proxy": "127.0.0.1"}
        with (folder / "log").open("wb") as log:
            process = Forked([], environ=environ, streams=(log, log, log), before=program)
        try:
            until(lambda: _answers(f"http://127.0.0.1:{number}"), f"the start, see {folder / 'log'}")
            yield f"http://127.0.0.1:{number}"
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(60)
        assert status == 0


@pytest.fixture(scope="module")
def web():
    """A page for the module to fetch."""
    found = Web()
    yield found
    found.stop()


def _answers(url):
    try:
        return httpx.get(f"{url}/sandbox/health/live", **PLAIN, timeout=10).status_code < 500
    except httpx.HTTPError:
        return False


def test_the_console_works_below_a_path(house, url, web, tmp_path):
    """Links, forms, scripts and streams stay below the path."""
    windows = Windows(house.browser, url, tmp_path, None)
    try:
        _decide(windows, url, f"{web.url}/forecast/embedded")
        assert windows.complaints == []
    finally:
        windows.close(failed=False, name="")


def _decide(windows, url, target):
    page = windows.window(extra_http_headers={"X-User": "ada"})
    asked, outside = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/sandbox/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    stopped = httpx.post(f"{url}/forecast", params={"url": target}, headers={"X-User": "uma"}, **PLAIN, timeout=60)
    assert stopped.status_code == 403
    page.get_by_role("status").get_by_role("link", name="show").click()
    page.get_by_role("row").filter(has_text="forecast/embedded").get_by_role("link").first.click()
    page.get_by_role("button", name="Approve for this session").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["approved_for_session"])
    for place in page.get_by_role("navigation", name="Main").get_by_role("link").all():
        outside += [place.get_attribute("href")]
    assert len(outside) > 5
    for path in outside:
        assert path.startswith("/sandbox/")
        assert page.goto(path).status == 200
    assert [one for one in asked if not one.startswith(f"{url}/sandbox/")] == []


def test_an_application_with_its_own_people(url, web):
    """A module works for a user of the application, and its administrator decides."""
    lines = [line for line in (EXAMPLES / "embedding.py").read_text().splitlines() if line]
    assert len(lines) <= 30
    assert (EXAMPLES / "embedding.py").read_text() in (ROOT / "docs" / "embedding.md").read_text()
    with _visitor(url, "uma") as uma, _visitor(url, "ada") as ada, _visitor(url, "nobody") as nobody:
        page = f"{web.url}/forecast/oslo"
        stopped = uma.post("/forecast", params={"url": page})
        assert stopped.status_code == 403
        waiting = ada.get("/sandbox/api/v1/requests", params={"text": "/forecast/oslo"}).json()["items"]
        assert [found["origin"]["user_id"] for found in waiting] == ["uma"]
        request = waiting[0]["id"]
        assert request in stopped.json()["hint"]
        shown = ada.get(f"/sandbox/requests/{request}")
        assert shown.status_code == 200
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', shown.text)
        assert links
        assert [link for link in links if not link.startswith("/sandbox/")] == []
        assert uma.post(f"/sandbox/api/v1/requests/{request}/approve-session", json={}).status_code == 403
        assert ada.post(f"/sandbox/api/v1/requests/{request}/approve-session", json={}).status_code == 200
        until(lambda: uma.post("/forecast", params={"url": page}).status_code == 200)
        assert nobody.post("/forecast", params={"url": page}).status_code == 401


def _visitor(url, user):
    headers = {"X-User": user, **SAME_ORIGIN}
    return httpx.Client(base_url=url, timeout=60, **PLAIN, headers=headers)
