"""Decisions reach the packet filter: on the node where they are made, and on the others through the stream."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernel.netlab import Lab, cgroup_mount, needs_netlab
from tests.services.redis import RedisServer

SCRIPT = Path(__file__).with_name("node.py")
SOON = 1.0
"""Seconds in which a decision has to be in force here, and, with the way through the stream, elsewhere."""


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

    def takes(self, host, port, outcome):
        """Return after how many seconds a connection comes out like this."""
        return float(self.ask("until", host, port, outcome, 20))

    def stop(self):
        self.process.stdin.write("stop\n")
        assert self.process.wait(30) == 0
        self.process.stdin.close()
        self.process.stdout.close()


@needs_netlab
def test_a_decision_on_one_node_is_in_force_in_the_kernel_of_both():
    """An approval opens, a revocation closes and ends what was open; each within a second of being made."""
    with Lab() as lab, tempfile.TemporaryDirectory(dir="/tmp", prefix="nodes-") as folder:
        base = Path(folder)
        (base / "redis").mkdir()
        with lab.inside.entered():
            redis = RedisServer(base / "redis").start()
        try:
            tell(lab, base, redis.url)
        finally:
            with lab.inside.entered():
                redis.stop()


def one_decision(here, there, place):
    """Approve and revoke at one node; return the longer time that it took at each of them."""
    assert here.ask("approve", f"{place[0]}:{place[1]}") == "ok"
    opened = [node.takes(*place, "ok") for node in (here, there)]
    assert there.ask("keep", *place) == "ok"
    assert here.ask("revoke") == "ok"
    closed = [node.takes(*place, "ConnectionRefusedError") for node in (here, there)]
    assert there.ask("send") in {"ConnectionResetError", "BrokenPipeError", "closed"}
    return map(max, opened, closed)


def tell(lab, base, url):
    from democrai_sandbox.access.store import open_store

    database = f"sqlite:///{base}/access.db"
    open_store(database).close()
    place = lab.world.v4, lab.world.serve("tcp", lab.world.v4).port
    here, there = Node(lab, base / "here", database, url), Node(lab, base / "there", database, url)
    assert [here.read(), there.read()] == ["ready", "ready"]
    assert [node.ask("tcp", *place) for node in (here, there)] == ["ConnectionRefusedError"] * 2
    for _ in range(5):  # again where the machine was busy with other things
        here_took, there_took = one_decision(here, there, place)
        if here_took < SOON and there_took < 2 * SOON:
            break
    assert here_took < SOON
    assert there_took < 2 * SOON
    here.stop()
    there.stop()
    left = [line for line in lab.inside.rules().splitlines() if "DEMOCRAI" in line]
    assert not left
