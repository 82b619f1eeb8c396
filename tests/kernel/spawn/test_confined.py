"""Permitted and refused operations of a confined program, on the real kernel."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.landlock import rights
from democrai_sandbox.kernel.landlock.ruleset import PathRule, RulesetPlan, numbers
from democrai_sandbox.kernel.spawn import ChildConfinement, LandlockPlan, ResourceLimits
from tests.kernel import forked_programs
from tests.kernel.spawn.programs import (
    ABI,
    IS_ROOT,
    PYTHON,
    SHELL,
    SYSTEM,
    confined,
    enforced,
    order,
    python,
    run,
    shell,
    until,
)
from tests.services.ports import port
from tests.services.rows import rows

pytestmark = pytest.mark.skipif(ABI < 6, reason=f"needs Landlock ABI 6, this kernel has {ABI}")
KILLED = -signal.SIGSYS


@pytest.fixture
def ground(tmp_path):
    for name in ("in", "out", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    shutil.copy("/bin/true", tmp_path / "run" / "true")
    shutil.copy("/bin/true", tmp_path / "in" / "true")
    return tmp_path


def _rule(operation, path):
    return ("filesystem", operation, str(path))


def test_what_is_to_be_read_can_be_read_and_nothing_else(server, ground):
    more = confined([_rule("read", ground / "in")])
    assert shell(server, f"cat {ground}/in/file", **more).out == "in"
    refused = shell(server, f"cat {ground}/out/file; ls {ground}/out; echo x > {ground}/in/file", **more)
    assert refused.out == ""
    assert refused.err.count("Permission denied") == 3
    assert (ground / "in" / "file").read_text() == "in"


@pytest.mark.parametrize("operation", ["create", "modify", "delete"])
def test_what_is_to_be_written_is_read_and_written(server, ground, operation):
    more = confined([_rule(operation, ground / "in")])
    text = f"cd {ground}/in && cat file && echo new > file && mkdir d && mv file d/moved && rm true && ln -s x y"
    done = shell(server, text, **more)
    assert (done.returncode, done.err) == (0, "")
    assert (ground / "in" / "d" / "moved").read_text() == "new\n"
    assert shell(server, f"echo > {ground}/out/new", **more).returncode != 0
    assert shell(server, f"mv {ground}/out/file {ground}/in/", **more).returncode != 0
    assert (ground / "out" / "file").exists()


def test_nothing_can_be_executed_that_is_only_read(server, ground):
    more = confined([_rule("read", ground / "in"), _rule("execute", ground / "run")])
    assert run(server, str(ground / "run" / "true"), **more).returncode == 0
    with pytest.raises(PermissionError):
        run(server, str(ground / "in" / "true"), **more)
    assert shell(server, f"{ground}/in/true", **more).returncode == 126


def test_the_null_device_can_be_written_and_the_temp_folder_used(server, ground):
    more = confined(own_write=(str(ground / "out"),))
    assert shell(server, f"echo x > /dev/null && echo y > {ground}/out/y", **more).returncode == 0


def test_a_link_put_in_place_of_a_path_of_the_rules_opens_nothing(server, ground):
    rules = [
        _rule("modify", ground / "in"),
        _rule("read", ground / "in" / "sub"),
        _rule("execute", ground / "in" / "sub"),
    ]
    (ground / "in" / "sub").mkdir()
    assert shell(server, f"cd {ground}/in && rmdir sub && ln -s {ground}/out sub", **confined(rules)).returncode == 0
    assert (ground / "in" / "sub" / "file").read_text() == "out"
    done = shell(server, f"cat {ground}/in/sub/file {ground}/out/file", **confined(rules))
    assert (done.out, done.err.count("Permission denied")) == ("", 2)


def test_paths_that_do_not_exist_are_reported(server, ground):
    done = shell(server, "true", **confined([_rule("read", ground / "nothing")]))
    assert str(ground / "nothing") in done.missing


def test_it_can_look_at_itself_in_proc_and_at_nobody_else(server):
    more = confined()
    text = "import os; open('/proc/self/maps').read(); print(os.listdir('/proc/self/task'))"
    assert python(server, text, **more).returncode == 0
    pids, names = (1, os.getpid(), server.pid), ("cmdline", "environ", "maps", "status")
    paths = [*(f"/proc/{pid}/{name}" for pid in pids for name in names), "/proc/self/root/etc/hostname"]
    done = python(server, _OPEN, args=paths, **more)
    assert done.out.splitlines() == [f"{path} PermissionError" for path in paths], done.err


_OPEN = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "rb").read()
    except OSError as error:
        print(path, type(error).__name__)
"""


def _listening(family=socket.AF_INET, host="127.0.0.1"):
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen()
    return listener, listener.getsockname()[1]


_CONNECT = "import socket; s = socket.create_connection(('127.0.0.1', {port}), 5); print('connected')"


def test_tcp_goes_to_the_ports_of_the_rules_only(server):
    allowed, port = _listening()
    other, other_port = _listening()
    more = confined([("network", "connect", f"127.0.0.1:{port}")])
    assert python(server, _CONNECT.format(port=port), **more).out == "connected\n"
    assert "PermissionError" in python(server, _CONNECT.format(port=other_port), **more).err
    for without in (confined(),):
        assert "PermissionError" in python(server, _CONNECT.format(port=port), **without).err
    allowed.close()
    other.close()


def test_a_rule_without_a_port_opens_every_port(server):
    listener, port = _listening()
    more = confined([("network", "connect", "127.0.0.1")])
    assert python(server, _CONNECT.format(port=port), **more).out == "connected\n"
    listener.close()


@rows("how", ["sendto(b'x', 0x20000000, a)", "sendmsg([b'x'], [], 0x20000000, a)"])
def test_a_connection_cannot_be_made_by_sending(server, how):
    listener, port = _listening()
    text = f"import socket; a = ('127.0.0.1', {port}); socket.socket().{how}; print('went through')"
    done = python(server, text, **confined([("network", "connect", "127.0.0.1:1")]))
    assert "PermissionError" in done.err
    assert done.out == ""
    listener.close()


_KINDS = {
    "mptcp": (2, 1, 262),
    "raw": (2, 3, 1),
    "raw6": (10, 3, 58),
    "packet": (17, 3, 0),
    "vsock": (40, 1, 0),
    "crypto": (38, 5, 0),
}
_SOCKETS = f"""
import socket
for name, numbers in {_KINDS!r}.items():
    try:
        socket.socket(*numbers)
    except OSError as error:
        print(name, type(error).__name__)
"""


def test_sockets_of_other_kinds_are_refused(server):
    done = python(server, _SOCKETS, **confined([("network", "connect", "a.example:1")]))
    assert done.out.splitlines() == [f"{name} PermissionError" for name in _KINDS], done.err


def test_without_network_rules_there_are_no_datagrams(server):
    text = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM); print('made')"
    assert "PermissionError" in python(server, text, **confined()).err
    assert python(server, text, **confined([("network", "connect", "a.example:1")])).out == "made\n"


def test_on_a_kernel_without_port_rules_there_are_no_inet_sockets_without_network_rules(server):
    text = "import socket; socket.socket(socket.{})"
    for family in ("AF_INET", "AF_INET6"):
        assert "PermissionError" in python(server, text.format(family), **confined(abi=3)).err


def test_listening_takes_a_free_port_or_a_declared_one(server):
    text = (
        "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
        "s.bind(('127.0.0.1', {})); s.listen(); print('listening')"
    )
    with port() as number:
        more = confined([("network", "connect", f"127.0.0.1:{number}")])
        assert python(server, text.format(number), **more).out == "listening\n"
        assert python(server, text.format(0), **more).out == "listening\n"
        assert "PermissionError" in python(server, text.format(number), **confined()).err


def test_unix_sockets_need_a_rule(server, tmp_path):
    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    text = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); print('connected')"
    assert "PermissionError" in python(server, text, **confined()).err
    assert python(server, text, **confined([("network", "connect", f"unix:{path}")])).out == "connected\n"
    pair = "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))"
    assert python(server, pair, **confined()).out == "b'x'\n"
    listener.close()


def test_abstract_sockets_and_signals_do_not_reach_beyond(server):
    listener = socket.socket(socket.AF_UNIX)
    name = f"democrai-test-{os.getpid()}"
    listener.bind(f"\0{name}")
    listener.listen()
    more = confined([("network", "connect", f"unix:@{name}")])
    text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
    assert "PermissionError" in python(server, text, **more).err
    assert "PermissionError" in python(server, f"import os; os.kill({server.pid}, 0)", **more).err
    assert shell(server, "sleep 300 & kill $! && wait $!; test $? = 143", **more).returncode == 0
    listener.close()


@rows("text", ["os.setuid(0)", "os.chroot('/')", "os.setgroups([])"])
def test_the_filter_kills_what_no_program_has_business_with(server, text):
    assert python(server, f"import os; {text}", **confined()).returncode == KILLED


def test_it_may_start_programs_of_its_own_which_are_confined_alike(server, ground):
    more = confined([_rule("read", ground / "in")])
    done = shell(server, f"sh -c 'sh -c \"cat {ground}/in/file; cat {ground}/out/file\"'", **more)
    assert done.out == "in"
    assert "Permission denied" in done.err


def test_no_privileges_are_gained_by_executing(server):
    done = run(server, "/bin/grep", "-E", "NoNewPrivs|Cap(Prm|Eff|Inh|Amb|Bnd)", "/proc/self/status")
    found = {line.split(":")[0]: line.split()[1] for line in done.out.splitlines()}
    assert found["NoNewPrivs"] == "1"
    for name in ("CapPrm", "CapEff"):
        assert int(found[name], 16) == (0b11011 if IS_ROOT else 0)
    for name in ("CapInh", "CapAmb"):
        assert int(found[name], 16) & ~0b11011 == 0
    if IS_ROOT:
        assert int(found["CapBnd"], 16) == 0b11011


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to make a program of another user")
def test_a_set_user_id_program_gains_nothing(server, tmp_path):
    program = tmp_path / "id"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 65534, 65534)
    program.chmod(0o6755)
    assert subprocess.run([program, "-u"], capture_output=True, text=True).stdout == "65534\n"
    assert run(server, str(program), "-u").out == "0\n"


_AS_NOBODY = """
import os, sys
from democrai_sandbox.kernel import _native
from tests.kernel.spawn.programs import confined
from democrai_sandbox.kernel.landlock import raw_ruleset
from democrai_sandbox.kernel.spawn.client import SpawnOrder, body_of
more = confined()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ruleset, _ = raw_ruleset.build(_native, *more["plan"][:5])
text = "id -u; cat /etc/hostname || echo refused; grep NoNewPrivs /proc/$$/status"
more |= {"limits": ((7, 50),), "keep_caps": 0, "stdin": 0, "stdout": 1, "stderr": 2}
body, descriptors = body_of(SpawnOrder("/bin/sh", ("sh", "-c", text), {"PATH": "/bin:/usr/bin"}, "/", **more))
pid, pidfd = _native.spawn(body, descriptors, [ruleset], -1, (10, 1), (1 << 64) - 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to become another user")
def test_another_user_than_root_can_confine_too():
    done = forked_programs.run(_AS_NOBODY)
    assert done.stdout.split() == ["65534", "refused", "NoNewPrivs:", "1", "0"], done.stderr


def test_the_environment_takes_effect_after_confinement(server, ground):
    """LD_PRELOAD and PYTHONPATH are read by the program, which is already confined, and not before."""
    trace = ground / "out" / "trace"
    (ground / "in" / "sitecustomize.py").write_text(f"open({str(trace)!r}, 'a').write('seen')")
    library = ground / "in" / "early.so"
    source = ground / "early.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        f'__attribute__((constructor)) static void early(void) {{ int fd = open("{trace}", O_CREAT|O_WRONLY, 0600);'
        ' write(1, fd < 0 ? "refused\\n" : "written\\n", 8); }\n'
    )
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=50)
    env = {"LD_PRELOAD": str(library), "PYTHONPATH": str(ground / "in"), "PATH": "/bin"}
    more = confined([_rule("read", ground / "in")])
    assert run(server, "/bin/true", env=env, **more).out == "refused\n"
    done = run(server, PYTHON, "-c", "print('ran')", env={**env, "LD_PRELOAD": ""}, **more)
    assert done.out == "ran\n"
    assert "PermissionError" in done.err  # from sitecustomize
    assert not trace.exists()


def test_the_baseline_holds_for_every_child(own_server, ground):
    paths = [PathRule(path, rights.EXECUTE) for path in SYSTEM]
    paths.append(PathRule(str(ground / "in"), rights.WRITE))
    own_server.baseline(numbers(RulesetPlan(tuple(paths)), ABI))
    for more in ({}, confined([_rule("modify", ground)])):
        done = shell(own_server, f"echo y > {ground}/in/file && cat {ground}/in/file; cat {ground}/out/file", **more)
        assert done.out == "y\n"
        assert "Permission denied" in done.err
    # Access that the baseline allows but the child's rules do not is refused too.
    assert shell(own_server, f"cat {ground}/in/file", **confined()).out == ""


def test_limits_are_kept(server, ground):
    def limited(**limits):
        return enforced(ChildConfinement(paths_execute=SYSTEM, limits=ResourceLimits(**limits)))

    assert shell(server, "ulimit -n; ulimit -Hn", **limited(open_files=20)).out == "20\n20\n"
    assert "MemoryError" in python(server, "x = bytearray(1 << 30)", **limited(address_space=512 << 20)).err
    busy = python(server, "while True: pass", **limited(cpu_seconds=1))
    assert busy.returncode in (-signal.SIGKILL, -signal.SIGXCPU)
    assert python(server, "import time; time.sleep(300)", **limited(wall_seconds=1)).returncode == -signal.SIGKILL
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(shell(server, "ulimit -Hn", **limited(open_files=hard + 10)).out) == hard


def test_a_confinement_that_cannot_be_applied_starts_nothing(server, ground):
    unknown = LandlockPlan(1 << 60, 0, 0, [], [])
    with pytest.raises(SpawnFailed, match="landlock"):
        server.spawn(order(SHELL, "-c", f"touch {ground}/out/made", plan=unknown))
    with pytest.raises(SpawnFailed, match="seccomp"):
        server.spawn(order(SHELL, "-c", f"touch {ground}/out/made", filter=b"\xff" * 16))
    with open("/dev/null", "rb") as not_for_writing, pytest.raises(SpawnFailed, match="cgroup"):
        server.spawn(order(SHELL, "-c", f"touch {ground}/out/made", cgroup=not_for_writing.fileno()))
    assert not (ground / "out" / "made").exists()
    assert server.stats()["running"] == 0


@pytest.fixture
def cgroup():
    """A cgroup for the test, if this machine permits creating one."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2"]
    if not IS_ROOT or not roots:
        pytest.skip("needs root and cgroup v2")
    place = Path(roots[0]) / f"democrai_test_spawn_{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    yield place
    (place / "cgroup.kill").write_text("1")
    until(lambda: "populated 0" in (place / "cgroup.events").read_text())
    place.rmdir()


def test_the_program_is_in_its_cgroup_from_the_beginning(server, cgroup):
    with open(cgroup / "cgroup.procs", "w") as procs:
        done = run(server, "/bin/cat", "/proc/self/cgroup", cgroup=procs.fileno())
        assert f"0::/{cgroup.name}\n" in done.out
        child = server.spawn(order(SHELL, "-c", "sleep 300 & setsid sleep 300 & wait", cgroup=procs.fileno()))
    until(lambda: len((cgroup / "cgroup.procs").read_text().split()) >= 3)
    (cgroup / "cgroup.kill").write_text("1")
    assert child.collect() == -signal.SIGKILL
