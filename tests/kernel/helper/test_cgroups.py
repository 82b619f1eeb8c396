"""Cgroups: found at any mount point, and removed with all their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper.cgroups import Cgroup, find_tree, own_folder
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.netlab import cgroup_mount, cgroup_of, needs_netlab, remove_cgroup, wait_until
from tests.services.rows import rows


@pytest.fixture
def group(request):
    name = f"democrai_test_{os.getpid()}_{abs(hash(request.node.name)) % 10**6}"
    yield find_tree().group(name)
    remove_cgroup(cgroup_mount() / name)


SLEEP = "import time; time.sleep(60)"
# It forks on command: children created before the move would stay outside.
FORK = "import os, time\ninput()\nfor _ in range(5):\n    if os.fork() == 0: break\ntime.sleep(60)"


@pytest.fixture
def sleeper():
    """Start processes that end with the test in any case."""
    started = []

    def start(code=SLEEP):
        argv = [sys.executable, "-I", "-S", "-c", code]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(30)
        process.stdin.close()


def fork_inside(group, process):
    """Move a process in, and let it fork there."""
    group.add(process.pid)
    process.stdin.write("now\n")
    process.stdin.flush()
    wait_until(lambda: len(group.members()) > 1, "children")


def mountinfo(tmp_path, *lines):
    file = tmp_path / "mountinfo"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def folder(tmp_path, name):
    made = tmp_path / name
    made.mkdir(exist_ok=True)
    (made / "cgroup.procs").touch()
    return made


def test_the_tree_is_found_wherever_it_is_mounted(tmp_path):
    place = folder(tmp_path, "with blank")
    written = str(place).replace(" ", "\\040")
    file = mountinfo(
        tmp_path,
        "33 25 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "34 33 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        f"43 33 0:40 / {written} rw,nosuid shared:4 master:2 - cgroup2 cgroup2 rw,nsdelegate",
    )
    tree = find_tree(file)
    assert tree.mount == str(place)
    assert tree.application(5).relative == "democrai_os_sandbox_5"


def test_a_part_of_the_tree_is_named_from_the_root_for_the_filter(tmp_path):
    place = folder(tmp_path, "part")
    tree = find_tree(mountinfo(tmp_path, f"43 33 0:40 /system.slice/x {place} rw - cgroup2 cgroup2 rw"))
    assert tree.application(5).relative == "system.slice/x/democrai_os_sandbox_5"
    assert tree.application(5).path == f"{place}/democrai_os_sandbox_5"


def test_a_writable_mount_is_preferred_to_one_that_is_not(tmp_path):
    one, two = folder(tmp_path, "one"), folder(tmp_path, "two")
    lines = [f"43 33 0:40 / {one} ro - cgroup2 cgroup2 rw", f"44 33 0:40 / {two} rw - cgroup2 cgroup2 rw"]
    assert find_tree(mountinfo(tmp_path, *lines)).mount == str(two)


_V1 = "36 31 0:33 / /cg/pids rw - cgroup cgroup rw,pids"
_V2 = "41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw"


@rows(
    ("mounts", "own", "found"),
    [
        ([_V1, _V2], "9:name=systemd:/s\n8:pids:/a b\n0::/x\n", "/cg/pids/a b"),
        ([_V2, _V1.replace("rw,pids", "rw,cpu,pids")], "8:cpu,pids:/\n0::/x\n", "/cg/pids"),
        ([_V1.replace("/ /cg", "/docker/1 /cg")], "8:pids:/docker/1/x\n", "/cg/pids/x"),
        ([_V1.replace("/ /cg", "/docker/1 /cg")], "8:pids:/docker/10\n", ""),
        ([_V1.replace("pids rw", "pids ro")], "8:pids:/\n", ""),
        ([_V1.replace("rw,pids", "rw,cpu"), _V2], "8:cpu:/\n0::/x\n", "/cg/unified/x"),
        ([_V2], "0::/\n", "/cg/unified"),
        ([], "0::/\n", ""),
    ],
)
def test_the_folder_of_this_process_is_that_of_the_controller(tmp_path, mounts, own, found):
    """In cgroup v1 where it has a writable tree, otherwise in v2."""
    cgroup = tmp_path / "cgroup"
    cgroup.write_text(own)
    assert own_folder("pids", mountinfo(tmp_path, *mounts), str(cgroup)) == found


@rows("options", ["ro,nosuid - cgroup2 cgroup2 rw", "rw - cgroup2 cgroup2 ro"])
def test_a_read_only_tree_is_refused_with_the_fix(tmp_path, options):
    with pytest.raises(RequestRefused) as caught:
        find_tree(mountinfo(tmp_path, f"43 33 0:40 / {folder(tmp_path, 'tree')} {options}"))
    assert caught.value.reason == "cgroup_read_only"
    assert "remount,rw" in caught.value.fix


@rows(
    "line",
    [
        "34 33 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "43 33 0:40 / /nowhere rw - cgroup2 cgroup2 rw",
        "43 33 0:40 /../.. /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        "nonsense",
    ],
)
def test_a_machine_without_such_a_tree_is_refused_with_the_fix(tmp_path, line):
    with pytest.raises(RequestRefused) as caught:
        find_tree(mountinfo(tmp_path, line))
    assert caught.value.reason == "no_cgroup2"
    assert "mount -t cgroup2" in caught.value.fix


@needs_netlab
def test_a_tree_that_is_bound_read_only_is_noticed_by_the_real_kernel():
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from democrai_sandbox.kernel.helper.cgroups import *\n"
        "from democrai_sandbox.kernel.helper.protocol import RequestRefused\n"
        "tree = Tree(sys.argv[2], '/')\n"
        "for act in (find_tree, lambda: tree.application(os.getpid()).make()):\n"
        "    try: act()\n"
        "    except RequestRefused as refused: print(refused.reason)\n"
    )
    mount = cgroup_mount()
    script = f'mount --bind {mount} {mount} && mount -o remount,bind,ro {mount} && exec "$@"'
    source = str(Path(__file__).parents[3] / "src")
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*argv, sys.executable, "-I", "-c", code, source, str(mount)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["cgroup_read_only"] * 2, done.stderr


@needs_netlab
def test_a_process_is_moved_in_and_killed_with_what_it_has_started(group, sleeper):
    group.make("7 8")
    assert group.mark() == "7 8"
    process = sleeper()
    group.add(process.pid)
    second = group.below("set_1")
    second.make()
    forking = sleeper(FORK)
    fork_inside(second, forking)
    assert cgroup_of(process.pid) == f"/{group.relative}"
    assert group.members() == [process.pid]
    assert group.populated()
    assert not group.remove()
    assert group.kill()
    assert process.wait(30) == forking.wait(30) == -9
    assert not group.populated()
    assert group.remove()
    assert group.identity() is None


@needs_netlab
def test_a_kernel_without_cgroup_kill_is_helped_by_signals(group, sleeper, monkeypatch):
    group.make()
    inner = group.below("set_1")
    inner.make()
    process = sleeper(FORK)
    fork_inside(inner, process)
    write = Cgroup._write

    def older(self, name, text):
        if name == "cgroup.kill":
            raise FileNotFoundError(2, name)
        write(self, name, text)

    monkeypatch.setattr(Cgroup, "_write", older)
    assert group.kill(10)
    assert process.wait(30) == -9


@needs_netlab
def test_a_dead_process_cannot_be_moved(group, sleeper):
    group.make()
    process = sleeper("pass")
    process.wait(30)
    with pytest.raises(RequestRefused) as caught:
        group.add(process.pid)
    assert caught.value.reason == "gone"


@needs_netlab
def test_a_group_made_again_has_another_identity(group):
    first = group.make()
    assert group.make() == first
    assert group.remove()
    assert group.make() != first


@needs_netlab
def test_a_group_that_is_gone_is_no_failure_to_look_at(group):
    assert group.identity() is None
    assert group.members() == []
    assert not group.populated()
    assert group.kill()
    assert group.remove()
    for act in (group.opened, lambda: group.add(os.getpid())):
        with pytest.raises(RequestRefused) as caught:
            act()
        assert caught.value.reason == "gone"


@needs_netlab
def test_the_folder_can_be_looked_into_whatever_the_umask(group):
    before = os.umask(0o077)
    try:
        group.make()
    finally:
        os.umask(before)
    assert os.stat(group.path).st_mode & 0o777 == 0o755


@needs_netlab
def test_the_place_of_a_process_is_told_as_a_folder(group, sleeper):
    group.make()
    tree = find_tree()
    process = sleeper()
    assert tree.path_of(process.pid) == str(Path(tree.mount, cgroup_of(process.pid).lstrip("/")))
    group.add(process.pid)
    assert tree.path_of(process.pid) == group.path
    process.kill()
    process.wait(30)
    assert tree.path_of(process.pid) is None
