"""Requests to the helper's process, its start and its end."""

from __future__ import annotations

import os
import signal
import socket
import stat

import pytest

from tests.kernel.helper.fake_helper import NO_TABLES, REFUSED
from tests.kernel.helper.helper_process import Stage, needs_root, until
from tests.services.rows import rows

pytestmark = needs_root
PEER = "struct.unpack('3i', connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))"


@pytest.fixture(params=["root", "nobody"])
def stage(request):
    with Stage(request.param) as found:
        yield found


@pytest.fixture
def user_stage():
    with Stage("nobody") as found:
        yield found


def test_each_action_reaches_the_enforcer_and_is_answered(stage):
    """Ping, apply, join, child, release, status and clear are answered with the enforcer's results."""
    helper = stage.helper()
    stage.write_policy(("api.example.com", 443))
    pid = stage.application.pid
    assert stage.ask("ping") == {"ok": True, "pid": helper.pid, "version": 1, "privileged": True}
    applied = stage.ask("apply")
    assert applied["ok"] and applied["endpoints"] == 1 and len(applied["digest"]) == 64
    assert stage.calls("apply") == [{"call": "apply", "pid": pid, "hosts": ["api.example.com"]}]
    assert stage.ask("join", pid=pid)["ok"]
    child = stage.application.run(f"""
        wanted = [{{"host": "::1", "port": 1}}]
        answer, descriptors = ask_with_descriptor({str(stage.socket)!r}, "child", endpoints=wanted)
        result = [answer, [os.write(each, b"to nowhere") for each in descriptors]]
    """)
    assert child[0]["child"] == 1 and child[1] == [10]
    assert not stage.calls("release")  # although the client has closed
    assert stage.ask("release", child=1)["ok"]
    status = stage.ask("status")
    assert status["ok"] and status["parent_pid"] == pid and status["policy_file"] == str(stage.policy)
    assert status["refresh_seconds"] == 0 and status["cgroup"] == "/nowhere"
    assert stage.ask("clear")["ok"]
    assert [call["call"] for call in stage.calls()][-3:] == ["release", "status", "clear"]


def test_the_socket_is_the_users_alone_and_the_helper_is_seen_at_its_other_end(stage):
    """The socket belongs to the application's user with mode 0600; clients see root and the helper's process id."""
    helper = stage.helper()
    found = stage.socket.lstat()
    assert stat.S_ISSOCK(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600 and found.st_uid == stage.uid
    peer = stage.application.run(f"connection = connect({str(stage.socket)!r}); result = {PEER}")
    assert peer[:2] == [helper.pid, 0]


def test_a_path_that_is_taken_is_refused_with_the_fix(user_stage):
    """A live socket, a file and another user's socket stay; an abandoned socket of the user is replaced."""
    stage = user_stage
    first = stage.helper()
    refusal = stage.helper(ready=False).refusal()
    assert refusal["reason"] == "socket_taken" and "helper_socket" in refusal["fix"]
    assert stage.ask("ping")["pid"] == first.pid
    first.kill()
    assert stage.socket.exists()
    second = stage.helper()
    assert stage.ask("ping")["pid"] == second.pid
    for name, make in {"file": lambda path: path.write_text("kept"), "foreign": _dead_socket}.items():
        path = stage.home / name
        make(path)
        assert stage.helper(ready=False, socket=path).refusal()["reason"] == "socket_taken"
        assert path.exists()


def _dead_socket(path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_a_folder_that_the_user_cannot_write_is_no_place_for_the_socket(user_stage):
    """The socket is created with the user's rights, not with root's."""
    stage = user_stage
    refusal = stage.helper(ready=False, socket=stage.folder / "helper.sock").refusal()
    assert refusal["reason"] == "socket_refused" and "folder" in refusal["fix"]
    assert stage.helper(ready=False, socket=stage.home / "no" / "helper.sock").refusal()["reason"] == "socket_refused"


@rows(
    ("changes", "reason"),
    [
        ({"socket": "/tmp/" + "x" * 103}, "socket_path_too_long"),
        ({"socket": "relative.sock"}, "bad_arguments"),
        ({"policy_file": "relative.json"}, "bad_arguments"),
        ({"refresh_seconds": -1}, "bad_arguments"),
        ({"refresh_seconds": "1.5"}, "bad_arguments"),
        ({"refresh_seconds": "٣"}, "bad_arguments"),
        ({"parent_pid": 1}, "bad_arguments"),
        ({"parent_pid": "many"}, "bad_arguments"),
        ({"parent_pid": None}, "bad_arguments"),
        ({"parent_pid": 4194303}, "gone"),
        ({"nonsense": 1}, "bad_arguments"),
    ],
)
def test_a_bad_command_line_is_refused_by_name(changes, reason):
    """Each bad argument is reported in a sentence and, on the last line, in JSON; the exit status is not 0."""
    with Stage() as stage:
        helper = stage.helper(ready=False, **changes)
        refusal = helper.refusal()
        assert refusal["reason"] == reason and refusal["error"] and not refusal["ok"]


def test_the_longest_path_that_fits_is_taken():
    """A path of 107 bytes works, the kernel's limit."""
    with Stage() as stage:
        path = stage.home / ("x" * (107 - len(str(stage.home)) - 1))
        assert len(str(path)) == 107
        stage.socket = path
        stage.helper()
        assert stage.ask("ping")["ok"]


def test_whoever_asked_sudo_is_the_only_user_whose_application_is_served(user_stage):
    """SUDO_UID and PKEXEC_UID must be the user of the application."""
    stage = user_stage
    for name in ("SUDO_UID", "PKEXEC_UID"):
        refusal = stage.helper(ready=False, environment={name: "1"}).refusal()
        assert refusal["reason"] == "foreign_uid" and name in refusal["error"]
        assert stage.helper(ready=False, environment={name: "1x"}).refusal()["reason"] == "bad_arguments"
        helper = stage.helper(environment={name: str(stage.uid)})
        assert stage.ask("ping")["ok"]
        helper.kill()


def test_a_machine_on_which_nothing_can_be_enforced_is_refused_before_the_socket_is_there():
    """A refusal of the probe is the last line, with its reason and fix."""
    with Stage() as stage:
        refusal = stage.helper(ready=False, environment={"FAKE_PROBE": "1"}).refusal()
        assert refusal == {"ok": False} | dict(zip(("reason", "error", "fix"), NO_TABLES, strict=True))
        assert not stage.socket.exists()
        refusal = stage.helper(ready=False, environment={"FAKE_PROBE": "crash"}).refusal()
        assert refusal["reason"] == "failed" and "something unforeseen" in refusal["error"]


def test_clear_belongs_to_the_application_itself(user_stage):
    """A descendant cannot remove the rules; the application can, and can stop the helper with it."""
    stage = user_stage
    helper = stage.helper()
    refused = stage.application.run(f"result = in_child(lambda: ask({str(stage.socket)!r}, 'clear'))")
    assert refused["reason"] == "not_the_parent" and not stage.calls("clear")
    assert stage.ask("clear", exit="yes")["reason"] == "bad_request"
    answer = stage.ask("clear", exit=True)
    assert answer["ok"] and answer["exiting"] is True
    assert helper.ended() == 0
    assert not stage.socket.exists() and not stage.calls("remove")


def test_what_fails_is_answered_and_the_helper_goes_on(user_stage):
    """A refusal keeps its reason; an unexpected failure has one too; the helper continues after both."""
    stage = user_stage
    stage.helper()
    stage.write_policy(("refuse-1.example", 1))
    assert stage.ask("apply") == {"ok": False} | dict(zip(("reason", "error", "fix"), REFUSED, strict=True))
    stage.write_policy(("crash-1.example", 1))
    answer = stage.ask("apply")
    assert answer["reason"] == "failed" and "something unforeseen" in answer["error"]
    assert stage.ask("child", endpoints=[{"host": "crash-1.example", "port": 1}])["reason"] == "failed"
    assert stage.ask("ping")["ok"]


def test_a_slow_request_does_not_keep_others_from_being_answered(user_stage):
    """While rules are applied, a ping is answered immediately, and a second apply waits."""
    stage = user_stage
    stage.helper()
    stage.write_policy(("held-1.example", 1))
    stage.application.run(f"""
        path = {str(stage.socket)!r}
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask(path, "apply"))) for _ in range(2)]
        for thread in threads: thread.start()
        result = None
    """)
    until(lambda: stage.calls("apply"), what="the first apply")
    assert stage.ask("ping")["ok"]
    assert stage.application.run("result = len(answers)") == 0 and len(stage.calls("apply")) == 1
    stage.let_go()
    applied = stage.application.run("""
        for thread in threads: thread.join()
        result = [answer["ok"] for answer in answers]
    """)
    assert applied == [True, True] and len(stage.calls("apply")) == 2


def test_a_child_nobody_waits_for_is_released(user_stage):
    """If the client closes before its answer, the cgroup created for it is removed."""
    stage = user_stage
    stage.helper()
    stage.application.run(f"""
        pid = os.fork()
        if pid == 0:
            connection = connect({str(stage.socket)!r})
            request = {{"action": "child", "endpoints": [{{"host": "held-1.example", "port": 1}}]}}
            connection.sendall(json.dumps(request).encode() + b"\\n")
            time.sleep(60)
            os._exit(0)
        result = None
    """)
    until(lambda: stage.calls("child"), what="the request at the enforcer")
    stage.application.run("os.kill(pid, 9); os.waitpid(pid, 0); result = None")
    stage.let_go()
    until(lambda: stage.calls("release"), what="the release")
    assert stage.calls("release") == [{"call": "release", "child": 1}]


def test_names_are_resolved_again_in_the_background_once_something_was_applied():
    """With a period the rules are refreshed; before the first apply, and with 0, they are not."""
    with Stage() as stage:
        stage.helper(refresh_seconds=1)
        stage.write_policy(("api.example.com", 443))
        until(lambda: stage.ask("ping")["ok"])
        assert not stage.calls("refresh")
        stage.ask("apply")
        until(lambda: len(stage.calls("refresh")) >= 2, what="two refreshes")
        assert stage.ask("status")["last_refresh"]["error"] == ""


def test_the_flow_is_printed_when_asked_for():
    """--debug prints each step as a line."""
    with Stage() as stage:
        helper = stage.helper("--debug")
        stage.ask("ping")
        until(lambda: helper.said("[OS_SANDBOX_FLOW] helper.request action='ping'"), what="the flow")


def test_a_long_answer_is_shortened_and_says_so(user_stage):
    """More unresolved hosts than fit into one line are cut, and the answer names the shortened list."""
    stage = user_stage
    stage.helper()
    stage.write_policy(*((f"host-{number}.some-long-name.example.invalid", 443) for number in range(4000)))
    answer = stage.ask("apply")
    assert answer["ok"] and answer["endpoints"] == 4000 and answer["shortened"] == ["unresolved"]
    assert 100 < len(answer["unresolved"]) < 4000
