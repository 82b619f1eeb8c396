"""The client accepts correct answers only: no malformed, slow, endless or foreign ones."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.egress import Endpoint
from democrai_sandbox.kernel.egress.helper_client import LONGEST_ANSWER, HelperClient
from tests.services import places
from tests.services.golden import sentence
from tests.services.rows import rows


@contextmanager
def serving(path, answer):
    """Listen at a path and call ``answer(connection, request)`` for each connection."""
    requests = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                line = connection.makefile("rb").readline()
                requests.append(json.loads(line))
                answer(connection, requests[-1])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield requests
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        os.unlink(path)


def line(**fields):
    return json.dumps({"ok": True, **fields}).encode() + b"\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"


def failure(path, answer, *, timeout=5.0, act=HelperClient.ping):
    with serving(path, answer), pytest.raises(HelperFailed) as failed:
        act(HelperClient(str(path), timeout=timeout))
    return failed.value


def test_each_request_says_its_version_and_what_it_is_about(path):
    def answer(connection, request):
        connection.sendall(line(pid=7, version=1, child=3, cgroup="/x", exiting=True))

    client = HelperClient(str(path))
    with serving(path, answer) as requests:
        assert client.ping() == 7
        assert client.apply()["pid"] == 7
        client.apply(42)
        client.join(43)
        client.release(3)
        client.status()
        assert client.clear()
        client.clear(leave=False)
    assert requests == [
        {"version": 1, **rest}
        for rest in (
            {"action": "ping"},
            {"action": "apply"},
            {"action": "apply", "pid": 42},
            {"action": "join", "pid": 43},
            {"action": "release", "child": 3},
            {"action": "status"},
            {"action": "clear", "exit": True},
            {"action": "clear", "exit": False},
        )
    ]


def test_a_child_comes_with_its_descriptor_which_is_not_inherited(path, tmp_path):
    (tmp_path / "procs").write_text("")

    def answer(connection, request):
        assert request["endpoints"] == [{"host": "a.example", "port": 1, "protocol": "tcp", "addresses": ["10.0.0.1"]}]
        with open(tmp_path / "procs", "w") as procs:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [procs.fileno()]))]
            connection.sendmsg([line(set=1, child=9, cgroup="/cg/child_9")], rights)

    with serving(path, answer):
        child = HelperClient(str(path)).child([Endpoint("a.example", 1, addresses=("10.0.0.1",))])
    assert (child.id, child.path) == (9, "/cg/child_9")
    assert not os.get_inheritable(child.descriptor)
    os.write(child.descriptor, b"0")
    child.close()
    child.close()
    assert (tmp_path / "procs").read_text() == "0"


def test_a_refusal_carries_the_helpers_word_sentence_and_fix(path):
    def answer(connection, request):
        connection.sendall(b'{"ok":false,"reason":"policy_owner","error":"not yours","fix":"chown"}\n')

    error = failure(path, answer)
    assert (error.code, error.reason) == ("os_sandbox_helper_failed", "policy_owner")
    assert (error.what, error.fix) == ("not yours", "chown")
    assert all(part in str(error) for part in (error.code, error.what, error.fix))


@rows(
    ("kind", "sent"),
    [
        ("no JSON", b"\n"),
        ("no JSON", b"garbage\n"),
        ("no JSON", b"\xff\xfe\n"),
        ("no verdict", b"[]\n"),
        ("no verdict", b'{"pid":1}\n'),
        ("no verdict", b'{"ok":1,"pid":1}\n'),
        ("no number", b'{"ok":true,"version":1}\n'),
        ("no number", b'{"ok":true,"version":1,"pid":true}\n'),
        ("no number", b'{"ok":true,"version":1,"pid":-1}\n'),
        ("two answers", b'{"ok":true,"version":1,"pid":1}\n{"ok":true}\n'),
        ("no JSON", b"[" * 100_000 + b"\n"),
        ("too long", b"x" * (LONGEST_ANSWER + 1)),
    ],
)
def test_a_wrong_answer_is_a_typed_error_that_says_what_is_wrong(path, kind, sent):
    """Each kind of malformed answer has a distinct sentence."""
    error = failure(path, lambda connection, request: connection.sendall(sent))
    assert error.reason == "bad_answer"
    sentence(kind, error.what)


@rows("sent", [b"", b'{"ok":true', b"garbage"])
def test_a_helper_that_hangs_up_before_it_has_answered_is_one_that_was_killed(path, sent):
    error = failure(path, lambda connection, request: connection.sendall(sent))
    assert error.reason == "not_running"
    assert str(path) in error.what


def test_another_version_is_refused(path):
    error = failure(path, lambda connection, request: connection.sendall(line(pid=1, version=2)))
    assert error.reason == "version"


def test_an_endless_answer_ends(path):
    def answer(connection, request):
        while True:
            connection.sendall(b"x" * 65536)

    assert failure(path, answer).reason == "bad_answer"


@rows("word", [b" ", b""])
def test_an_answer_that_drips_or_never_comes_ends_with_the_deadline(path, word):
    """The answer continues until the client gives up, so the test ends only if slow bytes do not extend it."""
    over = threading.Event()

    def answer(connection, request):
        while not over.wait(0.02):
            connection.sendall(word)

    with serving(path, answer):
        started = time.monotonic()
        try:
            with pytest.raises(HelperFailed) as failed:
                HelperClient(str(path)).ping(timeout=0.2)
        finally:
            over.set()
        took = time.monotonic() - started
    assert failed.value.reason == "timed_out"
    assert took > 0.15


def test_a_listener_that_never_accepts_ends_with_the_deadline_also_when_many_wait_for_it(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        waiting = []
        for _ in range(3):
            with pytest.raises(HelperFailed) as failed:
                HelperClient(str(path)).ping(timeout=0.2)
            assert failed.value.reason == "timed_out"
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(str(path))
        for each in waiting:
            each.close()


@rows("number", [0, 2, 8])
def test_a_child_with_another_number_of_descriptors_is_refused_and_leaks_none(path, number):
    def answer(connection, request):
        with open(os.devnull) as null:
            rights = array.array("i", [null.fileno()] * number)
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if number else []
            connection.sendmsg([line(set=1, child=9, cgroup="/x")], control)

    before = len(os.listdir("/proc/self/fd"))
    error = failure(path, answer, act=lambda client: client.child([]))
    assert error.reason == "bad_answer"
    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptors_that_nobody_asked_for_are_closed(path):
    def answer(connection, request):
        with open(os.devnull) as null:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()]))]
            connection.sendmsg([line(pid=1, version=1)], rights)

    before = len(os.listdir("/proc/self/fd"))
    assert failure(path, answer).reason == "bad_answer"
    assert len(os.listdir("/proc/self/fd")) <= before


def test_no_socket_and_a_dead_one_mean_that_no_helper_is_running(path):
    for _ in range(2):
        with pytest.raises(HelperFailed) as failed:
            HelperClient(str(path)).ping()
        assert failed.value.reason == "not_running"
        assert failed.value.fix
        if not path.exists():
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))


def test_a_path_that_is_too_long_is_told_as_that(tmp_path):
    with pytest.raises(HelperFailed) as failed:
        HelperClient(str(tmp_path / ("x" * 120))).ping()
    assert failed.value.reason == "socket_path_too_long"
    assert "helper_socket" in failed.value.fix


def test_a_question_longer_than_the_helper_takes_is_not_sent(path):
    with pytest.raises(HelperFailed) as failed:
        HelperClient(str(path)).child([Endpoint(f"host-{n}.example", 443) for n in range(2000)])
    assert failed.value.reason == "bad_request"


_FOREIGN = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
os.setgid(65534); os.setuid(65534)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    sys.stdout.write("connected\\n" if not connection.recv(1) else "told\\n")
    sys.stdout.flush()
    connection.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_a_socket_of_another_user_is_refused_and_told_nothing(tmp_path_factory):
    folder = f"{places.SHORT}/egress-{os.getpid()}-{time.monotonic_ns()}"
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    place = f"{folder}/s.sock"
    other = subprocess.Popen([sys.executable, "-I", "-S", "-c", _FOREIGN, place], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "ready\n"
        # Even root must not trust the socket of that user.
        with pytest.raises(HelperFailed) as failed:
            HelperClient(place).ping()
        assert other.stdout.readline() == "connected\n"
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
        os.unlink(place)
        os.rmdir(folder)
    assert failed.value.reason == "foreign_socket"
    assert "65534" in failed.value.what
