"""A misbehaving child of an installation gives one clear error, or none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from democrai_sandbox.errors import InstallFailed
from democrai_sandbox.runtime.installs.pip import InstallProcess, output_of
from tests.runtime.installs.starting import Starter
from tests.services.golden import sentence

CONTROL = "import os, socket; control = socket.socket(fileno=int(os.environ['DEMOCRAI_INSTALL_CONTROL']))\n"


def run(code, *, seconds=20.0, decide=None):
    """Run a child to its end; return it with its exit code, and its lines."""
    heard = []

    async def refuse(question):
        return False

    async def work():
        child = InstallProcess(heard.append, decide or refuse)
        lock = os.open(os.devnull, os.O_RDONLY)
        try:
            command = [sys.executable, "-I", "-c", code]
            done = await child.run(Starter(), command, {}, folder="/", lock=lock, timeout=seconds)
        finally:
            os.close(lock)
        return child, done

    return *asyncio.run(work()), heard


def test_a_flood_is_heard_and_forgotten():
    """Only the last lines are kept, long ones are cut, and terminal control characters are removed."""
    child, code, heard = run("import sys; sys.stdout.write('x' * 300000 + '\\n' + 'line\\n' * 50000 + '\\x1b[2Jend')")
    assert code == 0
    assert len(heard) > 50000
    assert len(child.lines) == 40
    assert max(map(len, heard)) == 4000
    assert child.lines[-1] == " [2Jend"


def test_a_child_that_hangs_is_ended_with_its_children():
    """After its timeout, even without output."""
    for seconds in (0.5, 5, 20):  # longer if it had no time to print anything
        begun = time.monotonic()
        with pytest.raises(InstallFailed, match=f" {seconds} ") as failed:
            run("import os, time; print(os.fork() and os.getpid(), flush=True); time.sleep(60)", seconds=seconds)
        assert time.monotonic() - begun < seconds + 10
        if said := [int(line) for line in failed.value.lines if line != "0"]:
            break
    until = time.monotonic() + 30
    while alive(said[0]) and time.monotonic() < until:  # killed, which takes a moment on a busy machine
        time.sleep(0.01)
    assert alive(said[0]) == []


def alive(group):
    """Return the processes of a group, without zombies."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            found.append(file)
    return found


def test_a_grandchild_that_keeps_the_output_does_not_keep_the_host():
    """The child has ended; a process that left its group and holds its output is not awaited."""
    begun = time.monotonic()
    code = "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid(); time.sleep(60)\nprint(pid, flush=True)"
    child, status, _ = run(code)
    assert status == 0
    assert time.monotonic() - begun < 50
    os.kill(int(child.lines[-1]), signal.SIGKILL)


def test_what_the_child_is_refused_is_noted():
    """As its guard reports it."""
    child, _, _ = run(CONTROL + 'control.sendall(b\'{"refused": "x:y", "code": "x"}\\n\')')
    assert list(child.denials) == [("x", "x:y")]


def test_garbage_is_answered_by_nothing_that_allows():
    """Each is reported as a malformed message; the child continues or waits."""
    messages = [b"", b"null", b"[]", b"{", b'{"ask": 5}', b'{"ask": []}', b"[" * 100000, b"\xff"]
    send = "".join(f"control.sendall({message!r} + b'\\n'); print('sent')\n" for message in messages)
    child, code, heard = run(CONTROL + send)
    assert code == 0
    told = [line for line in child.lines if line != "sent"]
    assert (len(told), heard.count("sent")) == (len(messages), len(messages))
    assert len(set(told)) == 1
    sentence("garbage", told[0])


def test_a_check_that_fails_is_no_answer():
    """Neither allowed nor denied: the child raises a failure."""

    async def broken(question):
        raise RuntimeError("the database is gone")

    ask = json.dumps({"number": 3, "ask": ["a"]})
    child, _, _ = run(CONTROL + f"control.sendall(b'{ask}\\n'); print(control.recv(100).decode())", decide=broken)
    assert json.loads(child.lines[0]) == {"number": 3, "answer": None}


def test_programs_of_the_host_that_fail_or_hang_are_errors():
    """With their last lines."""
    python = [sys.executable, "-I", "-c"]

    def output(code, seconds=20.0):
        return asyncio.run(output_of(Starter(), [*python, code], {}, seconds))

    assert output("print('a'); print('b')") == "a\nb"
    program = [(re.escape(sys.executable), "python")]
    with pytest.raises(InstallFailed) as failed:
        output("raise SystemExit('because')")
    assert failed.value.lines == ("because",)
    sentence("a program that fails", str(failed.value), also=program)
    with pytest.raises(InstallFailed) as late:
        output("import time; time.sleep(60)", 0.3)
    sentence("a program that hangs", str(late.value), also=program)
