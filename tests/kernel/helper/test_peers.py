"""Permitted clients of the helper, and permitted targets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper import processes
from democrai_sandbox.kernel.helper.processes import Handle, ProcessFamily, cgroup_of, facts, owners
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.helper_process import SECONDS, Stage, needs_root, until


@pytest.fixture
def stage():
    with Stage("nobody") as found:
        found.helper()
        yield found


def _cgroup_root():
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line and line.split()[3] == "/":
            return Path(line.split()[4])
    return None


def _in_child(stage, act="ping", **options):
    return stage.application.run(f"result = in_child(lambda: ask({str(stage.socket)!r}, {act!r}), **{options!r})")


@needs_root
def test_another_users_process_is_refused(stage):
    """Root is not the application's user: it is refused before any of its bytes are read."""
    root = stage.another("root")
    answer = stage.ask("ping", application=root)
    assert answer["reason"] == "foreign_uid" and str(stage.uid) in answer["fix"]


@needs_root
def test_a_process_of_the_same_user_that_does_not_descend_is_refused(stage):
    """Being the same user is not enough."""
    answer = stage.ask("ping", application=stage.another())
    assert answer["reason"] == "not_a_descendant"


@needs_root
def test_descendants_may_ask(stage):
    """A child and a grandchild with living parents are accepted."""
    assert _in_child(stage)["ok"]
    assert _in_child(stage, generations=2)["ok"]
    assert _in_child(stage, generations=4)["ok"]


@needs_root
def test_an_orphan_is_a_stranger_unless_the_application_adopts_orphans(stage):
    """A double fork breaks the ancestry; a subreaper keeps it."""
    assert _in_child(stage, generations=2, orphaned=True)["reason"] == "not_a_descendant"
    stage.application.run("libc.prctl(36, 1, 0, 0, 0); result = None")
    assert _in_child(stage, generations=2, orphaned=True)["ok"]


@needs_root
def test_a_process_cannot_name_its_way_into_the_family(stage):
    """A process name that looks like the rest of the kernel's line has no effect, for strangers and descendants."""
    stranger = stage.another()
    stranger.run(f"rename(') R {stage.application.pid} 1'); result = None")
    assert stage.ask("ping", application=stranger)["reason"] == "not_a_descendant"
    stage.application.run("rename('a) R 1 1'); result = None")
    assert stage.ask("ping")["ok"] and _in_child(stage, generations=3)["ok"]


@needs_root
def test_a_connection_is_worth_nothing_once_its_maker_has_ended(stage):
    """A grandchild that continues a dead process's connection is not answered as that process."""
    code = f"""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            connection = connect({str(stage.socket)!r})
            socket.send_fds(theirs, [b"x"], [connection.fileno()])
            os._exit(0)
        os.waitpid(pid, 0)
        _, descriptors, _, _ = socket.recv_fds(ours, 10, 1)
        result = "connected"
    """
    use = """
        connection = socket.socket(fileno=descriptors[0])
        connection.settimeout(20)
        try:
            connection.sendall(b'{"action": "ping"}\\n')
        except OSError:
            pass
        result = answer_of(connection)
    """
    assert stage.application.run(code) == "connected"
    assert stage.application.run(use)["reason"] == "gone"
    # A connection whose creator was dead before the helper checked it.
    helper = stage._helpers[0]
    os.kill(helper.pid, signal.SIGSTOP)
    try:
        until(lambda: _state(helper.pid) == "T", what="the stop")
        assert stage.application.run(code) == "connected"
    finally:
        os.kill(helper.pid, signal.SIGCONT)
    assert stage.application.run(use)["reason"] == "gone"
    assert stage.ask("ping")["ok"]


def _state(pid):
    """Return the state letter of a process; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


@needs_root
def test_a_target_is_asked_the_same_questions(stage):
    """A target must belong to the user, descend from the application, be a process, and be alive."""
    stranger, root = stage.another(), stage.another("root")
    assert stage.ask("join", pid=stranger.pid)["reason"] == "not_a_descendant"
    assert stage.ask("join", pid=root.pid)["reason"] == "foreign_uid"
    assert stage.ask("join", pid=1)["reason"] == "foreign_uid"
    assert stage.ask("join", pid=4194303)["reason"] == "gone"
    thread = stage.application.run("""
        released = threading.Event()
        worker = threading.Thread(target=released.wait)
        worker.start()
        result = worker.native_id
    """)
    assert stage.ask("join", pid=thread)["reason"] == "gone"
    stage.application.run("released.set(); worker.join(); result = None")
    for odd in (0, -1, True, "1", None, 1.5, [1], 2**70):
        assert stage.ask("join", pid=odd)["reason"] in {"bad_request", "gone"}, odd
    assert stage.ask("join")["reason"] == "bad_request"
    child = stage.application.run("pid = os.fork()\nif pid == 0: time.sleep(60); os._exit(0)\nresult = pid")
    assert stage.ask("join", pid=child)["ok"]
    stage.application.run("os.kill(pid, 9); result = None")
    until(lambda: _state(child) == "Z", what="a zombie")
    assert stage.ask("join", pid=child)["reason"] == "gone"
    stage.write_policy()
    assert stage.ask("apply", pid=stranger.pid)["reason"] == "not_a_descendant"
    assert [call["pid"] for call in stage.calls("join")] == [child] and not stage.calls("apply")


@contextmanager
def _cgroups(pid):
    top = _cgroup_root() / f"democrai_os_sandbox_{pid}"
    folders = [top, top / "set_1", top / "set_1" / "child_1"]
    for folder in folders:
        folder.mkdir()
    try:
        yield folders[0], folders[2]
    finally:
        for folder in reversed(folders):
            for member in (folder / "cgroup.procs").read_text().split():
                (_cgroup_root() / "cgroup.procs").write_text(member)
            # A process that /proc shows as dead may still be ending.
            until(lambda folder=folder: "populated 0" in (folder / "cgroup.events").read_text(), what="an empty group")
            folder.rmdir()


@needs_root
@pytest.mark.skipif(_cgroup_root() is None, reason="no cgroup2 is mounted here")
def test_membership_counts_for_an_orphan_and_against_a_confined_child(stage):
    """In the application's cgroup an orphan is accepted; from a child's cgroup, requests and moves are refused."""
    orphan = """
        reading, writing = os.pipe()
        answers, answering = os.pipe()
        if os.fork() == 0:
            first = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == first:
                time.sleep(0.01)
            os.write(answering, str(os.getpid()).encode())
            while os.read(reading, 1) == b"?":
                os.write(answering, json.dumps(ask(PATH, "ping")).encode())
            os._exit(0)
        os.wait()
        result = int(os.read(answers, 100))
    """.replace("PATH", repr(str(stage.socket)))
    again = "os.write(writing, b'?'); result = json.loads(os.read(answers, 65536))"
    with _cgroups(stage.application.pid) as (own, child):
        pid = stage.application.run(orphan)
        try:
            assert stage.application.run(again)["reason"] == "not_a_descendant"
            (own / "cgroup.procs").write_text(str(pid))
            assert stage.application.run(again)["ok"]
            (child / "cgroup.procs").write_text(str(pid))
            assert stage.application.run(again)["reason"] == "confined"
            assert stage.ask("join", pid=pid)["reason"] == "confined"
        finally:
            os.kill(pid, signal.SIGKILL)
            until(lambda: _state(pid) in ("", "Z"), what="the orphan's end")


def test_a_handle_tells_a_dead_process_from_one_that_has_its_number():
    """With a descriptor, or by the start time, an ended process is detected even if its id is reused."""
    for pidfds in (True, False):
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            with Handle.of(sleeper.pid, pidfds=pidfds) as handle:
                assert (handle.descriptor is None) is not pidfds and handle.alive()
                sleeper.kill()
                until(lambda: not handle.alive(), what="the end")  # still a zombie
                with pytest.raises(RequestRefused, match="gone"):
                    handle.check()
                sleeper.wait(SECONDS)
                assert not handle.alive()
        finally:
            sleeper.kill()
            sleeper.wait(SECONDS)
    reused = Handle(os.getpid(), None, facts(os.getpid()).start_time - 1)
    assert not reused.alive()
    with pytest.raises(RequestRefused, match="gone"):
        Handle.of(sleeper.pid)


def test_a_family_whose_parents_number_was_taken_over_has_no_descendants():
    """The application is identified by its process id and start time."""
    own = facts(os.getpid())
    child = subprocess.Popen(["sleep", "60"])
    try:
        user = os.getuid()
        with ProcessFamily(Handle.of(os.getpid()), user).target(child.pid) as handle:
            assert handle.pid == child.pid
        taken_over = Handle(os.getpid(), None, own.start_time - 1)
        with pytest.raises(RequestRefused, match="not_a_descendant"), ProcessFamily(taken_over, user).target(child.pid):
            pass
        with pytest.raises(RequestRefused, match="gone"), ProcessFamily(Handle.of(os.getpid()), user).target(child.pid):
            child.kill()
            child.wait(SECONDS)
    finally:
        child.kill()
        child.wait(SECONDS)


def test_on_a_kernel_without_descriptors_of_peers_the_number_is_looked_at(monkeypatch):
    """Without a descriptor, the client is identified by its id and start time, with the same checks."""
    monkeypatch.setattr(processes, "_peer_descriptor", lambda *_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        family = ProcessFamily(Handle.of(os.getpid()), os.getuid())
        with family.client(ours) as client:
            assert client.pid == os.getpid() and family.is_parent(client)
        with pytest.raises(RequestRefused, match="foreign_uid"):
            ProcessFamily(Handle.of(os.getpid()), os.getuid() + 1).client(ours)
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            stranger = ProcessFamily(Handle.of(sleeper.pid), os.getuid())
            for _ in range(2):  # the second time from the cache
                with pytest.raises(RequestRefused, match="not_a_descendant"):
                    stranger.client(ours)
        finally:
            sleeper.kill()
            sleeper.wait(SECONDS)


def test_facts_come_from_behind_the_last_parenthesis():
    """Names that a process chooses do not shift the fields."""
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) R 1 (1) Z', 0, 0, 0); print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert b"a) R 1 (1) Z" in Path(f"/proc/{child.pid}/stat").read_bytes()
        found = facts(child.pid)
        assert found.parent == os.getpid() and not found.dead and found.start_time >= facts(os.getpid()).start_time
        assert set(owners(child.pid).users) == {os.getuid()} and cgroup_of(child.pid) == cgroup_of(os.getpid())
    finally:
        child.communicate(timeout=SECONDS)
