"""Many swaps under a load of connections, with kills of helpers and of applications; nothing is left."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.kernel.netlab import cgroup_mount, needs_netlab, shared_lab, wait_until
from tests.services import places

ROUND = 4
"""Swaps between two kills."""
ROUNDS = 4
LOAD = 20
"""Minimum number of tried connections of each kind."""


class Application:
    """Process of ``soak_application.py``."""

    def __init__(self, lab, folder, ports):
        self.folders = [folder / name for name in ("data", "state")]
        for each in self.folders:
            each.mkdir(mode=0o700, exist_ok=True)
        script = Path(__file__).with_name("soak_application.py")
        words = [*self.folders, lab.world.v4, *ports]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = lab.inside.start(script.read_text(), *words, **pipes)
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
    if files or application.cgroup.exists():  # reading the rules needs extra processes
        return False
    return not any(f"_{application.pid}_" in lab.inside.rules(family) for family in ("ipv4", "ipv6"))


@needs_netlab
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_swaps_under_load_with_kills_leave_nothing_behind():
    """Permitted connections never fail, forbidden ones never pass, and nothing is left at the end."""
    # A short name, because the path of the socket below it is limited to 108 bytes.
    with shared_lab() as lab, tempfile.TemporaryDirectory(dir=places.SHORT, prefix="soak-") as folder:
        tmp_path = Path(folder)
        ports = [lab.world.serve("tcp", lab.world.v4).port for _ in range(3)]
        one, other = Application(lab, tmp_path, ports), Application(lab, tmp_path, ports)
        gone, counted = [], []
        for number in range(1, ROUNDS * ROUND + 1):
            assert [one.ask("swap"), other.ask("swap")] == ["ok", "ok"]
            if number % ROUND == 0:
                # Alternately: kill the helper, which does not affect packets; then kill an application.
                if number % (2 * ROUND):
                    helper = int(one.ask("helper"))
                    os.kill(helper, signal.SIGKILL)
                else:
                    assert one.ask(f"load {LOAD}") == "ok"
                    one.kill()
                    gone.append(one)
                    wait_until(lambda: is_clean(lab, gone[-1]), "nothing of the killed application")
                    one = Application(lab, tmp_path, ports)
        for application in (one, other):
            assert application.ask(f"load {LOAD}") == "ok"
            counted.append(application.stop())
            wait_until(lambda: is_clean(lab, application), "nothing of the application that stopped")
        assert all(set(counts) <= {"always ok", "never ConnectionRefusedError"} for counts in counted), counted
        assert all(min(counts.values()) >= LOAD for counts in counted), counted
        left = [
            line for family in ("ipv4", "ipv6") for line in lab.inside.rules(family).splitlines() if "DEMOCRAI" in line
        ]
        assert not left
        assert not any(file for folder in one.folders for file in folder.iterdir())
