"""Self-test: run forbidden operations in the application and in a confined child, and report the results."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from democrai_sandbox.errors import KernelLayerError

from . import selftest_operations as operations
from .spawn.client import SpawnOrder
from .spawn.confinement import ResourceLimits, confinement_of, enforcement_of
from .status import EGRESS, LANDLOCK, SECCOMP, SPAWN_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .egress.allowlist import ChildCgroup
    from .egress.control import EgressControl
    from .spawn.client import SpawnedChild, SpawnServer
    from .spawn.confinement import ChildConfinement, Enforcement

_ARRIVES_WITHIN = 0.25
_DATAGRAM = 64
FAMILIES = (("v4", socket.AF_INET, "127.0.0.1"), ("v6", socket.AF_INET6, "::1"))


class SelfTestFixtures:
    """Folder in the state directory and four listeners on loopback, removed at the end."""

    def __init__(self, state_dir: str) -> None:
        self.token = secrets.token_hex(8)
        self.addresses: dict[str, Any] = {}
        self._datagrams: dict[str, socket.socket] = {}
        with contextlib.ExitStack() as cleanup:
            self._cleanup = cleanup
            self.folder = tempfile.mkdtemp(prefix="os_sandbox_selftest_", dir=state_dir)
            self._cleanup.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.file = f"{self.folder}/file"
            Path(self.file).write_text("self-test\n", "ascii")
            # Programs may not be executed from this folder.
            self.program = f"{self.folder}/program"
            shutil.copyfile(harmless_program(), self.program)
            Path(self.program).chmod(0o700)
            listener = self._cleanup.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            with self._short_path() as folder:
                listener.bind(f"{folder}/socket")
            listener.listen(16)
            for name, family, host in FAMILIES:
                self._listen(name, family, host)
            self._cleanup = cleanup.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def arrived(self, name: str) -> bool:
        """Whether this run's datagram arrived. Consumes earlier datagrams of the same run."""
        listener = self._datagrams[name]
        until = time.monotonic() + _ARRIVES_WITHIN
        found = False
        while not found and (left := until - time.monotonic()) > 0:
            if select.select([listener], [], [], left)[0]:
                found = listener.recv(_DATAGRAM) == self.token.encode()
        return found

    def call_unix(self) -> None:
        """Connect to the unix socket, as a process with access to the folder does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link, self._short_path() as folder:
            link.connect(f"{folder}/socket")

    @contextlib.contextmanager
    def _short_path(self) -> Iterator[str]:
        """Return a short path to the folder through a descriptor, because socket addresses have a length limit."""
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}"
        finally:
            os.close(folder)

    def _listen(self, name: str, family: socket.AddressFamily, host: str) -> None:
        self.addresses[f"tcp {name}"] = self.addresses[f"udp {name}"] = None
        with contextlib.suppress(OSError):  # a machine without this address family
            stream = self._cleanup.enter_context(socket.socket(family, socket.SOCK_STREAM))
            stream.bind((host, 0))
            stream.listen(16)
            datagrams = self._cleanup.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            datagrams.bind((host, 0))
            self._datagrams[name] = datagrams
            self.addresses[f"tcp {name}"] = stream.getsockname()
            self.addresses[f"udp {name}"] = datagrams.getsockname()


def harmless_program() -> str:
    """Return a program that does nothing; fall back to the interpreter, which exits on empty input."""
    return next((path for path in ("/bin/true", "/usr/bin/true") if os.access(path, os.X_OK)), sys.executable)


def readable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder outside the lists that every user may read, so that only Landlock can refuse it."""
    return next(_outside(("/", "/home", "/var", "/srv", "/mnt", "/media"), lists, os.R_OK | os.X_OK), None)


def writable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder outside the lists that this user may write to."""
    own = str(Path.home()) if "HOME" in os.environ else "/"
    places = ("/var/tmp", "/tmp", "/dev/mqueue", f"/run/user/{os.getuid()}", "/run/lock", own, "/srv", "/")  # noqa: S108
    return next(_outside(places, lists, os.W_OK | os.X_OK), None)


def _outside(places: Iterable[str], lists: Iterable[str], mode: int) -> Iterator[str]:
    listed = [Path(path).resolve() for path in lists]
    for place in places:
        resolved = Path(place).resolve()
        # Landlock does not restrict access(), which checks owner and mode only.
        if resolved.is_dir() and os.access(place, mode) and not any(resolved.is_relative_to(path) for path in listed):
            yield place


def cgroup_root() -> str:
    """Return the file that moves a process into the root cgroup; empty without cgroup v2."""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return f"{before.split()[4]}/cgroup.procs"
    return ""


PROCESS = "process"
CHILD = "child"
CGROUP_CHILD = "child with network"
STOPPED = "stopped"
OPEN = "open"

_EXEC_WITHIN = 20.0
_SCOPES_SINCE = 6
# Errors of a missing network, which no control returns.
_NO_NETWORK = tuple(f"stopped by {name}" for name in ("ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT", "ENETDOWN"))
_AS_ROOT = "run the application as a user without privileges, or turn on sandbox.os.landlock and sandbox.os.seccomp"


@dataclass(frozen=True, slots=True)
class SelfTestAttempt:
    """Forbidden operation with its process, the expected result and the actual result."""

    act: str
    where: str
    control: str
    expected: str
    outcome: str
    ok: bool
    fix: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the attempt as JSON data."""
        return asdict(self)


def judged(
    act: str, where: str, control: str, outcome: str, *, expected: str = STOPPED, fix: str = ""
) -> SelfTestAttempt:
    """Return the attempt with its verdict. An operation that could not be run counts as failed."""
    if outcome in _NO_NETWORK:
        return SelfTestAttempt(
            act, where, control, expected, f"{operations.UNTRIED}this machine lacks such a network", ok=True
        )
    ok = expected == OPEN or outcome.startswith(("stopped by", "killed by"))
    return SelfTestAttempt(act, where, control, expected, outcome, ok, "" if ok else fix)


def needless(act: str, where: str, control: str, why: str) -> SelfTestAttempt:
    """Return an attempt that does not apply on this machine."""
    return SelfTestAttempt(act, where, control, STOPPED, f"{operations.UNTRIED}{why}", ok=True)


@dataclass(frozen=True, slots=True)
class Claims:
    """Controls that are reported as in force and are therefore tested."""

    state_dir: str
    landlock: bool
    seccomp: bool
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    abi: int
    unfiltered: str
    """Why children get no system call filter; empty if they get one."""
    server: SpawnServer | None
    """Starts the temporary child, and is an unconfined process of the same user."""
    egress: EgressControl | None


def run(claims: Claims) -> tuple[SelfTestAttempt, ...]:
    """Run the forbidden operations and return the results.

    In the application process these are operations that are harmless even if they succeed. ``execve`` kills its caller,
    so it runs in a child forked by ``subprocess``, which runs only C code between fork and exec. Other operations are
    not tested in a fork of the application, because Python code in a fork is unsafe beside threads.
    """
    try:
        fixtures = SelfTestFixtures(claims.state_dir)
    except OSError as error:
        raise KernelLayerError(
            f"the self-test cannot create files in {claims.state_dir}: {error}",
            fix="give the application's user write permission for its state directory",
        ) from error
    with fixtures:
        return (
            *(_files(claims) if claims.landlock else ()),
            *(_calls() if claims.seccomp else ()),
            *(_network(fixtures) if claims.egress is not None else ()),
            *(_in_child(fixtures, claims, claims.server) if claims.server is not None else ()),
        )


def reaches_outside(readable: tuple[str, ...]) -> bool:
    """Whether the calling thread can open a folder outside all lists. Takes microseconds."""
    folder = readable_outside(readable)
    return folder is not None and operations.outcome_of(operations.read, folder) == operations.THROUGH


def _files(claims: Claims) -> Iterator[SelfTestAttempt]:
    places: tuple[tuple[str, Callable[[str], None], str | None], ...] = (
        ("read outside the lists", operations.read, readable_outside((*claims.readable, *claims.writable))),
        ("write outside the lists", operations.write, writable_outside(claims.writable)),
    )
    for act, function, place in places:
        if place is None:
            yield needless(act, PROCESS, LANDLOCK, "every folder that this user can reach is in the lists")
        else:
            yield judged(f"{act}: {place}", PROCESS, LANDLOCK, operations.outcome_of(function, place))
    if claims.server is not None and claims.server.alive and claims.abi >= _SCOPES_SINCE:
        outcome = operations.outcome_of(os.kill, claims.server.pid, 0)
        yield judged("signal to a process outside", PROCESS, LANDLOCK, outcome)


def _calls() -> Iterator[SelfTestAttempt]:
    from . import _native  # noqa: PLC0415 - exists on Linux only

    yield judged("execve", PROCESS, SECCOMP, operations.outcome_of(_executed))
    for name in ("unshare", "io_uring_setup", "process_vm_readv"):  # the filter refuses these without killing
        yield judged(name, PROCESS, SECCOMP, operations.outcome_of(operations.probe, _native, name))
    yield judged("packet socket", PROCESS, SECCOMP, operations.outcome_of(operations.packet_socket))


def _executed() -> str | None:
    program = subprocess.Popen(  # noqa: S603 - a program of the system that does nothing
        [harmless_program()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}
    )
    with program:
        try:
            code = program.wait(_EXEC_WITHIN)
        except subprocess.TimeoutExpired:
            program.kill()
            return None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else None


def _network(fixtures: SelfTestFixtures) -> Iterator[SelfTestAttempt]:
    for name, family, _ in FAMILIES:
        for kind, act in ((f"tcp {name}", operations.connect), (f"udp {name}", partial(_sent, fixtures, name))):
            address = fixtures.addresses[kind]
            if address is None:
                yield needless(kind, PROCESS, EGRESS, f"this machine has no IP{name} on loopback")
            else:
                yield judged(kind, PROCESS, EGRESS, operations.outcome_of(act, family, address))
    outcome = operations.outcome_of(fixtures.call_unix)
    yield judged("unix socket", PROCESS, EGRESS, outcome, expected=OPEN)
    # A process that can do one of these, usually root, can avoid the packet filter of its cgroup.
    yield judged("packet socket", PROCESS, EGRESS, operations.outcome_of(operations.packet_socket), fix=_AS_ROOT)
    if foreign := cgroup_root():
        outcome = operations.outcome_of(operations.open_for_writing, foreign)
        yield judged("leave the cgroup", PROCESS, EGRESS, outcome, fix=_AS_ROOT)


def _sent(fixtures: SelfTestFixtures, name: str, family: socket.AddressFamily, address: Any) -> str | None:
    operations.send(family, address, fixtures.token)
    return None if fixtures.arrived(name) else "stopped by timeout"


_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/dev/null", "/dev/urandom")
_LEAVE = "leave the cgroup"
_GROUP = "multicast group"
_BY_LANDLOCK = ("read", "write", "exec", "network tables", _LEAVE)
_BY_FILTER = (
    *("ptrace", "setuid", "chroot", "unshare", "io_uring", "packet socket", "unix socket"),
    *("message queue", "memory program", "watch for changes", "attributes", "netlink", _GROUP),
)
_METADATA = "metadata"
"""Refused by the filter where Landlock restricts files."""
_NETWORK = tuple(f"{protocol} {name}" for name, _, _ in FAMILIES for protocol in ("tcp", "udp"))
_SECONDS = 60
_LONGEST_ANSWER = 64 * 1024
_TCP_SINCE = 4


class _Trial(NamedTuple):
    """One child: its confinement, its operations, and those that a control must stop."""

    where: str
    control: str
    enforced: Enforcement
    acts: tuple[str, ...]
    stopped: frozenset[str]


def _in_child(fixtures: SelfTestFixtures, claims: Claims, server: SpawnServer) -> Iterator[SelfTestAttempt]:
    """Run all operations in a child without rules, and network operations in a child without allowed targets.

    The children can run operations that kill the process.
    """
    egress = claims.egress
    trials = [_without_rules(claims.abi, has_cgroup=egress is not None, unfiltered=claims.unfiltered)]
    if egress is not None:
        trials.append(_without_targets(claims.abi))
    for trial in trials:
        yield from _attempts(fixtures, server, egress, trial)


def unenforced_in_children(abi: int, unfiltered: str = "") -> tuple[str, ...]:
    """Return the accesses that this machine cannot deny to a child; ``unfiltered`` is why it gets no filter."""
    return _enforcement(_confinement(), abi, unfiltered=unfiltered).unenforced


def _without_rules(abi: int, *, has_cgroup: bool, unfiltered: str) -> _Trial:
    enforced = _enforcement(_confinement(), abi, packet_filter=has_cgroup, unfiltered=unfiltered)
    filtered = bool(enforced.filter)
    stopped = set(_BY_LANDLOCK if abi else ()) | set(_BY_FILTER if filtered else ())
    if abi and filtered:
        stopped.add(_METADATA)
    has_ports = abi >= _TCP_SINCE
    stopped |= {act for act in _NETWORK if filtered or has_cgroup or (has_ports and act.startswith("tcp"))}
    return _Trial(CHILD, SPAWN_SERVER, enforced, (*_BY_LANDLOCK, *_BY_FILTER, _METADATA, *_NETWORK), frozenset(stopped))


def _without_targets(abi: int) -> _Trial:
    """Return the child that Landlock and the filter do not keep from the network, so that only its cgroup restricts it.

    Multicast groups are excluded: the kernel announces them in packets that belong to no cgroup.
    """
    confinement = replace(_confinement(), has_network=True, connect_ports=None)
    enforced = _enforcement(confinement, abi, packet_filter=True)
    stopped = frozenset((*_NETWORK, _GROUP) if enforced.filter else _NETWORK)
    return _Trial(CGROUP_CHILD, EGRESS, enforced, (*_NETWORK, _GROUP), stopped)


def _confinement() -> ChildConfinement:
    here = str(Path(__file__).resolve().parent)
    runtime = (*_SYSTEM, sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent))
    return confinement_of(
        (), runtime_read=(here,), runtime_execute=runtime, limits=ResourceLimits(wall_seconds=_SECONDS)
    )


def _enforcement(
    confinement: ChildConfinement, abi: int, *, packet_filter: bool = False, unfiltered: str = ""
) -> Enforcement:
    root = os.geteuid() == 0
    return enforcement_of(confinement, abi, packet_filter=packet_filter, root=root, unfiltered=unfiltered)


def _attempts(
    fixtures: SelfTestFixtures, server: SpawnServer, egress: EgressControl | None, trial: _Trial
) -> tuple[SelfTestAttempt, ...]:
    cgroup = None
    try:
        cgroup = egress.child(()) if egress is not None else None
        outcomes, output = _answers(server, _order(fixtures, trial, cgroup))
    except (KernelLayerError, OSError) as error:
        return (judged("all acts", trial.where, trial.control, f"{operations.UNTRIED}{error}"),)
    finally:
        if egress is not None and cgroup is not None:
            egress.release(cgroup)
    return tuple(_attempts_of_trial(fixtures, trial, outcomes, output))


def _order(fixtures: SelfTestFixtures, trial: _Trial, cgroup: ChildCgroup | None) -> SpawnOrder:
    from . import _native  # noqa: PLC0415 - exists on Linux only

    plan = {
        "native": _native.__file__,
        "file": fixtures.file,
        "folder": fixtures.folder,
        "program": fixtures.program,
        "token": fixtures.token,
        "cgroup": cgroup_root(),
        "acts": trial.acts,
        **fixtures.addresses,
    }
    enforced = trial.enforced
    return SpawnOrder(
        program=sys.executable,
        argv=(sys.executable, "-I", "-S", "-B", operations.__file__, json.dumps(plan)),
        environment={},
        folder=fixtures.folder,  # gives the socket there a short name; entering a folder does not read it
        plan=enforced.plan,
        filter=enforced.filter,
        limits=enforced.limits,
        wall_seconds=enforced.wall_seconds,
        cgroup=-1 if cgroup is None else cgroup.descriptor,
    )


def _answers(server: SpawnServer, order: SpawnOrder) -> tuple[dict[str, str], str]:
    """Return the outcome of each operation, and any other output of the child."""
    read_end, write_end = os.pipe()
    try:
        try:
            child = server.spawn(replace(order, stdout=write_end, stderr=write_end))
        finally:
            os.close(write_end)
        text = _read(read_end, child)
    finally:
        os.close(read_end)
    outcomes: dict[str, str] = {}
    other = ""
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            name, outcome = json.loads(line)
            outcomes[str(name)] = str(outcome)
        except (ValueError, TypeError):
            other = line
    return outcomes, other


def _read(descriptor: int, child: SpawnedChild) -> bytes:
    """Read until the child exits; kill a child that does not exit in time."""
    until = time.monotonic() + _SECONDS
    text = b""
    try:
        while len(text) < _LONGEST_ANSWER and (left := until - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                part = os.read(descriptor, _LONGEST_ANSWER)
                if not part:
                    break
                text += part
        child.signal_group(signal.SIGKILL)
        child.collect()
    finally:
        child.close()
    return text


def _attempts_of_trial(
    fixtures: SelfTestFixtures, trial: _Trial, outcomes: dict[str, str], output: str
) -> Iterator[SelfTestAttempt]:
    for act in trial.acts:
        family = act[-2:]
        if fixtures.addresses.get(act, act) is None:
            yield needless(act, trial.where, trial.control, f"this machine has no IP{family} on loopback")
            continue
        if act == _LEAVE and not cgroup_root():
            yield needless(act, trial.where, trial.control, "this machine has no cgroup v2")
            continue
        outcome = outcomes.get(act, f"{operations.UNTRIED}{output or 'the child ended before it'}")
        if act.startswith("udp") and outcome == operations.THROUGH and not fixtures.arrived(family):
            outcome = "stopped by timeout"
        expected = STOPPED if act in trial.stopped else OPEN
        yield judged(act, trial.where, trial.control, outcome, expected=expected)
