"""The reference host with everything that the kernel has: Landlock, seccomp, the packet filter and its helper."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.console.serving import serving, until
from tests.kernel.netlab import Lab, needs_netlab

EVERYTHING = {
    "sandbox": {
        "os": {"enabled": True, "require": True, "landlock": {"enabled": True}, "seccomp": {"enabled": True}},
        "isolation": {"module:reports": "process"},
    }
}


@pytest.fixture
def short():
    """A folder whose name is short enough for the sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.mark.slow
@needs_netlab
def test_the_story_goes_on_under_the_kernel_layer(short):
    """Every control is active and required; a module is stopped, approved, goes on, and the process ends in order."""
    with Lab() as lab, lab.inside.entered(), serving(short, EVERYTHING) as served:
        with served.bearer(served.administrator()) as admin:
            status = admin.get("/api/v1/status").json()
            request = served.stop_weather(admin)
            admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()

            def resumed():
                found = admin.get(f"/api/v1/requests/{request}").json()["resume"]
                return found if found and found["state"] in {"succeeded", "failed"} else None

            assert until(resumed, "going on")["state"] == "succeeded", resumed()
            rendered = admin.post("/api/v1/modules/reports/render", json={"params": {}})
            assert rendered.status_code == 200, rendered.text
        assert served.web.asked == ["/forecast/today"]
        kernel = {line["name"]: line["state"] for line in status["lines"] if line["area"] == "kernel"}
        assert set(kernel.values()) == {"ok"}, kernel
        assert served.stop() == 0
