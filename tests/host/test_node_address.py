"""File with the address of a node: valid while it runs, and known to be stale afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

from democrai_sandbox.host.directories import ADDRESS_FILE, read_node_address

NODE = """
import sys
from democrai_sandbox.host.directories import announce_node_address
with announce_node_address(sys.argv[1], sys.argv[2]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def started(folder, url):
    """Process that announces its address until its input ends."""
    command = [sys.executable, "-c", NODE, str(folder), url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process):
    process.communicate(timeout=60)
    return process.returncode


def test_it_is_there_while_the_node_runs(tmp_path):
    """It contains the address, only its owner can read it, and an orderly end removes it."""
    assert read_node_address(str(tmp_path)) is None
    node = started(tmp_path, "http://127.0.0.1:8080")
    assert read_node_address(str(tmp_path)) == ("http://127.0.0.1:8080", True)
    assert read_node_address(str(tmp_path)) == ("http://127.0.0.1:8080", True)  # reading does not release it
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
    assert ended(node) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_its_place_holds_nobody_up(tmp_path):
    """A path that is not a regular file is ignored without blocking."""
    os.mkfifo(tmp_path / ADDRESS_FILE)
    assert read_node_address(str(tmp_path)) == ("", False)


def test_one_that_was_left_behind(tmp_path):
    """After a kill it is known to be stale; the next node replaces it, and an older node does not remove it."""
    killed = started(tmp_path, "http://127.0.0.1:1")
    killed.kill()
    ended(killed)
    assert read_node_address(str(tmp_path)) == ("http://127.0.0.1:1", False)
    older = started(tmp_path, "http://127.0.0.1:2")
    younger = started(tmp_path, "http://127.0.0.1:3")
    assert ended(older) == 0
    assert read_node_address(str(tmp_path)) == ("http://127.0.0.1:3", True)
    assert ended(younger) == 0
    assert list(tmp_path.iterdir()) == []
