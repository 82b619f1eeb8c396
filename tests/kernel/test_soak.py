"""Two hundred swaps under a load of connections, with kills of helpers and of applications; nothing is left."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.kernel.netlab import Lab, cgroup_mount, needs_netlab, wait_until

SWAPS = 200
ROUND = 25
"""Swaps between two kills."""


class Application:
    """A process of ``soak_application.py``."""

    def __init__(self, lab, folder, ports):
        self.folders = [folder / name for name in ("data", "state")]
        for each in self.folders:
            each.mkdir(mode=0o700, exist_ok=True)
        script = Path(__file__).with_name("soak_application.py")
        self.process = lab.inside.popen(
            [sys.executable, str(script), *map(str, self.folders), lab.world.v4, *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self.read().startswith("ready")
        self.pid = self.process.pid
        self.cgroup = lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{self.pid}")

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the application has ended"
        return line.strip()

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        return self.read()

    def kill(self):
        self.process.kill()
        self.process.wait(30)
        self._close()

    def stop(self):
        counts = ast.literal_eval(self.ask("stop"))
        assert self.process.wait(30) == 0
        self._close()
        return counts

    def _close(self):
        self.process.stdin.close()
        self.process.stdout.close()


def is_clean(lab, application):
    files = [file for folder in application.folders for file in folder.glob(f"*_{application.pid}.*")]
    chains = [family for family in ("ipv4", "ipv6") if f"_{application.pid}_" in lab.inside.rules(family)]
    return not files and not chains and not application.cgroup.exists()


@needs_netlab
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_swaps_under_load_with_kills_leave_nothing_behind():
    """What is permitted never fails, what is forbidden never passes, and at the end there is no trace of either."""
    # A short name: below it there is a socket, whose path has to fit into 108 bytes.
    with Lab() as lab, tempfile.TemporaryDirectory(dir="/tmp", prefix="soak-") as folder:
        tmp_path = Path(folder)
        ports = [lab.world.serve("tcp", lab.world.v4).port for _ in range(3)]
        one, other = Application(lab, tmp_path, ports), Application(lab, tmp_path, ports)
        gone, counted = [], []
        for number in range(1, SWAPS // 2 + 1):
            assert [one.ask("swap"), other.ask("swap")] == ["ok", "ok"]
            if number % ROUND == 0:
                # In turns: the helper dies, which changes nothing for the packets; then an application does.
                if number % (2 * ROUND):
                    helper = int(one.ask("helper"))
                    os.kill(helper, signal.SIGKILL)
                else:
                    one.kill()
                    gone.append(one)
                    wait_until(lambda: is_clean(lab, gone[-1]), "nothing of the killed application")
                    one = Application(lab, tmp_path, ports)
        for application in (one, other):
            counted.append(application.stop())
            wait_until(lambda: is_clean(lab, application), "nothing of the application that stopped")
        assert all(set(counts) <= {"always ok", "never ConnectionRefusedError"} for counts in counted), counted
        assert counted[-1]["always ok"] > 100, "the one that was never killed had a load all the time"
        left = [
            line for family in ("ipv4", "ipv6") for line in lab.inside.rules(family).splitlines() if "DEMOCRAI" in line
        ]
        assert not left
        assert not any(file for folder in one.folders for file in folder.iterdir())
