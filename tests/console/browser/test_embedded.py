"""The console inside somebody's application, below a path of its own and with the application's people."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import httpx
import yaml
from playwright.sync_api import expect

from tests.console.browser.windows import Windows
from tests.console.serving import EXTENSIONS, ROOT, until
from tests.services.ports import kept_port


@contextmanager
def embedded(folder):
    """Serve examples/embedding.py as its author would; give its address."""
    shutil.copytree(EXTENSIONS / "modules" / "weather", folder / "modules" / "weather")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "modules_path": str(folder / "modules")}))
    config.chmod(0o600)
    keeper = kept_port()
    port = keeper.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "embedding:app",
        "--app-dir",
        str(ROOT / "examples"),
        "--port",
        str(port),
    ]
    environ = os.environ | {"APP_CONFIG": str(config), "no_proxy": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url), f"the start, see {folder / 'log'}")
        yield url
    finally:
        process.terminate()
        process.wait(60)
        keeper.close()


def _answers(url):
    try:
        return httpx.get(f"{url}/sandbox/health/live", trust_env=False, timeout=10).status_code < 500
    except httpx.HTTPError:
        return False


def test_the_console_works_below_a_path(house, served, tmp_path):
    """Every link, form, script and stream stays below the path, and an administrator of the application decides."""
    with embedded(tmp_path) as url:
        windows = Windows(house.browser, url, tmp_path, None)
        try:
            _decide(windows, url, f"{served.web.url}/forecast/embedded")
            assert windows.complaints == []
        finally:
            windows.close(failed=False, name="")


def _decide(windows, url, target):
    page = windows.window(extra_http_headers={"X-User": "ada"})
    asked, outside = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/sandbox/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    stopped = httpx.post(
        f"{url}/forecast", params={"url": target}, headers={"X-User": "uma"}, trust_env=False, timeout=60
    )
    assert stopped.status_code == 403
    page.get_by_role("status").get_by_role("link", name="show").click()
    page.get_by_role("row").filter(has_text="forecast/embedded").get_by_role("link").first.click()
    page.get_by_role("button", name="Approve for this session").click()
    expect(page.get_by_role("status").first).to_contain_text("Approved until that session ends")
    for place in page.get_by_role("navigation", name="Main").get_by_role("link").all():
        outside += [place.get_attribute("href")]
    assert len(outside) > 5
    for path in outside:
        assert path.startswith("/sandbox/")
        assert page.goto(path).status == 200
    assert [one for one in asked if not one.startswith(f"{url}/sandbox/")] == []
