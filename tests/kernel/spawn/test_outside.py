"""Operations outside the rules that Landlock does not check: those that the filter stops, and those that nothing stops.

Each operation runs in a child of the spawn server: unconfined, where all succeed; without rules; with a network rule.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.spawn.programs import ABI, PYTHON, confined, python, run, shell

pytestmark = pytest.mark.skipif(ABI < 6, reason=f"needs Landlock ABI 6, this kernel has {ABI}")

SCRIPT = Path(__file__).with_name("outside.py").read_text()
THROUGH = "through"
ARM = platform.machine() == "aarch64"
KERNEL = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", platform.release()).groups())
_libc = ctypes.CDLL(None, use_errno=True)

SHARED = {"mq_open", "mq_open new", "mq_unlink", "shmget", "msgget", "semget", "add_key"}
ATTRIBUTES = {
    *(f"{how}{act}xattr" for how in ("", "l", "f") for act in ("set", "get", "list", "remove")),
    *("listxattrat", "removexattrat", "file_getattr", "file_setattr", "flags of a file", "lease"),
}
NOTICES = {"inotify", "name_to_handle_at"}
MEMORY = {"memfd", "memfd, executable"}
TABLES = {"/proc/self/net", "/proc/net", "/proc/thread-self/net", "/proc/self/task/net", "/proc/PID/net"}
TABLES_ELSEWHERE = {"/sys/class/net", "netlink sockets"}
INTERFACES = {"netlink routes", "interfaces by ioctl"}
GROUPS = {"join v4", "join v4, one source", "join v4, group", "join v4 by v6", "join v6", "join v6, group"}
METADATA = {"chmod", "chown", "utime"}
CLOSED = SHARED | ATTRIBUTES | NOTICES | MEMORY | TABLES | TABLES_ELSEWHERE | GROUPS | METADATA
NOT_CLOSABLE = {
    *("stat", "access", "readlink", "chdir", "statvfs", "open for neither"),
    *("loader", "code in memory"),
}
NEWER = {"listxattrat": (6, 13), "removexattrat": (6, 13), "file_getattr": (6, 17), "file_setattr": (6, 17)}
"""First kernel with this call."""


@contextmanager
def queue(name):
    """A queue of another process."""
    number = _libc.syscall(180 if ARM else 240, name.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
    assert number >= 0, os.strerror(ctypes.get_errno())
    os.close(number)
    try:
        yield
    finally:
        for left in (name, f"{name}-new"):
            _libc.syscall(181 if ARM else 241, left.encode())


@pytest.fixture
def ground(tmp_path):
    """Create the files again before each operation: some of them use them up."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "file").write_text("x")
    (tmp_path / "out" / "link").symlink_to("file")
    shutil.copy("/bin/true", tmp_path / "in" / "true")
    return tmp_path


def tried(server, ground, acts, **more):
    """Run operations in a child; return their outcomes."""
    file = ground / "out" / "file"
    found = {}
    with queue(f"outside-{os.getpid()}"):
        plan = {
            "file": str(file),
            "folder": str(ground / "out"),
            "link": str(ground / "out" / "link"),
            "queue": f"outside-{os.getpid()}",
            "program": str(ground / "in" / "true"),
        }
        using_up = [name for name in acts if name.endswith(("removexattr", "removexattrat"))]
        for names in ([name for name in acts if name not in using_up], *([name] for name in using_up)):
            if names:
                os.setxattr(file, "user.there", b"1")
                done = python(server, SCRIPT, args=[json.dumps(plan), *names], **more)
                assert done.returncode == 0, done.err
                found |= dict(map(json.loads, done.out.splitlines()))
    return found


def known(acts):
    return sorted(name for name in acts if KERNEL >= NEWER.get(name, (0,)))


def reading(ground, *rules):
    return confined([("filesystem", "read", str(ground / "in")), *rules])


def has_attributes(folder):
    try:
        os.setxattr(folder, "user.there", b"1")
    except OSError:
        return False
    return True


needs_v6 = {"join v4 by v6", "join v6", "join v6, group"}


def test_each_act_works_without_confinement(server, ground):
    """Without the confinement they succeed."""
    if not has_attributes(ground):
        pytest.skip("this file system has no extended attributes")
    acts = known(CLOSED | INTERFACES | NOT_CLOSABLE)
    if not Path("/proc/net/if_inet6").exists():
        acts = [name for name in acts if name not in needs_v6]
    found = tried(server, ground, acts)
    assert {name: told for name, told in found.items() if told != THROUGH} == {}


def test_a_child_without_rules_does_none_of_it(server, ground):
    found = tried(server, ground, known(CLOSED | INTERFACES), **reading(ground))
    assert {name for name, told in found.items() if told == THROUGH} == set()
    assert {found[name] for name in ("setxattr", "fsetxattr", "getxattr", "listxattr")} == {"ENOTSUP"}
    assert {found[name] for name in MEMORY} == {"EACCES"}
    assert {found[name] for name in METADATA} == {"EPERM"}
    assert os.listxattr(ground / "out" / "file") == ["user.there"]


def test_a_child_with_a_network_rule_is_told_about_interfaces_and_nothing_more(server, ground):
    more = reading(ground, ("network", "connect", "127.0.0.1:9"))
    found = tried(server, ground, known(CLOSED | INTERFACES), **more)
    assert {name for name, told in found.items() if told == THROUGH} == INTERFACES


def test_groups_are_joined_where_a_rule_names_one(server, ground):
    more = reading(ground, ("network", "connect", "239.9.9.9:9"))
    found = tried(server, ground, ["join v4", "join v4, group"], **more)
    assert set(found.values()) == {THROUGH}


def test_the_tables_of_the_network_are_open_where_a_rule_names_them(server, ground):
    for path in ("/proc/net", "/proc/self/net/unix", "/proc/self"):
        found = tried(server, ground, ["/proc/self/net", "/proc/net"], **reading(ground, ("filesystem", "read", path)))
        assert set(found.values()) == {THROUGH}, path


def test_nothing_closes_what_landlock_leaves_open_and_programs_need(server, ground):
    """SECURITY.md names each: a filter cannot read paths, and programs do this to their files."""
    found = tried(server, ground, sorted(NOT_CLOSABLE), **reading(ground))
    assert {name for name, told in found.items() if told == THROUGH} == NOT_CLOSABLE


def test_memory_files_that_cannot_be_executed_are_made(server):
    text = """
import os, mmap
number = os.memfd_create("x", os.MFD_CLOEXEC | 8)
os.write(number, b"content")
print(mmap.mmap(number, 7)[:].decode())
"""
    if KERNEL < (6, 3):
        pytest.skip("this kernel has no such memory files")
    assert python(server, text, **confined()).out == "content\n"
    text = "import os; os.fchmod(os.memfd_create('x', 8), 0o777)"
    assert "PermissionError" in python(server, text, **confined()).err


def test_it_still_looks_at_itself_in_proc(server):
    names = ("stat", "statm", "status", "maps", "smaps", "limits", "cgroup", "mountinfo", "cmdline", "environ", "comm")
    text = f"""
import os, threading
for name in {names!r}:
    open(f"/proc/self/{{name}}", "rb").read()
for name in ("stat", "status", "comm"):
    open(f"/proc/thread-self/{{name}}", "rb").read()
waiting = threading.Event()
threading.Thread(target=waiting.wait).start()
print(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")) > 2, os.readlink("/proc/self/fd/0"))
open("/proc/self/fdinfo/0").read()
waiting.set()
"""
    done = python(server, text, **confined())
    assert (done.out, done.err) == ("2 True /dev/null\n", "")


COPIES = """
cd {0}/in && echo one > a && touch -d @1000 a && chmod 640 a &&
cp -a a b && mkdir c && cp -a a c/ && tar cf t.tar a c && mkdir d && tar xpf t.tar -C d &&
mv d/a d/e && stat -c '%a %Y' b c/a d/e && install -m 755 a f && ln a g && ls -l >/dev/null && find . -name a | wc -l
"""


def test_files_are_copied_with_their_times_and_modes(server, ground):
    """Programs treat the missing attributes like a file system without attributes."""
    done = shell(server, COPIES.format(ground), **confined([("filesystem", "modify", str(ground / "in"))]))
    assert done.out.split() == [*("640", "1000") * 3, "3"], done.err
    text = f"""
import shutil
shutil.copy2("{ground}/in/a", "{ground}/in/copied")
shutil.copytree("{ground}/in/c", "{ground}/in/tree")
shutil.move("{ground}/in/tree", "{ground}/in/moved")
import os
print(os.stat("{ground}/in/copied").st_mtime, os.listdir("{ground}/in/moved"))
"""
    done = python(server, text, **confined([("filesystem", "modify", str(ground / "in"))]))
    assert (done.out, done.err) == ("1000.0 ['a']\n", "")


GIT = """
export HOME={0}/in GIT_CONFIG_NOSYSTEM=1; cd {0}/in && git init -q r && cd r && echo x > f && git add f &&
git -c user.name=n -c user.email=e commit -qm first && git clone -q . ../s && git -C ../s log --format=%s && git gc -q
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_works_under_the_list_of_calls(server, ground):
    rules = [("filesystem", "modify", str(ground / "in")), ("filesystem", "read", "/dev/urandom")]
    done = shell(server, GIT.format(ground), **confined(rules))
    assert (done.returncode, done.out) == (0, "first\n"), done.err


NODE = """
const fs = require('fs'), os = require('os');
fs.writeFileSync(process.argv[1], 'x');
const {Worker} = require('worker_threads');
new Worker('require("worker_threads").parentPort.postMessage(6 * 7)', {eval: true}).on('message', value => {
    require('child_process').execFile('/bin/echo', ['child'], (error, out) => {
        console.log(value, out.trim(), os.cpus().length > 0, require('crypto').randomBytes(4).length);
    });
});
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_works_under_the_list_of_calls(server, ground):
    rules = [("filesystem", "modify", str(ground / "in"))]
    more = confined(
        rules, runtime_read=("/etc/ssl/openssl.cnf", "/proc/cpuinfo", "/proc/stat", "/sys/devices/system/cpu")
    )
    done = run(server, os.path.realpath(shutil.which("node")), "-e", NODE, f"{ground}/in/node", **more)
    assert done.out == "42 child true 4\n", done.err


def test_names_are_found_without_netlink(server):
    """The C library uses it for the machine's addresses, and works without it."""
    text = "import socket; print(socket.getaddrinfo('127.0.0.1', 80)[0][4], socket.getaddrinfo('localhost', 1) != [])"
    done = python(server, text, **confined(runtime_read=("/etc/hosts", "/etc/nsswitch.conf")))
    assert done.out == "('127.0.0.1', 80) True\n", done.err


def test_asyncio_and_processes_work_under_the_list_of_calls(server, ground):
    listener = socket.create_server(("127.0.0.1", 0))
    text = f"""
import asyncio, concurrent.futures, multiprocessing, tempfile, sqlite3, subprocess, sys
async def main():
    process = await asyncio.create_subprocess_exec("/bin/echo", "out", stdout=subprocess.PIPE)
    out = (await process.communicate())[0].decode().strip()
    reader, writer = await asyncio.open_connection("127.0.0.1", {listener.getsockname()[1]})
    writer.close()
    return out, await asyncio.to_thread(lambda: 7)
tempfile.tempdir = "{ground}/in"
base = sqlite3.connect("{ground}/in/base")
base.execute("pragma journal_mode=wal")
base.execute("create table t(x)")
with tempfile.TemporaryFile() as file, concurrent.futures.ThreadPoolExecutor(2) as pool:
    file.write(b"x")
    squares = sum(pool.map(lambda n: n * n, range(10)))
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=queue.put, args=(5,))
process.start()
print(asyncio.run(main()), squares, queue.get())
process.join()
"""
    rules = [
        ("filesystem", "modify", str(ground / "in")),
        ("network", "connect", f"127.0.0.1:{listener.getsockname()[1]}"),
    ]
    # Without a rule, the shared memory of semaphores is unavailable; a queue without locks works.
    more = confined([*rules, ("filesystem", "modify", "/dev/shm")])
    done = run(server, PYTHON, "-I", "-c", text, **more)
    listener.close()
    assert done.out == "('out', 7) 285 5\n", done.err
