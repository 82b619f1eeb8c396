"""The reference host with all kernel controls: Landlock, seccomp, the packet filter and its helper."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.goldens import golden
from tests.console.serving import serving, until
from tests.kernel.netlab import Lab, needs_netlab
from tests.services import places

EVERYTHING = {
    "sandbox": {
        "os": {"enabled": True, "require": True, "landlock": {"enabled": True}, "seccomp": {"enabled": True}},
        "isolation": {"module:reports": "process"},
    }
}


WITHOUT_OPENAT2 = """
import ctypes, os, struct, sys
load, is_it, refuse, allow = (0x20, 0, 0, 0), (0x15, 0, 1, 437), (6, 0, 0, 0x00050000 | 38), (6, 0, 0, 0x7FFF0000)
steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in (load, is_it, refuse, allow)))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(steps)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.executable, [sys.executable, "-m", "democrai_sandbox.cli", *sys.argv[1:]])
"""


def test_a_filter_that_takes_away_what_the_guard_is_built_on_is_told_in_one_line(tmp_path):
    """A container profile without openat2 refuses the start, because the guard needs it."""
    command = [sys.executable, "-c", WITHOUT_OPENAT2, "run", "script", "--no-kernel", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "openat2" in line and os.strerror(errno.ENOSYS) in line
    golden("run-without-openat2", line)


@pytest.fixture
def short():
    """A folder with a name that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir=places.SHORT) as name:
        yield Path(name)


@pytest.mark.slow
@needs_netlab
def test_the_story_goes_on_under_the_kernel_layer(short):
    """With every control required, a module is denied, approved and resumed, and the process ends in order."""
    with Lab() as lab, lab.inside.entered(), serving(short, EVERYTHING, fresh=True) as served:
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
