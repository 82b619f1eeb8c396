"""Decisions reach the packet filter: on the node where they are made, and on the others through the stream."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernel.netlab import Lab, cgroup_mount, needs_netlab
from tests.services import places
from tests.services.redis import RedisServer

SCRIPT = Path(__file__).with_name("node.py")
LONGEST = 30
"""Timeout in seconds for a decision; polling alone would take twice as long."""


class Node:
    """A process of ``node.py``."""

    def __init__(self, lab, folder, database, url):
        for name in ("data", "state", "runtime"):
            (folder / name).mkdir(mode=0o700, parents=True)
        self.process = lab.inside.popen(
            [sys.executable, str(SCRIPT), str(folder), database, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{self.process.pid}")

    def read(self):
        line = self.process.stdout.readline()
        assert line, "the node has ended"
        return line.strip()

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.read()

    def comes_to(self, host, port, outcome):
        """Wait until a connection has this outcome."""
        assert float(self.ask("until", host, port, outcome, LONGEST)) <= LONGEST

    def stop(self):
        self.process.stdin.write("stop\n")
        assert self.process.wait(30) == 0
        self.process.stdin.close()
        self.process.stdout.close()


@needs_netlab
def test_a_decision_on_one_node_is_in_force_in_the_kernel_of_both():
    """An approval permits, a revocation refuses and ends open connections, without waiting for the next poll."""
    with Lab() as lab, tempfile.TemporaryDirectory(dir=places.SHORT, prefix="nodes-") as folder:
        base = Path(folder)
        (base / "redis").mkdir()
        with lab.inside.entered():
            redis = RedisServer(base / "redis").start()
        try:
            tell(lab, base, redis.url)
        finally:
            with lab.inside.entered():
                redis.stop()


def tell(lab, base, url):
    from democrai_sandbox.access.store import open_store

    database = f"sqlite:///{base}/access.db"
    open_store(database).close()
    place = lab.world.v4, lab.world.serve("tcp", lab.world.v4).port
    here, there = Node(lab, base / "here", database, url), Node(lab, base / "there", database, url)
    assert [here.read(), there.read()] == ["ready", "ready"]
    assert [node.ask("tcp", *place) for node in (here, there)] == ["ConnectionRefusedError"] * 2
    assert here.ask("approve", f"{place[0]}:{place[1]}") == "ok"
    for node in (here, there):
        node.comes_to(*place, "ok")
    assert there.ask("keep", *place) == "ok"
    assert here.ask("revoke") == "ok"
    for node in (here, there):
        node.comes_to(*place, "ConnectionRefusedError")
    assert there.ask("send") in {"ConnectionResetError", "BrokenPipeError", "closed"}
    here.stop()
    there.stop()
    left = [line for line in lab.inside.rules().splitlines() if "DEMOCRAI" in line]
    assert not left
