"""Limit of processes for children of root: a pids cgroup for each, which goes with its last process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.helper.cgroups import own_folder
from democrai_sandbox.kernel.spawn import SpawnServer
from democrai_sandbox.kernel.spawn.pids_cgroups import PREFIX, PidsCgroups
from tests.kernel.spawn.programs import IS_ROOT, SHELL, SYSTEM, application, confined, order, python, run, shell, until
from tests.services.rows import rows

FOLDER = Path(own_folder("pids") or "/nowhere")
LIMIT = 20
LIMITS = ((resource.RLIMIT_NPROC, LIMIT),)


@pytest.fixture(scope="module")
def usable(server):
    if not server.limits_processes:
        pytest.skip("needs root, and a writable tree of the pids controller")


needs_cgroups = pytest.mark.usefixtures("usable")


def _groups():
    """Pids cgroups of all servers of this process."""
    return set(FOLDER.glob(f"{PREFIX}{os.getpid()}_*"))


def _most(pid):
    """Limit of the cgroup of a process; None outside."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    names = [line.rpartition("/")[2] for line in lines if PREFIX in line]
    return int((FOLDER / names[0] / "pids.max").read_text()) if names else None


# Without the limit it does not fork at all.
_BOMB = f"""
import json, os, signal, time
lines = open("/proc/self/cgroup").read().splitlines()
name = [line.rpartition("/")[2] for line in lines if {PREFIX!r} in line][0]
assert open({str(FOLDER)!r} + "/" + name + "/pids.max").read() == "{LIMIT}\\n"
started, number = [], 0
for _ in range(2 * {LIMIT}):
    try:
        pid = os.fork()
    except OSError as error:
        number = error.errno
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    started.append(pid)
for pid in started:
    os.kill(pid, signal.SIGKILL)
print(json.dumps([len(started), number]))
"""


@needs_cgroups
def test_a_child_of_root_reaches_its_limit(server):
    """It gets EAGAIN like any other user, and others continue."""
    other = server.spawn(order(SHELL, "-c", "exec sleep 300", limits=LIMITS))
    done = python(server, _BOMB, limits=LIMITS)
    assert (done.returncode, done.err) == (0, "")
    assert json.loads(done.out) == [LIMIT - 1, 11]
    assert shell(server, "/bin/true & wait; exit 4", limits=LIMITS).returncode == 4
    other.close()
    until(lambda: not _groups())


@needs_cgroups
def test_each_child_has_a_cgroup_of_its_own_until_its_end(server):
    children = [server.spawn(order(SHELL, "-c", "exec sleep 300", limits=LIMITS)) for _ in range(2)]
    assert [_most(child.pid) for child in children] == [LIMIT] * 2
    assert len(_groups()) == 2
    for child in children:
        child.signal_group(signal.SIGKILL)
        child.collect()
    assert _groups() == set()


@needs_cgroups
def test_a_child_without_this_limit_has_none(server):
    child = server.spawn(order(SHELL, "-c", "exec sleep 300", limits=((resource.RLIMIT_NOFILE, 50),)))
    assert _most(child.pid) is None
    child.close()


@needs_cgroups
def test_the_cgroup_of_a_child_goes_with_the_processes_that_it_leaves(server):
    """Also if they are in another session."""
    done = shell(server, "for i in 1 2 3; do setsid sleep 300 & done; exit 3", limits=LIMITS)
    assert done.returncode == 3
    until(lambda: not _groups())


@needs_cgroups
@rows("program", ["/no/such/program", "/etc"])
def test_a_program_that_cannot_start_leaves_no_cgroup(server, program):
    with pytest.raises(OSError, match=program):
        run(server, program, limits=LIMITS)
    until(lambda: not _groups())


@needs_cgroups
def test_a_confined_child_can_neither_leave_nor_change_its_cgroup(server):
    files = [FOLDER / "tasks", FOLDER / "cgroup.procs", FOLDER / "cgroup.threads"]
    tried = " ".join(str(path) for path in files if path.exists())
    text = (
        f"set -- {FOLDER}/{PREFIX}{os.getpid()}_*; cat $1/pids.max; "
        f"for f in {tried} $1/pids.max; do echo 0 > $f && echo changed; done; mkdir $1/x"
    )
    rules = [("filesystem", "read", "/sys"), ("filesystem", "modify", "/srv")]
    with_rules = confined(rules, runtime_execute=SYSTEM)
    done = shell(server, text, **(with_rules | {"limits": LIMITS}))
    assert (done.returncode, done.out) == (1, f"{LIMIT}\n")
    assert done.err.count("ermission denied") == len(tried.split()) + 2


@needs_cgroups
def test_the_next_server_removes_what_a_killed_one_left_and_limits_too(own_server):
    child = own_server.spawn(order(SHELL, "-c", "setsid sleep 300 & exec sleep 300", limits=LIMITS))
    before = _groups()
    assert len(before) == 1
    os.kill(own_server.pid, signal.SIGKILL)
    child.close()
    until(lambda: own_server.answers(1))
    until(lambda: not _groups())
    assert own_server.limits_processes
    child = own_server.spawn(order(SHELL, "-c", "exec sleep 300", limits=LIMITS))
    assert _most(child.pid) == LIMIT
    child.close()


@needs_cgroups
def test_a_stopped_server_leaves_none():
    server = SpawnServer.start()
    child = server.spawn(order(SHELL, "-c", "exec sleep 300", limits=LIMITS))
    server.stop()
    child.close()
    assert _groups() == set()


_APPLICATION = f"""
import sys
from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder
server = SpawnServer.start()
limits = ((6, {LIMIT}),)
child = server.spawn(SpawnOrder("/bin/sleep", ("sleep", "300"), {{}}, "/", limits=limits))
server.stats()
print(server.pid, server.standby, flush=True)
sys.stdin.read()
"""


@needs_cgroups
def test_the_cgroups_of_an_application_that_was_killed_with_its_servers_are_removed_by_another():
    app = application(_APPLICATION)
    pids = [app.pid, *map(int, app.stdout.readline().split())]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    app.wait()
    app.stdout.close()
    app.stdin.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    left = set(FOLDER.glob(f"{PREFIX}{app.pid}_*"))
    assert len(left) == 1

    def removed():
        SpawnServer.start().stop()
        return not any(path.exists() for path in left)

    until(removed)


@needs_cgroups
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_read_only_tree_is_noticed():
    """The server says so, and starts children without a cgroup."""
    script = (
        "from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder\n"
        "server = SpawnServer.start()\n"
        "child = server.spawn(SpawnOrder('/bin/true', ('true',), {}, '/', limits=((6, 20),)))\n"
        "print(server.limits_processes, child.collect())\n"
        "server.stop()\n"
    )
    shut = f'mount --bind -o ro {FOLDER} {FOLDER} && mount -o remount,bind,ro {FOLDER} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", shut, "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("False 0\n", "")


@rows("names", [[], ["tasks"], ["cgroup.subtree_control"]])
def test_a_folder_that_is_no_cgroup_is_not_used(tmp_path, names):
    place = tmp_path / "-".join(["place", *names])
    place.mkdir()
    for name in names:
        (place / name).write_text("cpu pids\n")
    groups = PidsCgroups(str(place), os.getpid(), 1)
    groups.begin()
    assert not groups.usable
    assert groups.make(LIMIT) == ("", -1)
    assert os.listdir(place) == names


def test_a_server_says_whether_it_limits_processes(server):
    assert server.stats()["pids_cgroups"] is server.limits_processes
    assert IS_ROOT or not server.limits_processes


@needs_cgroups
def test_a_failing_cgroup_fails_the_start(own_server):
    """It is not started without its limit."""
    child = own_server.spawn(order(SHELL, "-c", "exec sleep 300", limits=LIMITS))
    [group] = _groups()
    child.close()
    until(lambda: not _groups())
    front, _, number = group.name.rpartition("_")
    (FOLDER / f"{front}_{int(number) + 1}").mkdir()
    try:
        with pytest.raises(SpawnFailed, match="'pids'"):
            shell(own_server, "exit 3", limits=LIMITS)
    finally:
        (FOLDER / f"{front}_{int(number) + 1}").rmdir()
    assert shell(own_server, "exit 3", limits=LIMITS).returncode == 3
