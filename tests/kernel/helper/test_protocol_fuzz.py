"""Garbage, floods, slow and silent clients: the helper answers or closes, and serves the application."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.kernel.helper.protocol import LONGEST_LINE, RequestRefused, encode_answer, parse_request
from tests.kernel.helper.helper_process import Stage, needs_root, until
from tests.services.machine_load import slowness


@pytest.fixture
def stage():
    with Stage("nobody") as found:
        found.running = found.helper()
        yield found


def _descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


GARBAGE = [
    b"\n",
    b"\0\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"ping\n",
    b'{"action": 1}\n',
    b'{"action": ""}\n',
    b'{"action": null}\n',
    b'{"action": ["ping"]}\n',
    b'{"action": "ping", "action": "clear"}\n',
    b'{"action": "ping", "version": 2}\n',
    b'{"action": "ping", "version": "1"}\n',
    b'{"action": "ping", "version": true}\n',
    b'{"action": "ping", "more": 1}\n',
    b'{"action": "\\ud800"}\n',
    b'{"action": "__init__"}\n',
    b'{"action": "ping"\n',
    b"\xff\xfe\n",
    b"[" * 60_000 + b"\n",
    b'{"action": ' + b"9" * 20_000 + b"}\n",
    b'{"action": "child"}\n',
    b'{"action": "child", "endpoints": [{"host": "*", "port": 0}]}\n',
    b'{"action": "child", "endpoints": {"a": 1}}\n',
    b'{"action": "release"}\n',
    b'{"action": "release", "child": -1}\n',
    b'{"action": "release", "child": "1; rm"}\n',
    b'{"action": "release", "child": true}\n',
    b'{"action": "apply", "pid": "1"}\n',
    b'{"action": "clear", "exit": 1}\n',
]


@needs_root
def test_garbage_is_a_bad_request_and_changes_nothing(stage):
    """Every malformed line gets a reason and a fix, and never reaches the enforcer."""
    for line in GARBAGE:
        answer = stage.raw(line)
        if line == b"\n":
            assert answer is None
            continue
        assert answer["reason"] in {"bad_request", "unknown_action"} and answer["error"] and answer["fix"], line
    assert {call["call"] for call in stage.calls()} == {"made", "sweep"}
    assert stage.ask("ping")["ok"]


@needs_root
def test_random_bytes_and_broken_requests_leave_it_serving(stage):
    """Hundreds of random and malformed requests leave no descriptor or thread behind."""
    source = random.Random(7)
    good = json.dumps({"action": "status", "version": 1}).encode()
    payloads = [source.randbytes(source.randrange(200)) for _ in range(150)]
    for _ in range(150):
        broken = bytearray(good)
        for _ in range(source.randrange(1, 4)):
            broken[source.randrange(len(broken))] = source.randrange(256)
        payloads.append(bytes(broken))
    stage.ask("ping")
    before = _descriptors(stage.running.pid)
    odd = stage.application.run(f"""
        odd = 0
        for payload in {payloads!r}:
            answer = None
            with connect({str(stage.socket)!r}) as connection:
                connection.sendall(payload + b"\\n")
                answer = answer_of(connection)
            if answer is not None and not answer["ok"]:
                odd += 1
        result = odd
    """)
    assert odd > 200
    until(lambda: _descriptors(stage.running.pid) <= before, what="closed descriptors")
    assert stage.ask("ping")["ok"] and not stage.running.said("Traceback")


@needs_root
def test_a_line_without_end_is_cut_off(stage):
    """More than 64 KiB is refused, and the client gets the answer although it was still sending."""
    answer = stage.raw(b"x" * (LONGEST_LINE * 4))
    assert answer["reason"] == "bad_request" and str(LONGEST_LINE) in answer["error"]
    assert stage.ask("ping")["ok"]


@needs_root
def test_a_request_may_end_with_the_stream_instead_of_the_line(stage):
    """A half-closed connection ends the request."""
    answer = stage.application.run(f"""
        connection = connect({str(stage.socket)!r})
        connection.sendall(b'{{"action": "ping"}}')
        connection.shutdown(socket.SHUT_WR)
        result = answer_of(connection)
    """)
    assert answer["ok"]


@needs_root
def test_a_slow_writer_is_cut_off_at_the_deadline_and_others_are_served(stage):
    """Sending single bytes does not extend the two seconds."""
    took, answer, pings = stage.application.run(f"""
        path = {str(stage.socket)!r}
        outcome = []
        def dribble():
            before = time.monotonic()
            with connect(path) as connection:
                try:
                    for byte in b'{{"action": "ping", "version": 1}}' * 5:
                        connection.sendall(bytes([byte]))
                        if select.select([connection], [], [], 0.1)[0]:
                            break
                except OSError:
                    pass
                outcome.extend([time.monotonic() - before, answer_of(connection)])
        thread = threading.Thread(target=dribble)
        thread.start()
        pings = 0
        while thread.is_alive():
            pings += ask(path, "ping")["ok"]
            time.sleep(0.05)
        result = [*outcome, pings]
    """)
    assert 1.5 < took < 8 * slowness() and answer["reason"] == "bad_request" and pings > 3


STARVED = 15
"""Seconds: less than the client's timeout, and less than waiting for each connection of a flood."""
FLOOD = """
    held = []
    for _ in range(COUNT):
        held.append(connect(PATH))
        held[-1].send(b'{')
"""


def _flood(stage, count):
    return FLOOD.replace("COUNT", str(count)).replace("PATH", repr(str(stage.socket)))


def _longest_ping(stage, seconds):
    return stage.application.run(f"""
        longest, end = 0, time.monotonic() + {seconds}
        while time.monotonic() < end:
            before = time.monotonic()
            assert ask({str(stage.socket)!r}, "ping")["ok"]
            longest = max(longest, time.monotonic() - before)
        result = longest
    """)


@needs_root
def test_a_flood_by_a_stranger_does_not_starve_the_application(stage):
    """A process of the same user that opens silent connections is refused without waiting."""
    stranger = stage.another()
    flood = f"""
        import contextlib
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.settimeout(1)
                connection.connect({str(stage.socket)!r})
        result = "over"
    """
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(stranger.run(flood)))
    thread.start()
    longest = _longest_ping(stage, 2)
    thread.join()
    assert outcome == ["over"] and longest < STARVED
    held = stranger.run(_flood(stage, 60) + "\n    result = len(held)")
    assert held == 60 and _longest_ping(stage, 0.5) < STARVED
    assert _descriptors(stage.running.pid) < 100


@needs_root
def test_a_flood_by_a_descendant_does_not_starve_the_application(stage):
    """Descendants share a few places; the application has separate ones. Without a free place the answer is busy."""
    reasons = stage.application.run(
        """
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
"""
        + _flood(stage, 100).replace("\n", "\n    ")
        + """
        waiting = [answer_of(each) for each in held[60:]]
        os.write(ready[1], json.dumps([each and each["reason"] for each in waiting]).encode())
        os.read(go[0], 1)
        os._exit(0)
    result = json.loads(os.read(ready[0], 65536))
    """
    )
    assert set(reasons) <= {"busy", None} and "busy" in reasons
    assert _longest_ping(stage, 1) < STARVED
    stage.application.run("os.write(go[1], b'x'); os.waitpid(pid, 0); result = None")


@needs_root
def test_a_burst_of_the_applications_own_is_served_to_the_last(stage):
    """Two hundred parallel requests are queued, and all are answered."""
    assert (
        stage.application.run(f"""
        path = {str(stage.socket)!r}
        answers = []
        def one():
            answers.append(ask(path, "ping")["ok"])
        threads = [threading.Thread(target=one) for _ in range(200)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        result = answers.count(True)
    """)
        == 200
    )


@needs_root
def test_clients_that_hang_up_are_forgotten(stage):
    """Connections closed before, during and after the request leave nothing behind."""
    stage.ask("ping")
    before = _descriptors(stage.running.pid)
    stage.application.run(f"""
        for number in range(90):
            connection = connect({str(stage.socket)!r})
            if number % 3:
                connection.send(b'{{"action": "status"}}\\n'[: 10 if number % 3 == 1 else None])
            connection.close()
        result = None
    """)
    assert stage.ask("ping")["ok"]
    until(lambda: _descriptors(stage.running.pid) <= before, what="closed descriptors")
    until(lambda: len(os.listdir(f"/proc/{stage.running.pid}/task")) <= 4, what="ended threads")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.binary(max_size=100) | st.builds(lambda found: json.dumps(found).encode(), _values))
def test_every_line_is_a_request_or_refused(line):
    """Reading a line raises only one kind of error."""
    try:
        request = parse_request(line)
    except RequestRefused as refused:
        assert refused.reason == "bad_request"
        encode_answer(refused.answer())
    else:
        assert request.action


@given(st.dictionaries(st.text(max_size=5), st.lists(st.text(max_size=500), max_size=400), max_size=4))
def test_every_answer_fits_one_line(answer):
    """Long lists are shortened, so that the line is valid JSON within the client's limit."""
    line = encode_answer({"ok": True, **answer})
    assert len(line) <= LONGEST_LINE and line.count(b"\n") == 1 and json.loads(line)["ok"] is True
    assert len(encode_answer({"ok": True, "text": "x" * 100_000, "list": ["x" * 100_000]})) <= LONGEST_LINE
