"""Lifetimes of children, their orphans, the server and the application."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

import pytest

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.spawn import SpawnServer
from tests.kernel.spawn.programs import (
    PATIENCE,
    PYTHON,
    SHELL,
    application,
    descriptors,
    exists,
    is_running,
    needs_root_to_look,
    order,
    shell,
    until,
)

_KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
_SLEEP = ("-c", "exec sleep 300")


def _wait(child):
    ready, _, _ = select.select([child.ended], [], [], PATIENCE)
    assert ready, "the child did not end"


def _state(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()


def _written(path):
    return until(lambda: path.exists() and path.read_text().strip())


def test_the_lifeline_is_readable_once_the_program_has_ended(server):
    child = server.spawn(order(SHELL, *_SLEEP))
    assert select.select([child.ended], [], [], 0.2)[0] == []
    child.signal_group(signal.SIGTERM)
    _wait(child)
    assert child.collect() == -signal.SIGTERM
    assert child.collect() == -signal.SIGTERM


def test_a_program_that_has_ended_keeps_its_number_until_it_is_collected(server):
    child = server.spawn(order(SHELL, "-c", "exit 5"))
    _wait(child)
    assert _state(child.pid) == "Z"
    # Many others start and end meanwhile.
    pids = set()
    for _ in range(20):
        other = server.spawn(order("/bin/true"))
        pids.add(other.pid)
        other.collect()
    assert child.pid not in pids
    assert _state(child.pid) == "Z"
    assert child.collect() == 5
    until(lambda: not exists(child.pid))


def test_signalling_what_has_ended_reaches_nobody(server):
    child = server.spawn(order("/bin/true"))
    _wait(child)
    child.signal_group(signal.SIGKILL)
    assert child.collect() == 0
    child.signal_group(signal.SIGKILL)
    child.close()


def test_closing_ends_the_program_and_its_group(server, tmp_path):
    note = tmp_path / "pid"
    child = server.spawn(order(SHELL, "-c", f"sleep 300 & echo $! > {note}; wait"))
    other = int(_written(note))
    child.close()
    until(lambda: not exists(child.pid) and not is_running(other))


def test_what_the_program_leaves_in_its_group_ends_with_it(server, tmp_path):
    note = tmp_path / "pid"
    child = server.spawn(order(SHELL, "-c", f"sleep 300 & echo $! > {note}; exit 0"))
    assert child.collect() == 0
    until(lambda: not is_running(int(note.read_text())))


_OTHER_GROUP = """
import os, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, 0)
        open(sys.argv[1], "w").write("%d %d" % (os.getpid(), os.getppid()))
    time.sleep(300)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


def test_what_it_leaves_in_other_groups_of_its_session_ends_too(server, tmp_path):
    note = tmp_path / "pids"
    child = server.spawn(order(PYTHON, "-I", "-S", "-c", _OTHER_GROUP, str(note)))
    assert child.collect() == 0
    for pid in map(int, note.read_text().split()):
        until(lambda pid=pid: not exists(pid))


def test_the_wall_time_ends_it_and_says_so(server, tmp_path):
    for seconds in (0.5, 5.0, 20.0):  # longer if a shell has not started in that time
        note = tmp_path / f"pid-{seconds}"
        begin = time.monotonic()
        child = server.spawn(order(SHELL, "-c", f"sleep 300 & echo $! > {note}; wait", wall_seconds=seconds))
        assert child.collect() == -signal.SIGKILL
        assert child.timed_out
        assert time.monotonic() - begin >= seconds
        if note.exists() and note.read_text():
            break
    until(lambda: not is_running(int(note.read_text())))


def test_one_that_ends_in_time_is_not_said_to_be_late(server):
    child = server.spawn(order("/bin/true", wall_seconds=60))
    assert child.collect() == 0
    assert not child.timed_out


def test_many_children_at_once(server):
    children, errors = [], []

    def start():
        try:
            for _ in range(8):
                children.append(server.spawn(order(SHELL, "-c", "read x; exit $x", stdin=reader)))
        except BaseException as error:
            errors.append(error)

    reader, writer = os.pipe()
    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors
    assert len({child.pid for child in children}) == 64
    assert server.stats()["running"] == 64
    os.close(reader)
    os.close(writer)  # ends their input: each `read` fails, and `exit` without a number ends them
    for child in children:
        assert child.collect() >= 0
    until(lambda: server.stats()["kept"] == 0)


@needs_root_to_look
def test_descriptors_of_the_server_do_not_grow(server):
    shell(server, "true")
    until(lambda: server.stats()["kept"] == 0)
    before = descriptors(server)
    for _ in range(8):
        shell(server, "true")
        with pytest.raises(FileNotFoundError):
            shell(server, "true", cwd="/nowhere")
    until(lambda: descriptors(server) == before)


def test_when_the_server_is_killed_its_children_end(own_server):
    children = [own_server.spawn(order(SHELL, *_SLEEP)) for _ in range(3)]
    os.kill(own_server.pid, signal.SIGKILL)
    for child in children:
        _wait(child)
        with pytest.raises(SpawnFailed, match=str(child.pid)):
            child.collect()
        until(lambda child=child: not is_running(child.pid))
    until(lambda: own_server.answers(1))
    assert shell(own_server, "exit 4").returncode == 4


def test_what_children_of_a_killed_server_have_started_ends_when_they_are_collected(own_server, tmp_path):
    note = tmp_path / "pid"
    child = own_server.spawn(order(SHELL, "-c", f"sleep 300 & echo $! > {note}; wait"))
    other = int(_written(note))
    os.kill(own_server.pid, signal.SIGKILL)
    try:
        with pytest.raises(SpawnFailed):
            child.collect()
        if _KERNEL >= (6, 9):  # before, a process descriptor reaches the leader only, which has ended
            until(lambda: not is_running(other))
    finally:
        if is_running(other):
            os.kill(other, signal.SIGKILL)


def test_stopping_the_server_ends_everything(tmp_path):
    server = SpawnServer.start()
    note = tmp_path / "pid"
    child = server.spawn(order(PYTHON, "-I", "-S", "-c", _DAEMON, str(note)))
    daemon = int(_written(note))
    server.stop()
    assert not server.alive
    assert not is_running(daemon)
    assert not is_running(child.pid)
    with pytest.raises(SpawnFailed):
        child.collect()
    server.stop()


def test_signals_for_a_whole_service_do_not_end_the_server(own_server):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(own_server.pid, number)
    assert shell(own_server, "exit 4").returncode == 4


# A daemon: another session, and its parent has ended.
_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
time.sleep(300)
"""

_APPLICATION = """
import sys, time
from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder
server = SpawnServer.start()
sleeping = server.spawn(SpawnOrder("/bin/sleep", ("sleep", "300"), {}, "/"))
daemon = server.spawn(SpawnOrder(sys.argv[1], ("python", "-I", "-S", "-c", sys.argv[2], sys.argv[3]), {}, "/"))
print(server.pid, sleeping.pid, daemon.pid, flush=True)
sys.stdin.read() if sys.argv[4] == "end" else time.sleep(300)
"""


@pytest.mark.parametrize("how", ["killed", "end"])
def test_when_the_application_is_gone_so_are_server_children_and_daemons(tmp_path, how):
    note = tmp_path / "pid"
    with application(_APPLICATION, PYTHON, _DAEMON, str(note), how) as app:
        pids = [int(text) for text in app.stdout.readline().split()]
        pids.append(int(_written(note)))
        assert all(map(is_running, pids))
        if how == "killed":
            app.kill()
        else:
            app.stdin.close()
        app.wait(PATIENCE)
    for pid in pids:
        until(lambda pid=pid: not is_running(pid))


_FORKING = """
import os, sys, time
from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder
server = SpawnServer.start()
child = server.spawn(SpawnOrder("/bin/sleep", ("sleep", "300"), {}, "/"))
fork = os.fork()
if fork == 0:
    time.sleep(300)
print(server.pid, child.pid, fork, flush=True)
sys.stdin.readline()
child.close()  # the fork still holds the lifeline
print("closed", flush=True)
time.sleep(300)
"""


def test_a_fork_of_the_application_keeps_nothing_alive():
    with application(_FORKING) as app:
        server, child, fork = map(int, app.stdout.readline().split())
        try:
            app.stdin.write("\n")
            app.stdin.flush()
            assert app.stdout.readline() == "closed\n"
            until(lambda: not exists(child))
            app.kill()
            app.wait(PATIENCE)
            until(lambda: not is_running(server))
        finally:
            app.kill()
            os.kill(fork, signal.SIGKILL)
