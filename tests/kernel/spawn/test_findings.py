"""Escapes from a confined child that were found by attack: each test failed before the fix."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from tests.kernel import forked_programs
from tests.kernel.spawn.programs import IS_ROOT, PYTHON, confined, exists, is_running, order, python, until

_DAEMON = """
import os, resource, sys, time
def note(text):
    with open(sys.argv[1] + ".new", "w") as file: file.write(text)
    os.rename(sys.argv[1] + ".new", sys.argv[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3): os.close(number)
        if sys.argv[2] == "lowered":
            resource.setrlimit(10, (5, 5))
        if sys.argv[2] == "forking":
            while True:
                note(str(os.getpid()))
                if os.fork(): os._exit(0)
                os.setsid()
        note(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
"""


@pytest.mark.parametrize("how", ["plain", "lowered"])
def test_a_daemon_without_environment_has_ended_when_the_end_of_its_child_is_told(server, tmp_path, how):
    """It has another session, no parent, an empty environment and no cgroup: only the mark identifies it."""
    note = tmp_path / "pid"
    child = server.spawn(order(PYTHON, "-I", "-S", "-c", _DAEMON, str(note), how, env={}))
    assert child.collect() == 0
    assert not is_running(int(note.read_text()))


def test_a_daemon_that_forks_all_the_time_is_caught(own_server, tmp_path):
    """Each of its processes lives only briefly, so it must be chased."""
    note = tmp_path / "pid"
    child = own_server.spawn(order(PYTHON, "-I", "-S", "-c", _DAEMON, str(note), "forking", env={}))
    assert child.collect() == 0

    def quiet():
        before = note.read_text()
        time.sleep(0.2)
        return note.read_text() == before

    until(quiet)


def test_a_daemon_of_a_child_that_runs_is_left_alone(server, tmp_path):
    """The end of another child kills only the orphans of that child."""
    note = tmp_path / "pid"
    script = _DAEMON + "\ntime.sleep(300)"
    child = server.spawn(order(PYTHON, "-I", "-S", "-c", script, str(note), "plain", env={}))
    until(note.exists)
    daemon = int(note.read_text())
    assert python(server, "pass").returncode == 0
    assert is_running(daemon)
    child.close()
    until(lambda: not exists(daemon))


_LISTENING = """
import socket
def attempt(act):
    try:
        with socket.socket() as one: act(one)
        return "ok"
    except OSError as error:
        return type(error).__name__
print(attempt(lambda one: one.listen()), attempt(lambda one: (one.bind(("0.0.0.0", 0)), one.listen())))
"""


def test_a_child_without_network_rules_does_not_listen_either(server):
    """It could send everything that it can read to its clients."""
    assert python(server, _LISTENING, **confined()).out.split() == ["PermissionError"] * 2


def test_a_path_that_became_a_link_is_not_opened(server, tmp_path):
    """Between the check and the open, another process can replace the file."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("SECRET")
    os.symlink(tmp_path / "secret", tmp_path / "open")
    held = confined(runtime_read=(str(tmp_path / "open"),))
    script = f"print(open({str(tmp_path / 'open/file')!r}).read())"
    assert python(server, script, **held).out == "SECRET\n"
    held["plan"] = held["plan"]._replace(
        exact=1, paths=[(os.path.realpath(p), m) if "open" not in p else (p, m) for p, m in held["plan"].paths]
    )
    done = python(server, script, **held)
    assert "PermissionError" in done.err
    assert str(tmp_path / "open") in done.missing


_AS_NOBODY = """
import os
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock import raw_ruleset
from democrai_sandbox.kernel.spawn.client import SpawnOrder, body_of
from tests.kernel.spawn.programs import confined
more, processors = confined(), os.sched_getaffinity(0)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ruleset, _ = raw_ruleset.build(_native, *more["plan"][:5])
text = "renice -n 5 -p {0}; taskset -p 1 {0}; chrt -b -p 0 {0}; ionice -c 3 -p {0}; nice -n 1 true && echo itself"
null = os.open("/dev/null", os.O_RDWR)
argv, environment = ("sh", "-c", text.format(os.getpid())), {"PATH": "/bin:/usr/bin"}
body, descriptors = body_of(SpawnOrder("/bin/sh", argv, environment, "/", stdout=1, keep_caps=0, **more))
pid, pidfd = _native.spawn(body, descriptors, [ruleset], null, (10, 1), (1 << 64) - 1)
os.waitpid(pid, 0)
print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_OTHER)
print(os.sched_getaffinity(0) == processors)
"""


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to become another user")
@pytest.mark.skipif(not shutil.which("chrt"), reason="needs the programs of util-linux")
def test_a_child_does_not_put_the_application_back_or_on_another_processor():
    """These calls could slow down processes permanently that signals cannot reach: users cannot raise a priority."""
    done = forked_programs.run(_AS_NOBODY)
    before = str(os.getpriority(os.PRIO_PROCESS, 0))
    assert done.stdout.split()[-4:] == ["itself", before, "True", "True"], (done.stdout, done.stderr)
