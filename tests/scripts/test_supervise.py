"""The supervisor: whatever a command starts or makes is gone when it ends, however it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.netlab import cgroup_mount, has_ended, needs_netlab
from tests.scripts.runs import ROOT, STATUS, SUPERVISE, below, wait_until

pytestmark = pytest.mark.once
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
stopped = os.fork()
if stopped == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
os.waitpid(stopped, os.WUNTRACED)
open(sys.argv[1], "w").close()
time.sleep(600)
"""
"""Three that ignore every polite signal: one of them has left its session and lost its parent, one is stopped."""


def stubborn(mark):
    return f"{shlex.quote(sys.executable)} -ISc {shlex.quote(STUBBORN)} {shlex.quote(str(mark))}"


@pytest.fixture
def makefile(tmp_path):
    """Have make start the supervisor, as the targets do."""

    def write(line):
        path = tmp_path / "Makefile"
        quoted = f"exec {shlex.quote(str(SUPERVISE))} sh -c {shlex.quote(line)}".replace("$", "$$")
        path.write_text(f"run:\n\t@{quoted}\n")
        return path

    return write


def test_status_output_and_folders_of_a_command(supervised):
    """The status is the command's; its temporary folders exist while it runs, and are gone afterwards."""
    run = supervised('touch "$TMPDIR/a" "$RUN_FOLDER/b" && ls "$RUN_FOLDER" && echo "$RUN_FOLDER" && exit 7')
    assert run.wait() == 7
    first, second, folder = run.said.splitlines()
    assert (first, second) == ("a", "b")
    assert len(folder) < 60
    assert not Path(folder).exists()


def test_a_command_that_does_not_exist():
    """A missing program gives the status that shells give."""
    done = subprocess.run([SUPERVISE, "no-such-program"], capture_output=True, text=True)
    assert done.returncode == 127
    assert done.stderr.count("\n") == 1
    assert "no-such-program" in done.stderr


def test_folders_without_rights_are_removed(supervised):
    """A folder that nobody may read or write goes too, and what a link in it points to stays."""
    run = supervised(
        'mkdir -p "$TMPDIR/a/b" && ln -s / "$TMPDIR/a/link" && chmod 0 "$TMPDIR/a/b" "$TMPDIR/a" && echo "$TMPDIR"'
    )
    assert run.wait() == 0
    assert not Path(run.said.strip()).exists()


def test_orphans_end_when_the_command_ends(supervised, tmp_path):
    """Descendants that outlive the command are ended by force, stopped and stubborn ones too, and are named."""
    mark = tmp_path / "up"
    run = supervised(f'{stubborn(mark)} & while [ ! -e "{mark}" ]; do sleep 0.02; done')
    run.wait_for(mark.exists, "three processes")
    run.look()
    assert run.wait() == 0
    assert run.left() == []
    assert run.said.count("\n") == 1
    assert Path(sys.executable).resolve().name[:6] in run.said


@pytest.mark.parametrize(("number", "whom"), [*((number, "make") for number in STATUS), (signal.SIGINT, "group")])
def test_signals_to_make(makefile, start, tmp_path, number, whom):
    """A signal to make alone, or to its whole group, ends everything below it; make ends by that signal."""
    mark = tmp_path / "up"
    run = start("make", "-f", makefile(f"sleep 600 & sleep 600 & touch '{mark}'; wait"), "run")
    run.wait_for(mark.exists, "the command")
    assert run.end(number, whom) == STATUS[number]
    assert run.folders
    assert run.left() == []


@pytest.mark.parametrize("number", STATUS)
def test_signals_to_the_supervisor(supervised, tmp_path, number):
    """Without make, the status tells the signal; a command that ends in order leaves nothing to say."""
    mark = tmp_path / "up"
    run = supervised(f"sleep 600 & trap 'echo ended; kill $!; exit 0' INT; touch '{mark}'; wait")
    run.wait_for(mark.exists, "the command")
    assert run.end(number) == STATUS[number]
    assert run.left() == []
    assert run.said == "ended\n"


def test_a_second_signal_ends_a_command_that_does_not_want_to(supervised, tmp_path):
    """What ignores the first Ctrl-C is killed at the second."""
    mark = tmp_path / "up"
    run = supervised(f"exec {stubborn(mark)}")
    run.wait_for(mark.exists, "three processes")
    run.look()

    def ended():
        os.kill(run.pid, signal.SIGINT)
        return has_ended(run.pid)

    wait_until(ended, "its end")
    assert run.wait() == 130
    assert run.left() == []


@pytest.mark.parametrize("victim", ["make", "outer", "inner"])
def test_killed_supervisors(makefile, start, tmp_path, victim):
    """When make or one of the two processes of the supervisor is killed, the others remove everything."""
    mark = tmp_path / "up"
    run = start("make", "-f", makefile(f"sleep 600 & setsid sleep 600 & touch '{mark}'; wait"), "run")
    run.wait_for(mark.exists, "the command")
    run.look()
    make, outer, inner = below(run.pid)[:3]
    os.kill({"make": make, "outer": outer, "inner": inner}[victim], signal.SIGKILL)
    assert run.wait() != 0
    wait_until(lambda: run.left() == [], lambda: f"the end of {run.left()}")


@needs_netlab
def test_control_groups_of_ended_applications(supervised, tmp_path):
    """Groups that were made in the run for processes that have ended are removed, with their members; others stay."""
    tree = cgroup_mount()
    with subprocess.Popen(["sleep", "600"]) as other:
        theirs = tree / f"democrai_os_sandbox_{other.pid}"
        mark = tmp_path / "up"
        line = f"""
            set -e
            sleep 600 & ours={tree}/democrai_os_sandbox_$!
            mkdir {theirs} $ours $ours/set_1
            echo $! >$ours/cgroup.procs
            sleep 600 & echo $! >$ours/set_1/cgroup.procs
            limits=/sys/fs/cgroup/pids
            ! test -w $limits/tasks || mkdir $limits/democrai_pids_$$_1f_20_1
            touch '{mark}'
            wait
        """
        try:
            run = supervised(line)
            run.wait_for(mark.exists, "the groups")
            assert run.end(signal.SIGTERM) == 143
            assert run.left() == []
            assert theirs.is_dir()
        finally:
            other.kill()
            theirs.rmdir()


@needs_netlab
def test_chains_of_ended_applications(tmp_path):
    """Chains in the packet filter whose application has ended are removed with the jumps to them; others stay."""
    with subprocess.Popen(["sleep", "600"]) as living:
        alive = f"DEMOCRAI_OS_{living.pid}_A"
        line = f"""
            set -e
            sleep 0 & dead=DEMOCRAI_OS_$!_A; wait
            for chain in $dead {alive}; do
                iptables -N $chain
                iptables -A OUTPUT -m comment --comment "democrai 1 2 3" -j $chain
            done
            iptables -I OUTPUT -p tcp -j $dead
        """
        # In a network of its own.
        command = ["unshare", "--net", "sh", "-c", '"$0" sh -c "$1" && exec iptables-save', SUPERVISE, line]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        living.kill()
    assert done.returncode == 0, done.stderr
    assert alive in done.stdout
    assert done.stdout.count("-j ") == 1
    assert done.stderr.count("\n") == 1


def test_two_runs_at_once(supervised, tmp_path):
    """One run ends with all that is its own, and the other does not notice."""
    marks = [tmp_path / "a", tmp_path / "b"]
    first, second = (supervised(f"touch '{mark}' \"$TMPDIR/x\"; exec sleep 600") for mark in marks)
    for run, mark in zip((first, second), marks, strict=True):
        run.wait_for(mark.exists, "the command")
        run.look()
    assert first.end(signal.SIGINT) == 130
    assert first.left() == []
    assert second.process.poll() is None
    assert all(folder.is_dir() for folder in second.folders)
    assert second.end(signal.SIGHUP) == 129
    assert second.left() == []


def test_no_room_for_a_temporary_folder(tmp_path):
    """Without a usable temporary folder, one line says so."""
    line = 'mount -t tmpfs -o ro none /tmp && TMPDIR=/tmp exec "$0" true'
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if ROOT.is_relative_to("/tmp"):
        pytest.skip("the clone lies below /tmp, which the test hides")
    environ = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", line, SUPERVISE], cwd=ROOT, capture_output=True, text=True, env=environ
    )
    assert (done.returncode, done.stderr.count("\n")) in {(1, 1), (0, 0)}, done.stderr
