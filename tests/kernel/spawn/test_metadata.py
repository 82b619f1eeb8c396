"""Changes of mode, owner and times: refused without a path for them, else made by the supervisor below these paths."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from democrai_sandbox.errors import SpawnFailed
from tests.kernel import forked_programs
from tests.kernel.appcase import short_folder
from tests.kernel.spawn.programs import (
    ABI,
    IS_ROOT,
    PYTHON,
    confined,
    descriptors,
    needs_root_to_look,
    order,
    python,
    run,
    shell,
    until,
)
from tests.services.rows import rows

pytestmark = pytest.mark.skipif(ABI < 6, reason=f"needs Landlock ABI 6, this kernel has {ABI}")

CALLS = Path(__file__).with_name("metadata.py").read_text()
NOBODY = 65534
needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root, for files of another user")


@pytest.fixture
def ground(tmp_path):
    for name in ("in", "out"):
        (tmp_path / name / "sub").mkdir(parents=True)
        for file in ("file", "sub/file"):
            (tmp_path / name / file).write_text("x")
            (tmp_path / name / file).chmod(0o640)
            os.utime(tmp_path / name / file, (5, 5))
        os.utime(tmp_path / name / "sub", (5, 5))
        os.utime(tmp_path / name, (5, 5))
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out" / "file")
    (tmp_path / "in" / "folder").symlink_to("../out")
    os.utime(tmp_path / "in" / "link", (5, 5), follow_symlinks=False)
    return tmp_path


def changing(ground, *rules, **more):
    rules = [("filesystem", "modify", str(ground / "in")), ("filesystem", "read", str(ground / "out")), *rules]
    return confined(rules, **more)


def acted(server, text, *args, **more):
    """Run a program after the calls; return what it printed."""
    done = python(server, f"{CALLS}\n{text}", args=list(map(str, args)), **more)
    assert (done.returncode, done.err) == (0, ""), done
    return done.out.strip()


def untouched(ground):
    """Whether everything outside is as before."""
    found = [os.lstat(ground / "out" / name) for name in ("file", "sub/file", "sub", ".")]
    return [(one.st_mtime, one.st_uid) for one in found] == [(5, os.getuid())] * 4 and {
        stat.S_IMODE(one.st_mode) for one in found[:2]
    } == {0o640}


# --- without a path ---------------------------------------------------------------------------------------------------


def test_without_a_rule_no_call_changes_anything(server, ground):
    """Not even by a descriptor that Landlock lets a process open for neither reading nor writing."""
    for rules in ([], [("filesystem", "read", str(ground))], [("filesystem", "create", str(ground / "out"))]):
        assert acted(server, "show(every_way(sys.argv[2]))", "EPERM", ground / "out/file", **confined(rules)) == "{}"
    assert untouched(ground)


def test_without_a_rule_files_are_still_created_with_their_mode(server, ground):
    text = f"""
os.umask(0)
os.close(os.open("{ground}/in/new", os.O_CREAT | os.O_WRONLY, 0o604))
os.mkdir("{ground}/in/made", 0o705)
print(oct(os.stat("{ground}/in/new").st_mode), oct(os.stat("{ground}/in/made").st_mode))
"""
    more = confined([("filesystem", "create", str(ground / "in"))])
    assert acted(server, text, **more) == "0o100604 0o40705"


# --- below a path -----------------------------------------------------------------------------------------------------


def test_every_call_changes_a_file_below_the_path(server, ground):
    file = ground / "in" / "file"
    assert acted(server, "show(every_way(sys.argv[2]))", "done", file, **changing(ground)) == "{}"
    found = file.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime, found.st_atime) == (0o604, 1000, 1000)


def test_every_call_does_what_it_says(server, ground):
    """Each call alone, on a file of its own."""
    text = """
os.chdir(sys.argv[2])
for name in (*PATHS, *FOLDERS, *NUMBERED):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o640))
for name in PATHS:
    by_path(name, name.encode())
for name in FOLDERS:
    by_folder(name, AT_FDCWD, name.encode())
for name in NUMBERED:
    by_number(name, os.open(name, os.O_RDONLY))
for name in (*PATHS, *FOLDERS, *NUMBERED):
    found = os.stat(name)
    changed = (found.st_mode & 0o777 == MODE, found.st_mtime == found.st_atime == TIME)
    assert changed == ("chmod" in name, "utime" in name), name
"""
    acted(server, text, "", ground / "in", **changing(ground))


def test_the_file_of_a_rule_is_changed_and_not_its_neighbor(server, ground):
    more = confined([("filesystem", "modify", str(ground / "in" / "file"))])
    text = "print(*(told(os.chmod, path, 0o600) for path in sys.argv[1:]))"
    assert acted(server, text, ground / "in/file", ground / "in/sub/file", ground / "in", **more) == "done EPERM EPERM"


def test_owners_change_as_far_as_the_user_may(server, ground):
    text = f"print(told(os.chown, sys.argv[1], {NOBODY}, -1))"
    expected = "done" if IS_ROOT else "EPERM"
    assert acted(server, text, ground / "in" / "file", **changing(ground)) == expected
    assert acted(server, text, ground / "out" / "file", **changing(ground)) == "EPERM"


@needs_root
def test_a_child_with_fewer_capabilities_changes_no_more_than_it_could_itself(server, ground):
    os.chown(ground / "in" / "file", NOBODY, NOBODY)
    text = """
print(told(os.chmod, sys.argv[1], 0o600), told(os.chown, sys.argv[2], 65534, -1), told(os.utime, sys.argv[1], (1, 1)))
"""
    args = (ground / "in/file", ground / "in/sub/file")
    assert acted(server, text, *args, keep_caps=0, **changing(ground)).split() == ["EPERM", "EPERM", "EPERM"]
    assert acted(server, text, *args, **changing(ground)) == "done done done"


def test_errors_are_those_of_the_kernel(server, ground):
    text = """
os.chdir(sys.argv[1])
import mmap
area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
_libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0)
edge = start + mmap.PAGESIZE
area[mmap.PAGESIZE - 5 : mmap.PAGESIZE] = b"file\\0"
print(
    told(by_folder, "fchmodat", AT_FDCWD, edge - 5),
    told(by_folder, "fchmodat", AT_FDCWD, edge - 4),
    told(by_folder, "fchmodat", AT_FDCWD, edge),
    told(by_folder, "fchmodat", AT_FDCWD, 0),
    told(by_folder, "fchmodat", AT_FDCWD, -1),
    told(call, NUMBER["utimensat"], AT_FDCWD, b"file", edge - 8, 0),
    told(by_folder, "utimensat", AT_FDCWD, None),
    told(by_folder, "fchownat", AT_FDCWD, b"file", 0x8000),
    told(by_folder, "fchmodat", AT_FDCWD, b""),
    told(by_folder, "fchmodat", AT_FDCWD, b"missing"),
    told(by_folder, "fchmodat", AT_FDCWD, b"file/below"),
    told(by_folder, "fchmodat", AT_FDCWD, b"x" * 300),
    told(by_folder, "fchmodat", AT_FDCWD, b"x/" * 4000),
    told(by_folder, "fchmodat", 9999, b"file"),
    told(by_number, "fchmod", 9999),
    told(by_number, "fchmod", -1),
    told(call, NUMBER["utimensat"], AT_FDCWD, b"file", struct.pack("=4q", 1, 1 << 40, 1, 0), 0),
)
"""
    assert acted(server, text, ground / "in", **changing(ground)).split() == [
        *("done", "ENOENT", "EFAULT", "EFAULT", "EFAULT", "EFAULT", "EFAULT", "EINVAL", "ENOENT", "ENOENT", "ENOTDIR"),
        *("ENAMETOOLONG", "ENAMETOOLONG", "EBADF", "EBADF", "EBADF", "EINVAL"),
    ]


def test_programs_get_no_rights_of_their_file(server, ground):
    """A file that runs with the rights of its owner would keep these rights after the worker."""
    text = """
print(told(os.chmod, sys.argv[1] + "/file", 0o4755), told(os.chmod, sys.argv[1] + "/file", 0o2755),
      told(os.chmod, sys.argv[1] + "/sub", 0o2755), told(os.chmod, sys.argv[1] + "/sub", 0o1777))
"""
    assert acted(server, text, ground / "in", **changing(ground)).split() == ["EPERM", "EPERM", "done", "done"]
    assert stat.S_IMODE((ground / "in/sub").stat().st_mode) == 0o1777


def test_a_file_without_a_name_is_changed_if_it_was_opened_for_writing(server, ground):
    text = """
os.chdir(sys.argv[1])
made = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
gone = os.open("gone", os.O_CREAT | os.O_RDWR, 0o600)
read = os.open("gone", os.O_RDONLY)
os.unlink("gone")
memory = call(279 if ARM else 319, b"memory", 8)
print(*(told(by_number, "fchmod", number) for number in (made, gone, read, memory)), told(os.fchmod, memory, 0o777))
"""
    assert acted(server, text, ground / "in", **changing(ground)).split() == ["done", "done", "EPERM", "done", "EPERM"]


# --- outside of it ----------------------------------------------------------------------------------------------------


def test_no_call_changes_a_file_elsewhere(server, ground):
    text = "show(every_way(sys.argv[2]))"
    assert acted(server, text, "EPERM", ground / "out" / "file", **changing(ground)) == "{}"
    assert untouched(ground)


def test_no_path_leads_out(server, ground):
    """By links, parent folders, folders in /proc, and the names that the supervisor itself would have there."""
    text = f"""
os.chdir("{ground}/in")
here, there = os.open(".", os.O_PATH), os.open("../out", os.O_PATH)
out = os.open("../out/file", os.O_RDONLY)
paths = [
    "link", "folder/file", "folder/sub/file", "../out/file", "sub/../../out/file", "folder/../out/file",
    "/proc/self/cwd/../out/file", "/proc/self/cwd/link", f"/proc/self/fd/{{there}}/file",
    "/proc/self/root{ground}/out/file", f"/proc/self/fd/{{there}}",
    f"/proc/self/fd/{{out}}", f"/proc/{{os.getpid()}}/fd/{{out}}", f"/proc/thread-self/fd/{{out}}", f"/dev/fd/{{out}}",
    "//proc/self/fd/0", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/00", "/proc/self/exe",
    "{ground}/in/../out/file", "{ground}/in//link", "{ground}/innocent",
]
tries = [(path, told(by_folder, name, AT_FDCWD, os.fsencode(path))) for path in paths for name in FOLDERS]
tries += [("..", told(by_folder, name, here, b"../out/file")) for name in FOLDERS]
tries += [("dir", told(by_folder, name, there, b"file")) for name in FOLDERS]
tries += [("empty", told(by_folder, name, there, b"", EMPTY)) for name in FLAGGED]
print({{(path, found) for path, found in tries if found != "EPERM"}})
"""
    (ground / "innocent").write_text("x")
    os.utime(ground / "innocent", (5, 5))
    assert acted(server, text, **changing(ground)) == "set()"
    assert untouched(ground)
    assert (ground / "innocent").stat().st_mtime == 5


def test_a_link_itself_is_changed_and_not_its_target(server, ground):
    text = """
os.chdir(sys.argv[1])
print(*(told(by_folder, name, AT_FDCWD, b"link", NOFOLLOW) for name in FLAGGED))
print(told(by_folder, "utimensat", AT_FDCWD, b"link"))
"""
    assert acted(server, text, ground / "in", **changing(ground)).split() == ["ENOTSUP", "done", "done", "EPERM"]
    assert os.lstat(ground / "in" / "link").st_mtime == 1000
    assert untouched(ground)


def test_a_path_from_an_own_descriptor_starts_at_its_folder(server, ground):
    """The guard names checked files like this, also a link itself; nothing outside is reached."""
    text = """
folder, out = os.open(sys.argv[1], os.O_PATH), os.open(sys.argv[1] + "/../out", os.O_PATH)
rests = [(folder, rest) for rest in ("link", "/file", "", "../out/file")]
for start, rest in (*rests, (out, "file"), (9999, "x")):
    path = f"/proc/self/fd/{start}/{rest}".encode()
    print(told(by_folder, "utimensat", AT_FDCWD, path, NOFOLLOW))
print(told(by_folder, "utimensat", AT_FDCWD, f"/proc/self/fd/{folder}/link".encode()))
"""
    assert acted(server, text, ground / "in", **changing(ground)).split() == [
        *("done", "done", "done", "EPERM", "EPERM", "EBADF"),
        "EPERM",
    ]
    assert os.lstat(ground / "in" / "link").st_mtime == 1000
    assert untouched(ground)


def test_an_own_link_to_an_own_file_is_followed(server, ground):
    text = """
os.chdir(sys.argv[1])
os.symlink("../in/sub", "way")
os.symlink(sys.argv[1] + "/way/file", "long")
os.chmod("long", 0o600)
"""
    acted(server, text, ground / "in", **changing(ground))
    assert stat.S_IMODE((ground / "in/sub/file").stat().st_mode) == 0o600


def test_a_hard_link_brings_no_file_in(server, ground):
    text = """
os.chdir(sys.argv[1])
LINK, RENAME = (37, 276) if ARM else (265, 316)
number, folder = os.open("../out/file", NEITHER), os.open("../out", os.O_PATH)
tries = [
    told(call, LINK, AT_FDCWD, b"../out/file", AT_FDCWD, b"hard", 0),
    told(call, LINK, folder, b"file", AT_FDCWD, b"hard", 0),
    told(call, LINK, number, b"", AT_FDCWD, b"hard", EMPTY),
    told(call, LINK, AT_FDCWD, f"/proc/self/fd/{number}".encode(), AT_FDCWD, b"hard", 0x400),
    told(call, LINK, AT_FDCWD, b"link", AT_FDCWD, b"hard", 0x400),
    told(call, RENAME, folder, b"file", AT_FDCWD, b"hard", 0),
    told(call, RENAME, AT_FDCWD, b"file", folder, b"file", 2),
    told(call, RENAME, AT_FDCWD, b"sub", folder, b"sub", 2),
]
print(*sorted(set(tries)), os.path.exists("hard"))
"""
    found = acted(server, text, ground / "in", **changing(ground)).split()
    assert found.pop() == "False"
    assert set(found) <= {"EACCES", "EXDEV", "EPERM", "ENOENT"}
    assert untouched(ground)


def test_a_path_that_changes_during_the_call_leads_nowhere_else(server, ground):
    """One thread exchanges a folder and a link to the other folder, another one the text of the path."""
    text = """
import threading, time
os.chdir(sys.argv[1])
os.symlink("../out", "swap")
os.mkdir("real"); open("real/file", "w").close()
stop, found = threading.Event(), set()
def exchange():
    while not stop.is_set():
        call(276 if ARM else 316, AT_FDCWD, b"real", AT_FDCWD, b"swap", 2)
path = ctypes.create_string_buffer(b"sub/file\\0")
def rewrite():
    while not stop.is_set():
        path.raw = b"../out/file"[: len(path.raw)].ljust(len(path.raw), b"\\0")
        path.value = b"sub/file"
number = [os.open("file", os.O_RDONLY), os.open("../out/file", os.O_RDONLY), os.open("sub/file", os.O_RDONLY)]
def renumber():
    while not stop.is_set():
        os.dup2(number[0], number[2])
        os.dup2(number[1], number[2])
threads = [threading.Thread(target=target) for target in (exchange, rewrite, renumber)]
for thread in threads: thread.start()
last = time.monotonic() + 3
while time.monotonic() < last:
    for name in ("fchmodat", "utimensat"):
        for place in (b"real/file", b"swap/file", path):
            found.add(told(by_folder, name, AT_FDCWD, place))
    for name in ("fchmod", "utimensat"):
        found.add(told(by_number, name, number[2]))
stop.set()
for thread in threads: thread.join()
print("done" in found, "EPERM" in found)
"""
    path = ground / "out" / "fil"  # a prefix of the exchanged text
    path.write_text("x")
    path.chmod(0o640)
    os.utime(path.parent, (5, 5))
    assert acted(server, text, ground / "in", **changing(ground)) == "True True"
    assert untouched(ground)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_is_replaced_during_the_call_is_changed_before_or_after(server, ground):
    """Programs replace files by renaming, while others change their mode."""
    text = """
import threading
os.chdir(sys.argv[1])
stop = threading.Event()
def replace():
    while not stop.is_set():
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY, 0o600))
        os.rename("new", "file")
        os.rename("sub", "moved")
        os.rename("moved", "sub")
thread = threading.Thread(target=replace)
thread.start()
number = os.open("sub/file", os.O_RDONLY)
found = {told(by_folder, "fchmodat", AT_FDCWD, b"file") for _ in range(3000)}
found |= {told(by_number, "fchmod", number) for _ in range(3000)}
stop.set()
thread.join()
print(*found)
"""
    assert acted(server, text, ground / "in", **changing(ground)) == "done"


def test_a_folder_that_takes_the_place_of_the_path_is_not_changed(server, ground):
    """The rule belongs to the folder that was there when the child started, as with Landlock."""
    text = """
print("ready", flush=True)
sys.stdin.readline()
print(told(os.chmod, sys.argv[1] + "/file", 0o600))
"""
    for exchange in (
        lambda: (ground / "in").symlink_to("out"),
        lambda: shutil.copytree(ground / "out", ground / "in"),
    ):
        out, into = os.pipe(), os.pipe()
        arguments = ("-I", "-S", "-c", f"{CALLS}\n{text}", str(ground / "in"))
        child = server.spawn(order(PYTHON, *arguments, stdin=into[0], stdout=out[1], **changing(ground)))
        os.close(out[1])
        os.close(into[0])
        with os.fdopen(out[0]) as told, os.fdopen(into[1], "w") as tell:
            assert told.readline() == "ready\n"
            (ground / "in").rename(ground / "before")
            exchange()
            tell.write("\n")
            tell.flush()
            assert told.readline() == "EPERM\n"
        assert child.collect() == 0
        assert untouched(ground)
        (ground / "in").unlink() if (ground / "in").is_symlink() else shutil.rmtree(ground / "in")
        (ground / "before").rename(ground / "in")


def test_a_path_that_is_a_link_at_the_start_opens_nothing(server, ground):
    (ground / "way").symlink_to("out")
    more = confined([("filesystem", "modify", str(ground / "way"))])
    text = "print(told(os.chmod, sys.argv[1], 0o600), told(os.chmod, sys.argv[2], 0o600))"
    assert acted(server, text, ground / "way/file", ground / "out/file", **more).split() == ["EPERM", "EPERM"]
    assert untouched(ground)


def test_a_descriptor_from_outside_is_not_changed(server, ground):
    """A stream that the host has opened, for writing."""
    number = os.open(ground / "out" / "file", os.O_RDWR)
    done = python(
        server, f"{CALLS}\nprint(told(by_number, 'fchmod', {number}))", pass_fds=(number,), **changing(ground)
    )
    os.close(number)
    assert done.out == "EPERM\n"
    assert untouched(ground)


# --- processes --------------------------------------------------------------------------------------------------------


def test_threads_and_children_are_served_alike(server, ground):
    text = f"""
import threading, subprocess
os.chdir("{ground}/in")
thread = threading.Thread(target=os.chmod, args=("file", 0o600))
thread.start(); thread.join()
pid = os.fork()
if pid == 0:
    os.chmod("sub/file", 0o600)
    os.execv("/bin/sh", ["sh", "-c", "chmod 604 file; chmod 604 ../out/file 2>/dev/null; true"])
os.waitpid(pid, 0)
"""
    acted(server, text, **changing(ground))
    assert [stat.S_IMODE((ground / "in" / name).stat().st_mode) for name in ("file", "sub/file")] == [0o604, 0o600]
    assert untouched(ground)


def test_no_process_holds_the_listener_or_installs_another_one(server, ground):
    """A process with a listener lets its own calls through."""
    text = f"""
links = [os.readlink(f"/proc/self/fd/{{number}}") for number in os.listdir("/proc/self/fd") if number != "3"]
print([link for link in links if "seccomp" in link or "socket" in link])
program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FC00000))
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
filter = Program(1, ctypes.addressof(program))
print(*(told(call, 277 if ARM else 317, 1, flags, ctypes.addressof(filter)) for flags in (8, 8 | 16, 8 | 32)))
os.chmod("{ground}/in/file", 0o600)
"""
    assert acted(server, text, **changing(ground)) == "[]\nEPERM EPERM EPERM"


def test_without_a_supervisor_the_calls_fail(server, ground):
    """The filter then has no listener: no call succeeds, and none waits."""
    more = changing(ground)
    more["plan"] = more["plan"]._replace(metadata=())
    text = "show(every_way(sys.argv[2]))"
    assert acted(server, text, "ENOSYS", ground / "in" / "file", **more) == "{}"


@needs_root_to_look
def test_a_child_ends_with_its_supervisor(own_server, ground):
    """It is the spawn server: nothing waits for an answer, and the next server serves new children."""
    text = f"""
print("ready", flush=True)
while True:
    os.chmod("{ground}/in/file", 0o600)
"""
    out = os.pipe()
    child = own_server.spawn(order(PYTHON, "-I", "-S", "-c", f"{CALLS}\n{text}", stdout=out[1], **changing(ground)))
    os.close(out[1])
    with os.fdopen(out[0]) as told:
        assert told.readline() == "ready\n"
        os.kill(own_server.stats()["pid"], signal.SIGKILL)
        assert told.read() == ""
    with pytest.raises(SpawnFailed):
        child.collect()
    until(lambda: own_server.answers(1))
    assert acted(own_server, f"os.chmod('{ground}/in/file', 0o604)", **changing(ground)) == ""
    assert stat.S_IMODE((ground / "in" / "file").stat().st_mode) == 0o604


@needs_root_to_look
def test_children_that_end_during_a_call_leave_nothing_behind(own_server, ground):
    text = """
import threading
def change():
    while True:
        told(os.chmod, sys.argv[1], 0o600)
for _ in range(3):
    threading.Thread(target=change, daemon=True).start()
print("ready", flush=True)
import time; time.sleep(0.02)
os.kill(os.getpid(), 9)
"""
    acted(own_server, "", **changing(ground))
    before = descriptors(own_server)
    for _ in range(10):
        done = python(own_server, f"{CALLS}\n{text}", args=[str(ground / "in/file")], **changing(ground))
        assert (done.returncode, done.out) == (-signal.SIGKILL, "ready\n")
    until(lambda: len(descriptors(own_server)) <= len(before))
    assert acted(own_server, "os.chmod(sys.argv[1], 0o604)", ground / "in/file", **changing(ground)) == ""


def test_a_program_that_cannot_be_started_leaves_nothing_behind(own_server, ground):
    with pytest.raises(FileNotFoundError):
        own_server.spawn(order("/nonexistent/program", **changing(ground)))
    assert acted(own_server, "", **changing(ground)) == ""


def test_a_child_with_many_calls_does_not_delay_others(server, ground):
    """Its calls and those of another child take turns."""
    flood = """
import threading
def change():
    while True:
        told(os.chmod, sys.argv[1], 0o600)
for _ in range(8):
    threading.Thread(target=change, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
    calm = """
import time
start = time.monotonic()
for _ in range(200):
    os.chmod(sys.argv[1], 0o604)
print(time.monotonic() - start < 20)
"""
    out, into = os.pipe(), os.pipe()
    arguments = ("-I", "-S", "-c", f"{CALLS}\n{flood}", str(ground / "in/file"))
    child = server.spawn(order(PYTHON, *arguments, stdin=into[0], stdout=out[1], **changing(ground)))
    os.close(out[1])
    os.close(into[0])
    with os.fdopen(out[0]) as told, os.fdopen(into[1], "w"):
        assert told.readline() == "ready\n"
        assert acted(server, calm, ground / "in/sub/file", **changing(ground)) == "True"
    os.kill(child.pid, signal.SIGKILL)
    child.collect()


def test_signals_restart_a_call_if_the_program_wants_that(server, ground):
    text = """
import signal
count = 0
def tick(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, tick)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(1000):
    by_folder("utimensat", AT_FDCWD, os.fsencode(sys.argv[1]))
while count < 3:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    acted(server, text, ground / "in/file", **changing(ground))


_AS_NOBODY = """
import os, socket, sys
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock import raw_ruleset
from democrai_sandbox.kernel.spawn.client import SpawnOrder, body_of
from tests.kernel.spawn.programs import confined
os.chdir(sys.argv[1])
more = confined([("filesystem", "modify", sys.argv[1] + "/in")])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
_native.set_dumpable(False)
os.umask(0o077)
for name in ("in", "out"):
    os.mkdir(name)
    os.close(os.open(name + "/file", os.O_CREAT))
plan = more["plan"]
ruleset, _ = raw_ruleset.build(_native, *plan[:5])
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
_native.supervise(ours.fileno(), raw_ruleset.identified(plan.metadata))
ours.close()
text = "chmod 604 in/file && (exec 3<in/file; touch -d @1000 in/file); chmod 604 out/file || echo refused"
more |= {"limits": (), "keep_caps": 0, "stdout": 1}
command = ("sh", "-c", text)
body, descriptors = body_of(SpawnOrder("/bin/sh", command, {"PATH": "/bin:/usr/bin"}, sys.argv[1], **more))
null = os.open("/dev/null", os.O_RDWR)
pid, pidfd = _native.spawn(body, descriptors, [ruleset], null, (10, 1), (1 << 64) - 1, theirs.fileno())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(oct(os.stat("in/file").st_mode), os.stat("in/file").st_mtime, oct(os.stat("out/file").st_mode))
"""


@needs_root
def test_another_user_than_root_is_served_too():
    """That hides from others, like the spawn server."""
    with short_folder() as folder:
        os.chmod(folder, 0o777)
        done = forked_programs.run(_AS_NOBODY, str(folder))
    assert done.stdout.split() == ["refused", "0", "0o100604", "1000.0", "0o100700"], done.stderr


_HANGING = """
import ctypes, os, struct, sys, threading
from democrai_sandbox.kernel.spawn import SpawnServer
from tests.kernel.spawn.programs import PYTHON, confined, order, shell, until
libc = ctypes.CDLL(None, use_errno=True)
folder = sys.argv[1]
assert libc.unshare(0x20000) == 0  # mounts of its own, private
assert libc.mount(None, b"/", None, 0x44000, None) == 0
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
assert libc.mount(b"slow", f"{folder}/sub".encode(), b"fuse", 0, options.encode()) == 0, ctypes.get_errno()
asked = []
ANSWERS = {
    26: struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 1 << 18, 9, 9, 4096, 1, 0, 0, 0),
    3: struct.pack("=QII6Q10I", 1000, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0),
}
def answer():
    while True:
        request = os.read(device, 1 << 17)
        _, kind, number = struct.unpack_from("=IIQ", request)
        if kind == 1:
            asked.append(number)  # a search for a name
        elif kind in ANSWERS:
            os.write(device, struct.pack("=IiQ", 16 + len(ANSWERS[kind]), 0, number) + ANSWERS[kind])
threading.Thread(target=answer, daemon=True).start()
server = SpawnServer.start()
more = confined([("filesystem", "modify", folder)])
text = "import os, sys; os.chmod(sys.argv[1], 0o600)"
children = [
    server.spawn(order(PYTHON, "-I", "-S", "-c", text, f"{folder}/sub/{name}", **more)) for name in range(8)
]
until(lambda: len(asked) == len(children))
print(shell(server, f"chmod 604 {folder}/file && stat -c %a {folder}/file", **more).out.strip(), flush=True)
for number in asked:
    os.write(device, struct.pack("=IiQ", 16, -2, number))
print({child.collect() for child in children}, flush=True)
server.stop()
os._exit(0)
"""


@needs_root
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs FUSE, for a file system that does not answer")
def test_calls_that_hang_delay_no_other_child(ground):
    done = forked_programs.run(_HANGING, str(ground / "in"))
    assert done.stdout.split() == ["604", "{1}"], done.stderr


_WITH_LISTENER = """
import ctypes, os, struct, sys
from democrai_sandbox.kernel.spawn import SpawnServer
from tests.kernel.spawn.programs import confined, shell
libc = ctypes.CDLL(None, use_errno=True)
program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
filter = ctypes.create_string_buffer(struct.pack("=H6xQ", 1, ctypes.addressof(program)))
libc.prctl(38, 1, 0, 0, 0)
number = 277 if os.uname().machine == "aarch64" else 317
assert libc.syscall(number, 1, 8, filter) >= 0, ctypes.get_errno()
server = SpawnServer.start()
done = shell(server, f"echo x > {sys.argv[1]}/new && chmod 600 {sys.argv[1]}/new",
             **confined([("filesystem", "modify", sys.argv[1])]))
print(done.returncode, "not implemented" in done.err.lower(), os.path.exists(sys.argv[1] + "/new"))
server.stop()
"""


def test_below_a_filter_with_a_listener_the_calls_fail_and_programs_run(ground):
    """Some container managers install one; the kernel permits no second one."""
    done = forked_programs.run(_WITH_LISTENER, str(ground / "in"))
    assert done.stdout.split() == ["1", "True", "True"], done.stderr


# --- what programs do -------------------------------------------------------------------------------------------------

TOOLS = """
import os, sys, shutil, tempfile, tarfile, zipfile, sqlite3
folder = sys.argv[1]
os.environ["TMPDIR"] = folder
tempfile.tempdir = None
os.makedirs(folder + "/a/b")
with open(folder + "/a/b/file", "w") as file:
    file.write("x")
os.chmod(folder + "/a/b/file", 0o751)
os.utime(folder + "/a/b/file", (10**9, 10**9))
shutil.copy(folder + "/a/b/file", folder + "/copy")
shutil.copy2(folder + "/a/b/file", folder + "/copy2")
shutil.copytree(folder + "/a", folder + "/tree")
with tarfile.open(folder + "/t.tar", "w") as tar:
    tar.add(folder + "/a", "a")
with tarfile.open(folder + "/t.tar") as tar:
    tar.extractall(folder + "/untar", filter="fully_trusted")
with zipfile.ZipFile(folder + "/z.zip", "w") as packed:
    packed.write(folder + "/a/b/file", "file")
with zipfile.ZipFile(folder + "/z.zip") as packed:
    packed.extractall(folder + "/unzip")
with tempfile.TemporaryDirectory() as inner, tempfile.NamedTemporaryFile(dir=inner) as file:
    os.fchmod(file.fileno(), 0o644)
    os.chmod(inner, 0o500)
base = sqlite3.connect(folder + "/base")
base.execute("pragma journal_mode=wal")
base.execute("create table t(x)")
for name in ("copy", "copy2", "tree/b/file", "untar/a/b/file"):
    found = os.stat(f"{folder}/{name}")
    print(name, oct(found.st_mode & 0o777), name == "copy" or found.st_mtime)
"""


@rows("own", [False, True], ids=["a rule", "its own folder"])
def test_the_standard_library_works(server, ground, own):
    """In a declared folder, and in one that the runtime gives a subject without rules."""
    folder = str(ground / "in" / ("sub" if own else "."))
    more = {"own_write": (folder,)} if own else {}
    rules = [] if own else [("filesystem", "modify", folder)]
    done = run(server, PYTHON, "-I", "-c", TOOLS, folder, **confined(rules, **more))
    assert done.err == ""
    assert done.out.splitlines() == [
        "copy 0o751 True",
        *(f"{name} 0o751 1000000000.0" for name in ("copy2", "tree/b/file", "untar/a/b/file")),
    ]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_works_in_a_folder_that_the_runtime_gives(server, ground):
    text = """
export HOME={0}/in GIT_CONFIG_NOSYSTEM=1; cd {0}/in && git init -q r && cd r && echo x > f && chmod +x f && git add f &&
git -c user.name=n -c user.email=e commit -qm first && git clone -q . ../s && git -C ../s ls-files -s | cut -c -6
"""
    more = confined([("filesystem", "read", "/dev/urandom")], own_write=(str(ground / "in"),))
    done = shell(server, text.format(ground), **more)
    assert done.out == "100755\n", done.err
