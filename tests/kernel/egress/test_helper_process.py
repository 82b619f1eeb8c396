"""Start and restart of the helper: the way, the arguments, and the errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.egress import helper_process as elevating
from democrai_sandbox.kernel.egress.helper_client import HelperClient
from democrai_sandbox.kernel.egress.helper_process import HelperStarter, RunningHelper, Way, elevation
from democrai_sandbox.kernel.helper.main import parse
from tests.kernel import forked_programs

SOURCES = str(Path(__file__).parents[3] / "src")
LAST_LINE = "sudo: a password is required"
"""Output of a program before it ends."""

_FAKE = """
import json, os, signal, socket, sys
path = sys.argv[1]
facts = (os.getpid(), os.getsid(0), json.dumps(dict(os.environ)), os.getcwd(), len(os.listdir("/proc/self/fd")))
print("helper", *facts, file=sys.stderr, flush=True)
try:
    os.unlink(path)
except FileNotFoundError:
    pass
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
while True:
    connection, _ = listener.accept()
    request = json.loads(connection.makefile("rb").readline())
    answer = {"ok": True, "pid": os.getpid(), "version": 1}
    connection.sendall(json.dumps(answer).encode() + b"\\n")
    connection.close()
    if request["action"] == "clear":
        sys.exit(0)
"""


def wait_until(condition, what="the condition"):
    end = time.monotonic() + 30
    while not (value := condition()):
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.01)
    return value


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "s.sock")


@pytest.fixture
def lines():
    return []


@pytest.fixture
def running(path, lines):
    helper = RunningHelper.launch(Way.DIRECT, [sys.executable, "-I", "-S", "-c", _FAKE, path], lines.append)
    helper.await_answer(HelperClient(path), time.monotonic() + 30)
    yield helper
    helper.stop()
    assert not helper.is_kept


def answering(path, other_than=0):
    try:
        pid = HelperClient(path).ping()
    except HelperFailed:
        return 0
    return pid if pid != other_than else 0


def test_it_is_started_in_a_session_of_its_own_with_nothing_of_the_applications(running, lines):
    wait_until(lambda: running.read_log(0.05) or lines, "its first line")
    word, pid, session, rest = lines[0].split(" ", 3)
    assert (word, int(pid)) == ("helper", running.pid)
    assert int(session) != os.getsid(0)
    environment, place, descriptors = rest.rsplit(" ", 2)
    assert set(json.loads(environment)) <= {"PATH", "LANG", "LC_CTYPE"}
    assert place == "/"
    assert int(descriptors) == 4  # the standard three, and the one for counting


def test_a_killed_helper_is_started_again(running, path, lines):
    os.kill(running.pid, signal.SIGKILL)
    running.hurry()
    assert wait_until(lambda: answering(path, running.pid), "another helper")
    wait_until(lambda: running.read_log(0.05) or any("137" in line for line in lines), "the line")
    assert running.is_kept


def test_one_that_is_killed_again_and_again_is_back_at_once_when_it_is_asked_for(running, path):
    started, pid = time.monotonic(), running.pid
    for _ in range(7):  # without the command it would wait for 25 seconds in total
        os.kill(pid, signal.SIGKILL)
        running.hurry()
        pid = wait_until(lambda pid=pid: answering(path, pid), "another helper")
    assert time.monotonic() - started < 20


def processes_of(path):
    """Process ids of the keeper and its standby, found by the path of the socket in their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"egress/keeper.py") for word in words) and os.fsencode(path) in words:
            found.append(int(entry.name))
    return sorted(found)


def standing(path, keeper):
    """The standby of a keeper."""
    (standby,) = wait_until(lambda: [pid for pid in processes_of(path) if pid != keeper and alive(pid)], "a standby")
    return standby


def test_a_killed_keeper_is_replaced_by_its_standby(running, path, lines):
    first, helper = running.keeper_pid, running.pid
    for _ in range(3):
        keeper = running.keeper_pid
        standby = standing(path, keeper)
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda standby=standby: running.keeper_pid == standby, "the standby in its place")
        assert running.is_kept
    assert answering(path) == helper  # it kept running
    standing(path, running.keeper_pid)
    running.read_log()
    assert any(f"keeper {first} " in line for line in lines)


def test_a_helper_that_is_killed_after_its_keeper_is_started_again_once(running, path, lines):
    standby = standing(path, running.keeper_pid)
    os.kill(running.pid, signal.SIGKILL)  # the standby must learn of the next one
    second = wait_until(lambda: answering(path, running.pid), "another helper")
    os.kill(running.keeper_pid, signal.SIGKILL)
    wait_until(lambda: running.keeper_pid == standby, "the standby in its place")
    assert answering(path) == second
    os.kill(second, signal.SIGKILL)
    running.hurry()
    assert wait_until(lambda: answering(path, second), "a third helper")
    running.read_log()
    assert sum(line.startswith("helper ") for line in lines) == 3


def test_a_keeper_and_a_helper_that_are_killed_at_once_are_both_replaced(running, path):
    keeper = running.keeper_pid
    standby = standing(path, keeper)
    os.kill(keeper, signal.SIGKILL)
    os.kill(running.pid, signal.SIGKILL)
    wait_until(lambda: running.keeper_pid == standby, "the standby in its place")
    running.hurry()
    assert wait_until(lambda: answering(path, running.pid), "another helper")


def test_a_killed_standby_is_replaced(running, path):
    keeper = running.keeper_pid
    first = standing(path, keeper)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: first not in processes_of(path) and standing(path, keeper), "another standby")
    assert (running.keeper_pid, running.is_kept) == (keeper, True)


@pytest.mark.parametrize("which", ["keeper", "standby"])
def test_a_stopped_keeper_or_standby_goes_on(running, path, which):
    pid = running.keeper_pid if which == "keeper" else standing(path, running.keeper_pid)
    standing(path, running.keeper_pid)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T", "going on")


def test_without_keeper_and_standby_nothing_keeps_it(running, path):
    standing(path, running.keeper_pid)
    for pid in processes_of(path):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running.is_kept, "noticing it")
    HelperClient(path).clear()


def test_stopping_ends_a_keeper_that_was_a_standby(running, path):
    standby = standing(path, running.keeper_pid)
    os.kill(running.keeper_pid, signal.SIGKILL)
    wait_until(lambda: running.keeper_pid == standby, "the standby in its place")
    running.stop()
    wait_until(lambda: not alive(running.pid) and not processes_of(path), "the end of all")


def test_one_that_was_let_go_stays_away_when_it_ends(running, path):
    running.let_go()
    HelperClient(path).clear()
    running.await_end()
    assert not running.is_kept
    assert answering(path) == 0


def test_stopping_ends_the_helper_and_its_keeper(running, path):
    running.stop()
    wait_until(lambda: not alive(running.pid), "its end")
    assert not running.is_kept
    running.stop()


def test_a_helper_that_ends_before_it_answers_is_told_with_its_own_last_word(path, lines):
    answer = {"ok": False, "reason": "no_iptables", "error": "there is no iptables", "fix": "install it"}
    script = f"import sys; print('first', file=sys.stderr); print({json.dumps(answer)!r}, file=sys.stderr); sys.exit(1)"
    helper = RunningHelper.launch(Way.DIRECT, [sys.executable, "-I", "-S", "-c", script], lines.append)
    with pytest.raises(HelperFailed) as failed:
        helper.await_answer(HelperClient(path), time.monotonic() + 30)
    helper.stop()
    assert (failed.value.reason, failed.value.what, failed.value.fix) == tuple(
        answer[name] for name in ("reason", "error", "fix")
    )
    assert lines[0] == "first"


@pytest.mark.parametrize(("way", "reason"), [(Way.DIRECT, "not_running"), (Way.SUDO, "no_way_up")])
def test_what_was_said_last_is_told_when_it_was_no_answer(path, lines, way, reason):
    script = f"import sys; sys.exit({LAST_LINE!r})"
    helper = RunningHelper.launch(way, [sys.executable, "-I", "-S", "-c", script], lines.append)
    with pytest.raises(HelperFailed, match=LAST_LINE) as failed:
        helper.await_answer(HelperClient(path), time.monotonic() + 30)
    helper.stop()
    assert failed.value.reason == reason
    assert failed.value.fix


def test_a_helper_that_never_answers_is_given_up(path, lines):
    script = "import time; time.sleep(60)"
    helper = RunningHelper.launch(Way.DIRECT, [sys.executable, "-I", "-S", "-c", script], lines.append)
    with pytest.raises(HelperFailed) as failed:
        helper.await_answer(HelperClient(path), time.monotonic() + 0.3)
    helper.stop()
    assert failed.value.reason == "timed_out"


def test_a_command_that_cannot_be_started_is_told(path, lines):
    helper = RunningHelper.launch(Way.DIRECT, ["/nonexistent/helper"], lines.append)
    with pytest.raises(HelperFailed, match="/nonexistent/helper") as failed:
        helper.await_answer(HelperClient(path), time.monotonic() + 30)
    helper.stop()
    assert failed.value.reason == "not_running"


_APPLICATION = """
import sys, time
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.kernel.egress.helper_client import HelperClient
from democrai_sandbox.kernel.egress.helper_process import Way
from democrai_sandbox.kernel.egress.helper_process import RunningHelper
helper = RunningHelper.launch(Way.DIRECT, [sys.executable, "-I", "-S", "-c", sys.argv[2], sys.argv[3]], print)
helper.await_answer(HelperClient(sys.argv[3]), time.monotonic() + 30)
print(helper.pid, helper._keeper.pid, flush=True)
time.sleep(60)
"""


def test_when_the_application_is_killed_its_helper_is_left_to_clean_up_and_is_not_started_again(path):
    application = forked_programs.start(_APPLICATION, SOURCES, _FAKE, path, stdout=subprocess.PIPE)
    try:
        while not (words := application.stdout.readline().split())[0].isdecimal():
            pass
        helper, keeper = map(int, words)
    finally:
        application.kill()
        application.wait()
        application.stdout.close()
    assert answering(path) == helper  # it was not stopped
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: not alive(keeper), "the keeper's end")
    assert answering(path) == 0


# ---- elevation -------------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder for sudo and pkexec, for an unprivileged process."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(elevating, "is_privileged", lambda: False)

    def put(name, text="#!/bin/sh\nexit 1\n"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return str(folder / name)

    put.folder = str(folder)
    return put


def test_a_desktop_asks_by_pkexec_and_a_server_by_sudo(programs):
    sudo, pkexec = programs("sudo"), programs("pkexec")
    assert elevation(desktop=False, programs=programs.folder) == (Way.SUDO, (sudo, "-n", "--"))
    assert elevation(desktop=True, programs=programs.folder)[0] is Way.PKEXEC
    assert elevation(desktop=True, programs=programs.folder)[1][0] == pkexec
    os.unlink(pkexec)
    assert elevation(desktop=True, programs=programs.folder)[0] is Way.SUDO


def test_without_either_the_command_that_prints_the_rule_is_the_fix(programs):
    with pytest.raises(HelperFailed) as failed:
        elevation(programs=programs.folder)
    assert failed.value.reason == "no_way_up"
    assert " helper sudoers --user" in failed.value.fix


def test_sudo_that_wants_a_password_is_no_way_up(programs, path, tmp_path):
    programs("sudo", f"#!/bin/sh\necho '{LAST_LINE}' >&2\nexit 1\n")
    starter = HelperStarter(
        socket_path=path, policy_file=str(tmp_path / "p"), log=lambda line: None, programs=programs.folder
    )
    with pytest.raises(HelperFailed, match=LAST_LINE) as failed:
        starter.start(HelperClient(path))
    assert failed.value.reason == "no_way_up"


def test_a_helper_that_answers_already_is_used_as_it_is(running, path, tmp_path, programs):
    starter = HelperStarter(socket_path=path, policy_file=str(tmp_path / "p"), programs=programs.folder)
    found = starter.start(HelperClient(path))
    assert (found.way, found.pid) == (Way.ATTACH, running.pid)
    found.stop()
    assert answering(path) == running.pid


def test_something_else_at_the_socket_is_told_with_its_path_and_a_fix(path, tmp_path, programs):
    def greet():
        connection, _ = listener.accept()
        with connection:
            connection.makefile("rb").readline()
            connection.sendall(b"220 mail.example ESMTP\r\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(HelperFailed) as failed:
            HelperStarter(socket_path=path, policy_file=str(tmp_path / "p"), programs=programs.folder).start(
                HelperClient(path)
            )
        greeting.join()
    assert failed.value.reason == "socket_taken"
    assert path in failed.value.what
    assert "helper_socket" in failed.value.fix


def test_the_helper_is_told_what_it_needs_and_understands_it(path, tmp_path):
    starter = HelperStarter(socket_path=path, policy_file=str(tmp_path / "p"), refresh_seconds=0, debug=True)
    python, *options, script = starter.command()[:5]
    assert os.path.realpath(python) == python
    assert options == ["-I", "-S", "-B"]
    assert script.endswith("/kernel/helper/__main__.py")
    assert parse(starter.command()[5:]) == (path, str(tmp_path / "p"), 0, os.getpid(), True)


_AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.egress.helper_process import elevation, is_privileged
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(is_privileged())
_native.seccomp_install(bytes.fromhex("06000000" "0000ff7f"), 0)
try:
    elevation()
except HelperFailed as error:
    print(error.reason, "no_new_privs" in error.what)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_without_privileges_knows_it_and_one_that_is_confined_has_no_way_up():
    done = forked_programs.run(_AS_NOBODY, SOURCES)
    assert done.stdout.splitlines() == ["False", "no_way_up True"]
