"""End of the helper: after the application, or before it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper.processes import Handle
from democrai_sandbox.kernel.helper.server import EventWait, HelperEvent
from tests.kernel.helper.fake_helper import REFUSED
from tests.kernel.helper.helper_process import SECONDS, Stage, needs_root, until


@pytest.fixture
def stage():
    with Stage("nobody") as found:
        found.write_policy(("api.example.com", 443))
        yield found


def _names(stage):
    return [call["call"] for call in stage.calls()]


def _children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@needs_root
def test_when_the_application_is_killed_everything_of_it_is_removed(stage):
    """The rules, the socket and the policy file are removed; the helper and its file process end with status 0."""
    helper = stage.helper()
    assert stage.ask("apply")["ok"]
    others = _children(helper.pid)
    assert others
    stage.application.kill()
    assert helper.ended() == 0
    assert _names(stage)[-1] == "remove"
    assert not stage.socket.exists() and not stage.policy.exists()
    until(lambda: not any(map(_alive, others)), what="the end of the file process")


@needs_root
def test_nobody_reading_along_does_not_keep_the_rules_in_place(stage):
    """Standard error may be closed by then: the output is lost, but the work is done."""
    helper = stage.helper()
    reading, writing = os.pipe()
    helper.kill()
    process = stage.fake_helper(stderr=writing)
    try:
        os.close(writing)
        until(lambda: stage.socket.exists() and _answers(stage), what="a helper that serves")
        os.close(reading)
        stage.application.kill()
        assert process.wait(SECONDS) == 0
        assert _names(stage)[-1] == "remove" and not stage.socket.exists()
    finally:
        process.kill()
        process.wait(SECONDS)


def _answers(stage):
    answer = stage.application.run(f"""
        try:
            result = ask({str(stage.socket)!r}, "ping")
        except OSError:
            result = None
    """)
    return bool(answer and answer["ok"])


@needs_root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_asked_to_end_it_leaves_the_rules_in_force(stage, number):
    """Only the socket is removed: the application stays restricted, and a restarted helper takes over."""
    helper = stage.helper()
    assert stage.ask("apply")["ok"]
    helper.process.send_signal(number)
    assert helper.ended() == 0
    assert not stage.socket.exists() and stage.policy.exists() and "remove" not in _names(stage)
    stage.helper()
    assert _names(stage)[-1] == "sweep" and stage.ask("ping")["ok"]


@needs_root
def test_asked_to_end_together_with_the_application_it_cleans_up_first(stage):
    """A service manager stops all processes together: the helper waits briefly for the application's end."""
    helper = stage.helper(environment={"FAKE_LINGER": "20"})
    assert stage.ask("apply")["ok"]
    helper.process.send_signal(signal.SIGTERM)
    until(lambda: not stage.socket.exists(), what="the end of the socket")
    stage.application.kill()
    assert helper.ended() == 0
    assert _names(stage)[-1] == "remove" and not stage.policy.exists()


@needs_root
def test_a_killed_helper_is_followed_by_one_that_goes_on(stage):
    """Its file process ends too; the next helper replaces the socket, removes leftovers, and takes over the policy."""
    first = stage.helper()
    assert stage.ask("apply")["ok"]
    others = _children(first.pid)
    first.kill()
    until(lambda: not any(map(_alive, others)), what="the end of the file process")
    assert stage.socket.exists() and stage.policy.exists() and "remove" not in _names(stage)
    stage.helper(environment={"FAKE_TOOK_OVER": "1"})
    until(lambda: _names(stage)[-1] == "apply", what="the policy in force again")
    assert stage.calls("apply")[-1]["pid"] == stage.application.pid
    assert stage.ask("ping")["ok"]


@needs_root
def test_a_helper_that_comes_after_the_applications_end_sweeps_and_says_so(stage):
    """Restarted after both were killed, it removes the leftovers, and ends with a distinct status."""
    stage.application.kill()
    helper = stage.helper(ready=False)
    assert helper.ended() == 3 and helper.refusal()["reason"] == "gone"
    assert _names(stage)[-1] == "sweep"


@needs_root
def test_rules_that_cannot_be_removed_are_tried_again_and_told(stage):
    """After several attempts it ends with the status for leftovers."""
    helper = stage.helper(environment={"FAKE_REMOVE": "1"})
    stage.application.kill()
    assert helper.ended() == 4
    assert _names(stage).count("remove") == 5 and helper.said(REFUSED[1])


@needs_root
def test_a_busy_helper_still_notices_the_applications_end(stage):
    """During a slow apply the end is noticed; the rules are removed after it, not during it."""
    helper = stage.helper()
    stage.write_policy(("slow-10.example", 1))
    stage.application.run(f"""
        connection = connect({str(stage.socket)!r})
        connection.sendall(b'{{"action": "apply"}}\\n')
        result = None
    """)
    until(lambda: "apply" in _names(stage), what="the apply")
    stage.application.kill()
    assert helper.ended() == 0
    assert _names(stage)[-1] == "remove" and not stage.policy.exists()


@needs_root
def test_only_what_it_placed_and_what_is_the_users_is_removed(stage):
    """A folder at the path of the policy, and another file at the path of the socket, stay."""
    helper = stage.helper()
    stage.policy.unlink()
    stage.policy.mkdir()
    stage.socket.unlink()
    stage.socket.write_text("something else")
    stage.application.kill()
    assert helper.ended() == 0
    assert stage.policy.is_dir() and stage.socket.read_text() == "something else"


@pytest.mark.parametrize("pidfds", [True, False])
def test_the_end_of_a_process_is_seen_with_and_without_a_descriptor_of_it(pidfds, tmp_path):
    """On a kernel without such descriptors the process is checked every second, also during a flood."""
    sleeper = subprocess.Popen(["sleep", "60"])
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        try:
            with Handle.of(sleeper.pid, pidfds=pidfds) as handle:
                watch = EventWait(handle, listener)
                client.connect(str(tmp_path / "socket"))
                assert watch.next() is HelperEvent.CONNECTION
                watch.wake()
                assert watch.next() is HelperEvent.ASKED_TO_END
                assert watch.parent_ends_within(0.2) is False
                watch = EventWait(handle, listener)
                threading.Timer(0.2, sleeper.kill).start()
                end = time.monotonic() + SECONDS
                while watch.next() is HelperEvent.CONNECTION:  # never accepted
                    assert time.monotonic() < end
                assert not handle.alive()
                assert EventWait(handle, listener).parent_ends_within(5) is True
        finally:
            sleeper.kill()
            sleeper.wait(SECONDS)
