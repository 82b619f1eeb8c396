"""A spawn server that is killed or stopped: its standby takes over, and the confinement stays complete."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.spawn import LandlockPlan, SpawnServer
from tests.kernel.spawn.programs import application, is_running, order, shell, until

_READ_FILE, _READ_DIR, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
_LOOKING = _READ_FILE | _READ_DIR | _EXECUTE


def test_a_killed_server_is_replaced_as_often_as_it_is_killed(own_server):
    """Each time by another process, over the same link, and again with a standby."""
    own_server.stats()
    seen = {own_server.pid, own_server.standby}
    for _ in range(3):
        expected = own_server.standby
        os.kill(own_server.pid, signal.SIGKILL)
        until(lambda: own_server.answers(1))
        assert own_server.pid == expected
        assert own_server.standby not in seen
        assert own_server.alive
        assert shell(own_server, "exit 4").returncode == 4
        seen.add(own_server.standby)


def test_a_request_to_a_server_that_is_gone_is_answered_by_the_next(own_server):
    """Sent but unread requests wait in the link."""
    own_server.stats()
    os.kill(own_server.standby, signal.SIGSTOP)
    os.kill(own_server.pid, signal.SIGKILL)
    until(lambda: not is_running(own_server.pid))
    assert not own_server.answers(0.2)
    os.kill(own_server.standby, signal.SIGCONT)
    assert shell(own_server, "exit 4").returncode == 4


def test_a_killed_standby_is_replaced(own_server):
    own_server.stats()
    server, standby = own_server.pid, own_server.standby
    os.kill(standby, signal.SIGKILL)
    until(lambda: own_server.stats()["standby"] != standby)
    assert own_server.pid == server
    os.kill(server, signal.SIGKILL)
    until(lambda: own_server.answers(1))
    assert own_server.pid not in {server, standby}


def test_a_stopped_server_goes_on(own_server):
    """The standby notices it and continues it; a request that arrived meanwhile is answered."""
    os.kill(own_server.pid, signal.SIGSTOP)
    assert shell(own_server, "exit 4").returncode == 4


@pytest.mark.skipif(landlock_support().abi < 1, reason="needs Landlock")
def test_the_baseline_is_that_of_the_next_server_as_well(own_server, tmp_path):
    """No child is ever less confined than the application, under the standby too."""
    shut, open_ = tmp_path / "shut", tmp_path / "open"
    for folder in (shut, open_):
        folder.mkdir()
        (folder / "file").write_text("text")
    system = [(path, _LOOKING) for path in ("/usr", "/bin", "/lib", "/lib64", "/etc", "/dev") if os.path.exists(path)]
    own_server.baseline(LandlockPlan(_LOOKING, 0, 0, [*system, (str(open_), _LOOKING)], []))
    for _ in range(2):
        assert own_server.stats()["baseline"]
        assert shell(own_server, f"cat {open_}/file").returncode == 0
        assert shell(own_server, f"cat {shut}/file").returncode != 0
        os.kill(own_server.pid, signal.SIGKILL)
        until(lambda: own_server.answers(1))


def test_stopping_ends_the_standby_too_also_after_it_took_over():
    server = SpawnServer.start()
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: server.answers(1))
    pids = (server.pid, server.standby)
    child = server.spawn(order("/bin/sleep", "300"))
    server.stop()
    child.close()
    assert not server.alive
    assert not is_running(child.pid)
    until(lambda: not any(map(is_running, pids)))


_APPLICATION = """
import sys
from democrai_sandbox.kernel.spawn import SpawnServer
server = SpawnServer.start()
server.stats()
print(server.pid, server.standby, flush=True)
sys.stdin.read()
"""


def test_the_end_of_the_application_ends_both():
    app = application(_APPLICATION)
    pids = [int(word) for word in app.stdout.readline().split()]
    app.kill()
    app.wait()
    app.stdout.close()
    app.stdin.close()
    until(lambda: not any(map(is_running, pids)))


def test_a_server_that_does_not_answer_is_told_in_the_time_that_was_given(own_server):
    own_server.stats()
    os.kill(own_server.standby, signal.SIGSTOP)
    os.kill(own_server.pid, signal.SIGSTOP)
    begin = time.monotonic()
    assert not own_server.answers(0.2)
    assert time.monotonic() - begin < 10  # the usual timeout is longer
    os.kill(own_server.pid, signal.SIGCONT)
    os.kill(own_server.standby, signal.SIGCONT)
    assert own_server.answers(30)


@pytest.fixture
def helpers():
    """Two sockets to silent helpers, each with the child's end."""
    pairs = [socket.socketpair() for _ in range(2)]
    yield pairs
    for end in (end for pair in pairs for end in pair):
        end.close()


def test_a_helper_that_says_nothing_keeps_no_other_program_from_its_start(own_server, helpers):
    """Each start waits separately; then the program runs, or is reported as failed at that step."""
    (first, first_end), (second, second_end) = helpers
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(shell, own_server, "exit 3", cgroup=first_end.fileno())
        refused = threads.submit(shell, own_server, "exit 3", cgroup=second_end.fileno())
        assert (first.recv(1), second.recv(1)) == (b"0", b"0")  # both have started
        for _ in range(3):
            assert shell(own_server, "exit 4").returncode == 4
        assert not running.done()
        first.send(b"1")
        second.send(b"0")
        assert running.result().returncode == 3
        with pytest.raises(SpawnFailed, match="cgroup"):
            refused.result()
    until(lambda: own_server.stats()["kept"] + own_server.stats()["running"] == 0)


def test_a_program_that_is_killed_while_it_waits_for_the_helper_is_not_waited_for(own_server, helpers):
    (helper, end), _ = helpers
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(shell, own_server, "exit 3", cgroup=end.fileno())
        assert helper.recv(1) == b"0"
        [pid] = set(_children(own_server.pid)) - {own_server.stats()["standby"]}
        os.kill(pid, signal.SIGKILL)
        assert waiting.result().returncode == -signal.SIGKILL
    until(lambda: own_server.stats()["kept"] == 0)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]
