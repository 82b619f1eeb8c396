"""Network namespaces with a link between them, small servers and clients on command, for tests of the packet filter.

Nothing here changes the machine's network: the namespaces have no name, exist as long as a descriptor of this process,
and end with their interfaces, rules and routes; the processes end with the test. Needs root.

    from tests.kernel.netlab import needs_netlab, shared_lab

    @needs_netlab
    def test_something():
        with shared_lab() as lab:
            echo = lab.world.serve("tcp", lab.world.v4)      # a thread; .port, .accepted (peers seen), .received
            app = lab.inside.agent()                          # a process in the other namespace; .pid, .start_time
            assert app.tcp(lab.world.v4, echo.port) == "ok"   # or the errno's name: "ECONNREFUSED", "timeout", ...
            lab.inside.run(["iptables", "-A", "OUTPUT", "-j", "REJECT"])
            assert app.tcp(lab.world.v4, echo.port) == "ECONNREFUSED"

* ``Lab()``: two namespaces, ``inside`` (for the application and its rules) and ``world`` (for the others), connected by
  a veth pair with IPv4 and IPv6 (``lab.inside.v4``, ``.v6``, ``lab.world.v4``, ``.v6``, two more addresses each of
  ``world`` in ``lab.world.more_v4``/``more_v6``), loopback up in both. ``Lab(ipv6=False)`` disables IPv6.
* ``shared_lab()``: a lab that is cleared and used again by the next test: its processes are stopped, and the filter
  tables of ``inside`` are emptied. For tests that change nothing else.
* ``Namespace.entered()``: a context that moves this thread into the namespace, with the processes that it starts
  (a helper, ``iptables``) and its new sockets. ``Namespace.path`` is for ``nsenter --net=PATH``.
* ``Namespace.run(argv)``, ``.popen(argv, **options)``: a command in it. ``.start(code, *words, **options)``: a program
  in it, in a fork of a process that has imported the kernel layer (tests.kernel.forked_programs).
* ``Namespace.serve(protocol, address, port=0)``: an echo server on a thread of this process.
* ``Namespace.agent(user=None)``: a process that executes one order at a time: ``tcp``, ``udp``, ``keep``
  (a connection that stays open), ``send`` on it, ``listen``, ``join`` (write "0" to a cgroup.procs, by its path or by a
  passed descriptor), ``load`` (connect repeatedly until ``unload`` returns the outcomes), ``fork`` (a child that sleeps
  and may outlive the agent). ``user="nobody"``: without privileges.
* ``lab.will_remove(path)``: a cgroup that is emptied and removed at the end in any case.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import pwd
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel import forked_programs

SECONDS = 30.0
"""Timeout of every operation here."""
_NEWNET = forked_programs.NETWORK
_GET_FLAGS, _IS_RUNNING = 0x8913, 0x40
_EMPTY = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
_libc = ctypes.CDLL(None, use_errno=True)


def _missing() -> str:
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [name for name in ("ip", "nsenter", "iptables", "ip6tables") if shutil.which(name) is None]
    if lacking:
        return f"not installed here: {', '.join(lacking)}"
    if not any(" - cgroup2 " in line for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        return "no cgroup2 is mounted here"
    return ""


needs_netlab = pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")


def wait_until(condition, what="the condition", seconds=SECONDS):
    """Wait for a condition and return its value; fail on timeout."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value


def start_time(pid):
    """Return the start time of a process in ticks since boot, which identifies it together with its id."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def has_ended(pid):
    """Return whether a process has ended, even if its parent has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def cgroup_of(pid):
    """Return the path of a process in the cgroup v2 tree."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line[3:] for line in lines if line.startswith("0::"))


def cgroup_mount():
    """Return the mount point of the cgroup v2 tree."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    raise AssertionError("no cgroup2 is mounted here")


def remove_cgroup(path):
    """Kill the processes of a cgroup and below, and remove it."""
    path = Path(path)
    if not path.exists():
        return
    with suppress(OSError):
        (path / "cgroup.kill").write_text("1")
    with suppress(FileNotFoundError):
        wait_until(lambda: "populated 0" in (path / "cgroup.events").read_text(), "an empty cgroup")
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(FileNotFoundError):
            os.rmdir(folder)


class Namespace:
    """Network namespace, held by a descriptor of this process."""

    def __init__(self, v4, v6):
        self.v4, self.v6 = v4, v6
        self.more_v4, self.more_v6 = [], []
        self._closing, self._started = ExitStack(), ExitStack()
        made = []

        def make():
            if _libc.unshare(_NEWNET):
                made.append(OSError(ctypes.get_errno(), "unshare"))
            else:
                made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

        # On a separate thread, so that other threads stay in their namespace.
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        self._fd = made[0]
        self._closing.callback(os.close, self._fd)

    @property
    def path(self):
        """Path for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def entered(self):
        """Move this thread, and processes that it starts meanwhile, into the namespace."""
        with forked_programs.in_network(self._fd):
            yield self

    def run(self, argv, **options):
        """Run a command in the namespace, and return the finished process; a failure fails the test."""
        options = {"check": True, "capture_output": True, "text": True, "timeout": SECONDS, **options}
        with self.entered():
            try:
                return subprocess.run(argv, **options)
            except subprocess.CalledProcessError as error:
                raise AssertionError(f"{argv}: {error.stderr}") from error

    def popen(self, argv, **options):
        """Start a command in the namespace; it is killed at the end of the test."""
        with self.entered():
            process = subprocess.Popen(argv, **options)
        self._started.callback(_end, process)
        return process

    def start(self, code, *words, **options):
        """Start a Python program in the namespace; it is killed at the end of the test."""
        with self.entered():
            process = forked_programs.start(code, *words, **options)
        self._started.callback(_end, process)
        return process

    def serve(self, protocol, address, port=0):
        """Start an echo server on a thread."""
        with self.entered():
            server = Server(protocol, address, port)
        self._started.callback(server.close)
        return server

    def agent(self, user=None):
        """Start a process that connects, sends and listens on command."""
        agent = Agent(self, user)
        self._started.callback(agent.close)
        return agent

    def rules(self, family="ipv4"):
        """Return the filter table as text."""
        name = {"ipv4": "iptables-save", "ipv6": "ip6tables-save"}[family]
        return self.run([name, "-t", "filter"]).stdout

    def is_up(self, interface):
        """Return whether packets pass an interface."""
        with self.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sH14x", interface.encode(), 0))
        return bool(struct.unpack("16sH14x", answer)[1] & _IS_RUNNING)

    def is_empty(self):
        """Return whether the namespace has no processes."""
        own = os.fstat(self._fd).st_ino
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdecimal() and os.stat(f"/proc/{name}/ns/net").st_ino == own:
                    return False
        return True

    def clear(self):
        """Stop the processes of this namespace."""
        self._started.close()

    def close(self):
        """Stop the processes and close the namespace."""
        self.clear()
        self._closing.close()


class Lab:
    """Two namespaces with a link between them."""

    def __init__(self, *, ipv6=True):
        self.ipv6 = ipv6
        self._stack = ExitStack()
        self._paths = []

    def __enter__(self):
        with ExitStack() as stack:
            # Entered first, so removed last: cgroups are empty only after the processes of the namespaces have ended.
            stack.callback(lambda: [remove_cgroup(path) for path in self._paths])
            self.inside = Namespace("10.77.0.1", "fd77::1")
            stack.callback(self.inside.close)
            self.world = Namespace("10.77.0.2", "fd77::2")
            stack.callback(self.world.close)
            if not self.ipv6:
                for space in (self.inside, self.world):
                    with space.entered():
                        for name in ("all", "default", "lo"):
                            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
            self._wire()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def will_remove(self, path):
        """Remove a cgroup with its processes at the end in any case."""
        self._paths.append(Path(path))
        return Path(path)

    def clear(self):
        """Stop everything and remove the rules; return whether the lab is like new."""
        for space in (self.inside, self.world):
            space.clear()
        while self._paths:
            remove_cgroup(self._paths.pop())
        try:
            # Helpers of killed applications remove their rules, and then end.
            wait_until(lambda: self.inside.is_empty() and self.world.is_empty(), "the end of all processes")
        except AssertionError:
            return False
        for name in ("iptables-restore", "ip6tables-restore"):
            self.inside.run([name], input=_EMPTY)
        return True

    def _wire(self):
        self.world.more_v4 = ["10.77.0.3", "10.77.0.4"]
        self.world.more_v6 = ["fd77::3", "fd77::4"]
        first = [f"link add wire type veth peer name wire netns {self.world.path}"]
        for space in (self.inside, self.world):
            lines = [*first, "link set lo up"]
            lines += [f"address add {v4}/24 dev wire" for v4 in (space.v4, *space.more_v4)]
            if self.ipv6:
                lines += [f"address add {v6}/64 dev wire nodad" for v6 in (space.v6, *space.more_v6)]
            lines += ["link set wire up"]
            space.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n")
            first = []
        for space in (self.inside, self.world):
            wait_until(lambda space=space: space.is_up("wire"), "the wire")


_free = []
"""Cleared labs of earlier tests."""


@contextmanager
def shared_lab():
    """Yield a lab that is like new; it is reused afterwards."""
    lab = _free.pop() if _free else Lab().__enter__()
    try:
        yield lab
    except BaseException:
        lab.__exit__()
        raise
    if lab.clear():
        _free.append(lab)
    else:
        lab.__exit__()


@atexit.register
def _close_labs():
    while _free:
        _free.pop().__exit__()


class Server:
    """Echo server: a thread of this process, with a socket of the namespace in which it was created."""

    def __init__(self, protocol, address, port=0):
        kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.accepted = []
        self.received = []
        self._socket = socket.socket(family, kind)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        self.address, self.port = address, self._socket.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._open = set()
        if protocol == "tcp":
            self._socket.listen(128)
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept if protocol == "tcp" else self._echo)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        self._stop.send(b"x")
        self._thread.join(SECONDS)
        for each in (self._socket, self._stop, self._stopped, *self._open):
            each.close()
        self._selector.close()

    def _serve(self):
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stopped:
                    return
                with suppress(OSError):
                    key.data(key.fileobj)

    def _accept(self, listener):
        connection, peer = listener.accept()
        self.accepted.append(peer[:2])
        connection.setblocking(False)
        self._open.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, self._answer)

    def _answer(self, connection):
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if data:
            self.received.append(data)
            connection.send(data)
        else:
            self._selector.unregister(connection)
            self._open.discard(connection)
            connection.close()

    def _echo(self, receiver):
        data, peer = receiver.recvfrom(65536)
        self.accepted.append(peer[:2])
        self.received.append(data)
        receiver.sendto(data, peer)


class Agent:
    """Process in a namespace that executes orders. It creates sockets on command only."""

    def __init__(self, space, user=None):
        entry = None if user is None else pwd.getpwnam(user)
        # It changes its user later: the interpreter may be in a folder that other users cannot enter.
        wanted = [] if entry is None else [str(entry.pw_uid), str(entry.pw_gid)]
        self._link, theirs = socket.socketpair()
        with space.entered(), theirs:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = forked_programs.start(
                _AGENT, "{0}", *wanted, passed=[theirs.fileno()], session=True, **pipes
            )
        self.pid = self.process.pid
        self._lock = threading.Lock()
        assert self.ask("ready") == "ok"
        self.start_time = start_time(self.pid)

    def ask(self, order, **arguments):
        """Send one order and return the answer."""
        with self._lock:
            self.process.stdin.write(json.dumps({"order": order, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        assert line, f"the agent has ended: {self.process.poll()}"
        return json.loads(line)

    def tcp(self, host, port, timeout=5.0):
        """Connect and exchange eight bytes: return ``"ok"``, or the name of the error."""
        return self.ask("tcp", host=host, port=port, timeout=timeout)

    def udp(self, host, port, timeout=5.0):
        """Exchange a datagram: return ``"ok"``, or the name of the error."""
        return self.ask("udp", host=host, port=port, timeout=timeout)

    def keep(self, host, port):
        """Connect and keep the connection; return its number, or the name of an error."""
        return self.ask("keep", host=host, port=port)

    def send(self, number):
        """Exchange eight bytes on a kept connection."""
        return self.ask("send", number=number)

    def listen(self, host):
        """Serve echoes at a port of the agent; return the port."""
        return self.ask("listen", host=host)

    def join(self, target):
        """Write "0" to a file or a passed descriptor, to join a cgroup."""
        if isinstance(target, int):
            socket.send_fds(self._link, [b"x"], [target])
            return self.ask("join_handed")
        return self.ask("join", path=str(target))

    def load(self, targets, threads=1):
        """Connect to ``[(protocol, host, port), ...]`` in turns, until ``unload``."""
        return self.ask("load", targets=[list(target) for target in targets], threads=threads)

    def unload(self):
        """Stop, and return the outcomes: ``{"tcp 10.77.0.2 8000": {"ok": 412}, ...}``."""
        return self.ask("unload")

    def fork(self, seconds=60):
        """Fork a child that sleeps; return its process id."""
        return self.ask("fork", seconds=seconds)

    def kill(self):
        """Kill it with SIGKILL, and reap it."""
        self.process.kill()
        self.process.wait(SECONDS)

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self.pid, 9)
        _end(self.process)
        self._link.close()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()


def _end(process):
    with suppress(ProcessLookupError):
        process.kill()
    process.wait(SECONDS)


_AGENT = r"""
import errno, json, os, socket, sys, threading, time
link = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2:]:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
kept, outcomes, stopping, lock = [], {}, threading.Event(), threading.Lock()

def named(error):
    if isinstance(error, TimeoutError) and error.errno is None:
        return "timeout"
    return errno.errorcode.get(error.errno, type(error).__name__)

def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET

def echoed(s, data=b"12345678"):
    s.sendall(data)
    got = b""
    while len(got) < len(data):
        more = s.recv(64)
        if not more:
            return "closed"
        got += more
    return "ok"

def once(kind, host, port, timeout=5.0):
    try:
        with socket.socket(family(host), kind) as s:
            s.settimeout(timeout)
            s.connect((host, port))
            return echoed(s)
    except OSError as error:
        return named(error)

def tcp(host, port, timeout=5.0): return once(socket.SOCK_STREAM, host, port, timeout)
def udp(host, port, timeout=5.0): return once(socket.SOCK_DGRAM, host, port, timeout)

def keep(host, port):
    s = socket.socket(family(host), socket.SOCK_STREAM)
    s.settimeout(5)
    try:
        s.connect((host, port))
        echoed(s)
    except OSError as error:
        return named(error)
    kept.append(s)
    return len(kept) - 1

def send(number):
    try:
        return echoed(kept[number])
    except OSError as error:
        return named(error)

def serve(listener):
    while True:
        s, _ = listener.accept()
        with s:
            while data := s.recv(64):
                s.sendall(data)

def listen(host):
    listener = socket.socket(family(host), socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen()
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    return listener.getsockname()[1]

def join(path):
    try:
        with open(path, "w") as f:
            f.write("0")
    except OSError as error:
        return named(error)
    return "ok"

def join_handed():
    descriptor = socket.recv_fds(link, 1, 1)[1][0]
    try:
        os.write(descriptor, b"0")
    except OSError as error:
        return named(error)
    finally:
        os.close(descriptor)
    return "ok"

def loading(targets):
    while not stopping.is_set():
        for protocol, host, port in targets:
            outcome = globals()[protocol](host, port)
            with lock:
                counts = outcomes.setdefault(f"{protocol} {host} {port}", {})
                counts[outcome] = counts.get(outcome, 0) + 1
        time.sleep(0.002)

workers = []
def load(targets, threads):
    stopping.clear()
    outcomes.clear()
    workers[:] = [threading.Thread(target=loading, args=(targets,), daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    return "ok"

def unload():
    stopping.set()
    for worker in workers:
        worker.join()
    return outcomes

def fork(seconds):
    pid = os.fork()
    if pid == 0:
        for each in (0, 1):
            os.close(each)
        time.sleep(seconds)
        os._exit(0)
    return pid

def ready(): return "ok"
def counts():
    with lock:
        return dict(outcomes)

for line in sys.stdin:
    order = json.loads(line)
    print(json.dumps(globals()[order.pop("order")](**order)), flush=True)
"""
