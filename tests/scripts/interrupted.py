"""A test that starts all kinds of things and then waits to be interrupted. It is only run by its name."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path

from tests.kernel.netlab import _missing, cgroup_mount


def test_held(tmp_path):
    """Processes, folders, and as root a network and a control group exist until the end of the run."""
    tempfile.mkdtemp()
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' INT TERM HUP; kill -STOP $$; sleep 600"])
    if not _missing():
        inside = subprocess.Popen(["unshare", "--net", "sh", "-c", "iptables -N DEMOCRAI_OS_$$_A; exec sleep 600"])
        group = cgroup_mount() / f"democrai_os_sandbox_{inside.pid}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(inside.pid))
    Path(os.environ["HELD"]).touch()
    threading.Event().wait(600)
