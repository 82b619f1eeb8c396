"""Filters on the real kernel."""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys

import pytest

from democrai_sandbox.kernel.seccomp import APPLICATION, filters, this_architecture
from democrai_sandbox.kernel.seccomp.syscalls import Action
from tests.kernel.seccomp.children import run, told
from tests.services.rows import rows

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or this_architecture() is None, reason="needs Linux on x86_64 or aarch64"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to show that not even root gets through")

PROMISED = {Action.KILL: "killed by SIGSYS", Action.EPERM: "EPERM", Action.ENOSYS: "ENOSYS"}


def test_every_call_of_the_table_ends_as_promised():
    found = told("""
        apply(APPLICATION)
        tell(**{name: forked(lambda: call(name)) for name, number in NUMBERS.items() if number is not None})
    """)
    expected = {
        row.name: PROMISED[row.action]
        for row in filters.rows(APPLICATION, this_architecture())
        if row.action in PROMISED
    }
    assert {name: found[name] for name in expected} == expected


@needs_root
def test_the_same_calls_get_through_without_the_filter():
    """Without the filter these calls succeed. Only calls that change nothing."""
    found = told("""
        names = ("unshare", "setuid", "setgid", "setfsuid", "settimeofday", "kcmp", "process_vm_readv", "syslog",
                 "io_uring_setup", "clone3", "ptrace", "perf_event_open", "bpf", "open_by_handle_at", "chroot")
        tell(**{name: forked(lambda: call(name)) for name in names})
    """)
    assert not {"killed by SIGSYS", "EPERM", "ENOSYS"} & set(found.values()), found


def test_a_killed_call_ends_the_whole_process_with_sigsys():
    result = run("""
        apply(APPLICATION)
        print("before", flush=True)
        threading.Thread(target=lambda: call("ptrace")).start()
        time.sleep(30)
        print("after", flush=True)
    """)
    assert (result.returncode, result.stdout) == (-31, "before\n")


def test_execution_fails_in_every_way_and_the_application_goes_on():
    found = told("""
        apply(APPLICATION)
        async def later():
            process = await asyncio.create_subprocess_exec("/bin/true")
            return await process.wait()
        tell(
            popen=subprocess.Popen(["/bin/true"]).wait(),
            shell=subprocess.run("true", shell=True).returncode,
            spawn=os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]),
            asyncio=asyncio.run(later()),
            direct=forked(lambda: os.execv("/bin/true", ["true"])),
            by_descriptor=forked(lambda: os.execve(os.open("/bin/true", os.O_RDONLY), ["true"], {})),
        )
    """)
    sigsys = "killed by SIGSYS"
    assert found == {
        "popen": -31, "shell": -31, "spawn": -31, "asyncio": -31, "direct": sigsys, "by_descriptor": sigsys
    }  # fmt: skip


def test_ordinary_work_goes_on_under_the_filter_of_the_application(tmp_path):
    found = told(f"""
        apply(APPLICATION)
        import concurrent.futures, hashlib, multiprocessing, sqlite3, ssl, tempfile, decimal, mmap, urllib.request
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"hello")
            def log_message(self, *args):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
        answer = opener.open(f"http://127.0.0.1:{{server.server_port}}/", timeout=20).read().decode()

        database = sqlite3.connect({str(tmp_path / "data.db")!r})
        database.execute("pragma journal_mode=wal")
        database.execute("create table t(x)")
        database.execute("insert into t values (7)")
        database.commit()

        async def echo():
            async def back(reader, writer):
                writer.write(await reader.read(100))
                await writer.drain()
                writer.close()
            place = await asyncio.start_server(back, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*place.sockets[0].getsockname())
            writer.write(b"echo")
            text = await reader.read(100)
            writer.close()
            place.close()
            return text.decode() + await asyncio.to_thread(lambda: "!")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            threads = sum(pool.map(lambda n: n * n, range(50)))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=lambda: queue.put(os.getpid()))
        process.start()
        process.join(30)
        with tempfile.TemporaryFile() as file, mmap.mmap(-1, 4096) as area:
            file.write(os.urandom(10))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.sendto(b"x", ("127.0.0.1", 9))
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        left.send(b"pair")
        tell(
            http=answer, sqlite=database.execute("select x from t").fetchone(), asyncio=asyncio.run(echo()),
            threads=threads, process=queue.get() == process.pid, tls=ssl.create_default_context().verify_mode.name,
            pair=right.recv(10).decode(), names=socket.getaddrinfo("localhost", 80)[0][4][1],
            interfaces=bool(socket.if_nameindex()), digest=hashlib.sha256(b"").hexdigest()[:4],
        )
    """)
    assert found == {
        "http": "hello",
        "sqlite": [7],
        "asyncio": "echo!",
        "threads": 40425,
        "process": True,
        "tls": "CERT_REQUIRED",
        "pair": "pair",
        "names": 80,
        "interfaces": True,
        "digest": "e3b0",
    }


_SOCKETS = """
    def made(family, kind, protocol=0):
        return call("socket", family, kind, protocol)
    def sockets():
        tell(
            tcp=made(2, 1), tcp6=made(10, 1), tcp_by_number=made(2, 1, 6), udp=made(2, 2), udp6=made(10, 2),
            raw=made(2, 3, 1), raw6=made(10, 3, 58), ping=made(2, 2, 1), packet=made(17, 3), packet_old=made(2, 10),
            mptcp=made(2, 1, 262), smc=made(2, 1, 256), unix=made(1, 1), unix_datagram=made(1, 2),
            routes=made(16, 3), netlink_other=made(16, 3, 2), vsock=made(40, 1), xdp=made(44, 3),
            upper_bits=made(17 | 5 << 32, 3), cloexec_raw=made(2, 3 | 0o2000000, 1),
            pair=refused(lambda: socket.socketpair()[0]),
            pair_datagram=refused(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]),
            pair_packets=refused(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0]),
        )
"""
_NEVER = {"raw", "raw6", "packet", "packet_old", "mptcp", "smc", "vsock", "xdp", "upper_bits", "cloexec_raw"}


@rows(
    ("profile", "refused"),
    [
        ("APPLICATION", _NEVER),
        ("child_profile()", _NEVER | {"ping", "netlink_other"}),
        ("child_profile(inet=Inet.NO_DATAGRAM)", _NEVER | {"ping", "netlink_other", "udp", "udp6"}),
        (
            "child_profile(inet=Inet.NONE, unix=Unix.NONE)",
            _NEVER
            | {"ping", "netlink_other", "udp", "udp6", "tcp", "tcp6", "tcp_by_number"}
            | {"unix", "unix_datagram", "pair_datagram", "routes"},
        ),
    ],
)
def test_only_the_sockets_of_the_profile_are_made(profile, refused):
    found = told(_SOCKETS + f"\n    apply({profile})\n    sockets()")
    assert {name for name, outcome in found.items() if outcome == "EPERM"} == refused
    ordinary = set(found) - refused - {"ping", "tcp6", "udp6"}  # those depend on the machine
    assert {found[name] for name in ordinary} == {"ok"}, found


@needs_root
def test_without_the_filter_root_makes_packets_of_its_own():
    """Without the filter these calls succeed."""
    found = told(_SOCKETS + "\n    sockets()")
    assert found["raw"] == found["packet"] == found["packet_old"] == "ok"


def test_a_datagram_socket_of_a_pair_would_reach_any_other_so_it_is_not_given(tmp_path):
    """Without rules for unix sockets a pair must not reach others; a stream pair cannot be redirected."""
    body = f"""
        place = {str(tmp_path)!r} + "/s" + str(os.getpid())
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listening.bind(place)
        streams = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        streams.bind(place + "2")
        streams.listen()
        {{}}
        def elsewhere(kind, to):
            pair = socket.socketpair(socket.AF_UNIX, kind)
            try:
                pair[0].sendto(b"out", to) if kind == socket.SOCK_DGRAM else pair[0].connect(to)
            finally:
                pair[0].close()
                pair[1].close()
        def after_close(to):
            left, right = socket.socketpair()
            right.close()
            left.connect(to)
        tell(
            datagram=refused(lambda: elsewhere(socket.SOCK_DGRAM, place)),
            stream=refused(lambda: elsewhere(socket.SOCK_STREAM, place + "2")),
            packets=refused(lambda: elsewhere(socket.SOCK_SEQPACKET, place + "2")),
            closed=refused(lambda: after_close(place + "2")),
        )
    """
    unheld = told(body.format(""))
    held = told(body.format("apply(child_profile(unix=Unix.NONE))"))
    assert unheld["datagram"] == "ok", "the way that is closed here exists"
    assert held["datagram"] == "EPERM"
    for found in (unheld, held):
        assert "ok" not in {found["stream"], found["packets"], found["closed"]}


def test_connecting_by_sending_is_refused_where_asked_and_ordinary_sends_are_not():
    found = told("""
        apply(child_profile(fastopen=False))
        server = socket.create_server(("127.0.0.1", 0))
        fast = 0x20000000
        def by_sendto():
            with socket.socket() as client:
                client.sendto(b"x", fast, server.getsockname())
        def by_sendmsg():
            with socket.socket() as client:
                client.sendmsg([b"x"], [], fast, server.getsockname())
        client = socket.create_connection(server.getsockname())
        client.send(b"a")
        client.sendmsg([b"b"])
        peer = server.accept()[0]
        text = peer.recv(1) + peer.recv(1)
        def by_sendmmsg(flags):
            return call("sendmmsg", client.fileno(), 0, 0, flags)
        tell(sendto=refused(by_sendto), sendmsg=refused(by_sendmsg), sendmmsg=by_sendmmsg(fast),
             ordinary=by_sendmmsg(0), text=text.decode())
    """)
    assert found == {
        "sendto": "EPERM",
        "sendmsg": "EPERM",
        "sendmmsg": "EPERM",
        "ordinary": "ok",
        "text": "ab",
    }


@rows("profile", ["APPLICATION", "child_profile()"])
def test_nothing_is_typed_into_a_terminal(profile):
    """The shell of the terminal would execute the inserted text after the application has ended."""
    body = """
        import fcntl, pty, termios
        def typing():
            os.setsid()
            _, terminal = pty.openpty()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            {}
            character = ctypes.addressof(ctypes.create_string_buffer(b"x"))
            return (call("ioctl", terminal, termios.TIOCSTI, character),
                    call("ioctl", terminal, termios.TIOCSTI | 1 << 32, character),
                    call("ioctl", terminal, 0x541C, character), os.isatty(terminal), os.get_terminal_size(terminal)[0])
        tell(found=forked(typing))
    """
    assert told(body.format(f"apply({profile})"))["found"] == "('EPERM', 'EPERM', 'EPERM', True, 0)"


def test_only_ones_own_limits_are_changed():
    """A CPU time limit of zero kills; Landlock restricts signals, but not this."""
    body = """
        import resource
        victim = subprocess.Popen(["sleep", "60"])
        def limiting():
            _native.landlock_restrict(_native.landlock_create(1, 0, 3)) if _native.landlock_abi() > 5 else None
            {}
            return (refused(lambda: resource.prlimit(victim.pid, resource.RLIMIT_CPU, (7, 7))),
                    refused(lambda: resource.prlimit(0, resource.RLIMIT_CPU, (7, 7))),
                    refused(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))))
        outcome = forked(limiting)
        limits = resource.prlimit(victim.pid, resource.RLIMIT_CPU)
        victim.kill()
        tell(outcome=outcome, limited=limits[0] == 7)
    """
    assert told(body.format("")) == {"outcome": "('ok', 'ok', 'ok')", "limited": True}
    for profile in ("APPLICATION", "child_profile()"):
        assert told(body.format(f"apply({profile})")) == {"outcome": "('EPERM', 'ok', 'ok')", "limited": False}


def test_a_child_does_not_reach_the_shared_memory_of_its_user():
    """System V objects have no path that Landlock could restrict."""
    found = told("""
        lib = ctypes.CDLL(None, use_errno=True)
        lib.shmat.restype = ctypes.c_void_p
        key = 0x73570000 | os.getpid() & 0xFFFF  # of this run alone
        segment = lib.shmget(key, 4096, 0o1600)
        assert segment >= 0
        memory = lib.shmat(segment, None, 0)
        ctypes.memmove(memory, b"secret", 6)

        def attack():
            apply(child_profile())
            found = lib.shmat(lib.shmget(key, 4096, 0), None, 0)
            return ctypes.string_at(found, 6).decode() if found and found != 2**64 - 1 else "shut"

        told = forked(attack)
        lib.shmctl(segment, 0, None)
        tell(told=told)
    """)
    assert found == {"told": "shut"}


def test_no_namespace_is_made_and_threads_and_forks_still_are():
    found = told("""
        apply(APPLICATION)
        flags = {"mounts": 0x20000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000,
                 "pid": 0x20000000, "net": 0x40000000}
        def new(flag):
            return forked(lambda: call("clone", flag | signal.SIGCHLD))
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join(20)
        tell(**{name: new(flag) for name, flag in flags.items()}, upper=new(0x10000000 | 7 << 40),
             alive=thread.is_alive(), fork=forked(lambda: "fine"), clone3=call("clone3", 0, 0))
    """)
    refused = dict.fromkeys(["mounts", "cgroup", "uts", "ipc", "user", "pid", "net", "upper"], "EPERM")
    assert found == {**refused, "alive": False, "fork": "fine", "clone3": "ENOSYS"}


def test_a_ring_cannot_be_used_not_even_one_that_was_there_before():
    found = told("""
        parameters = ctypes.create_string_buffer(120)
        ring = _libc.syscall(ctypes.c_long(NUMBERS["io_uring_setup"]), 4, parameters)
        before = "ok" if ring >= 0 else errno.errorcode[ctypes.get_errno()]
        apply(APPLICATION)
        tell(before=before, setup=call("io_uring_setup", 4, ctypes.addressof(parameters)),
             enter=call("io_uring_enter", ring, 0, 0, 0), register=call("io_uring_register", ring, 0))
    """)
    assert found.pop("before") in {"ok", "EPERM", "ENOSYS"}  # a machine may have them disabled
    assert set(found.values()) == {"ENOSYS"}


def test_a_child_may_execute_and_what_it_executes_is_still_held():
    found = told("""
        apply(child_profile())
        code = "import os; print('started', flush=True); os.chroot('/')"
        result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
        tell(code=result.returncode, out=result.stdout)
    """)
    assert found == {"code": -31, "out": "started\n"}


def test_a_worker_gives_up_execution_once_it_has_started():
    found = told("""
        first = apply(child_profile())
        before = subprocess.run(["/bin/true"]).returncode
        reason = give_up_programs()
        tell(before=before, after=subprocess.run(["/bin/true"]).returncode, states=[first.state, reason],
             others=call("unshare"))
    """)
    assert found == {"before": 0, "after": -31, "states": ["active", ""], "others": "EPERM"}


def _program_for_32_bits() -> bytes:
    """An ARM program of three instructions: its only call is exit(42), in the 32-bit convention."""
    code = struct.pack("<III", 0xE3A0002A, 0xE3A07001, 0xEF000000)  # mov r0, #42; mov r7, #1; svc 0
    start, size = 0x10000, 84 + len(code)
    identity = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack("<16sHHIIIIIHHHHHH", identity, 2, 40, 1, start + 84, 52, 0, 0x05000000, 52, 32, 1, 0, 0, 0)
    return header + struct.pack("<8I", 1, 0, start, start, size, size, 5, 0x1000) + code


@pytest.mark.skipif(platform.machine() != "aarch64", reason="the program is for ARM")
def test_a_program_of_another_architecture_dies_at_its_first_call(tmp_path):
    """Its numbers mean other calls: 11 is execve there."""
    place = tmp_path / "arm32"
    place.write_bytes(_program_for_32_bits())
    place.chmod(0o755)
    try:
        assert subprocess.run([place], timeout=20, check=False).returncode == 42
    except OSError:
        pytest.skip("this machine does not run programs of 32 bits")
    found = told(f"""
        apply(child_profile())
        tell(code=subprocess.run([{str(place)!r}]).returncode)
    """)
    assert found == {"code": -31}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is a second set of numbers of x86_64 alone")
def test_numbers_of_x32_are_refused():
    found = told("""
        apply(APPLICATION)
        tell(getpid=call(0x40000000 | 39), execve=call(0x40000000 | 520), without_the_bit=call(520))
    """)
    assert set(found.values()) == {"EPERM"}


@needs_root
def test_it_needs_no_privileges():
    found = told("""
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        status = apply(APPLICATION)
        tell(state=status.state, chroot=forked(lambda: os.chroot("/")), unshare=call("unshare"), uid=os.geteuid())
    """)
    assert found == {"state": "active", "chroot": "killed by SIGSYS", "unshare": "EPERM", "uid": 65534}
