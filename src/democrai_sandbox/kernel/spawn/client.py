"""Client of the spawn server in the application: start the server, start programs through it, and follow them.

Functions that a request needs are bound to names here, and the sockets have the interpreter's built-in type. Subjects
in this process can replace functions and methods of the standard library, and could otherwise read or forge requests.
"""

from __future__ import annotations

import _socket
import errno
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from _socket import socketpair  # a third of the cost of socket.socketpair; each child needs one
from _thread import allocate_lock
from array import array
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import close, getpid
from pathlib import Path
from signal import pidfd_send_signal
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import SpawnFailed

from . import protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_PASSED = protocol.MOST_DESCRIPTORS - 8
"""Limit that leaves room for streams, lifeline, body and cgroup."""
_TEMPLATE_STEPS = {"template", "close"}
"""Steps that fail when a worker cannot be forked from the template; its program can still be executed."""
_CALLER_STEPS = {"program", "folder"}
"""Steps whose failure is caused by the request, as without a server."""


@dataclass(frozen=True, slots=True)
class SpawnOrder:
    """Program to start, with its confinement. The application keeps its descriptors."""

    program: str
    """Absolute path of the executed file, independent of ``argv[0]``."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Complete environment; nothing is inherited."""
    folder: str
    stdin: int = protocol.NOTHING
    stdout: int = protocol.NOTHING
    stderr: int = protocol.NOTHING
    pass_fds: tuple[int, ...] = ()
    """Additional descriptors, which keep their numbers."""
    plan: protocol.LandlockPlan | None = None
    """None applies no Landlock rules except the application's baseline."""
    filter: bytes = field(default=b"", repr=False)
    """seccomp program; empty for none."""
    limits: tuple[tuple[int, int], ...] = ()
    wall_seconds: float | None = None
    cgroup: int = protocol.NOTHING
    """Descriptor for joining its cgroup: a socket of the helper, or ``cgroup.procs`` open for writing."""
    umask: int = protocol.NOTHING
    """``protocol.NOTHING`` for the application's umask when it started the server."""
    fork: bool = False
    """Whether to fork the template process instead of executing the program, if the template can be used."""
    nice: int = 0
    """Nice value of the program and of its session, from 0 to 19: its share of the processor."""
    keep_caps: int = protocol.CHILD_CAPABILITIES
    """Upper bound of root's capabilities; the server has dropped all others."""


def body_of(order: SpawnOrder) -> tuple[bytes, list[int]]:
    """Encode a request; return it with its descriptors, without duplicates. Reject what ``subprocess`` rejects too."""
    descriptors: list[int] = []

    def index(descriptor: int) -> int:
        if descriptor == protocol.NOTHING:
            return protocol.NOTHING
        if descriptor not in descriptors:
            descriptors.append(descriptor)
        return descriptors.index(descriptor)

    if "" in order.environment or "=" in "".join(order.environment):
        raise ValueError("illegal environment variable name")
    if len(order.pass_fds) > _MOST_PASSED:
        raise ValueError(f"at most {_MOST_PASSED} descriptors can be passed")
    body = protocol.packed_order(order, index)
    if len(body) > protocol.LARGEST_BODY:
        raise ValueError(f"the request has {len(body)} bytes; the limit is {protocol.LARGEST_BODY}")
    return body, descriptors


def failure_of(answer: dict[str, Any], order: SpawnOrder) -> Exception:
    """Return the error of a program that was not started."""
    number, step = answer.get("errno"), answer.get("step")
    if type(number) is int and step in _CALLER_STEPS:
        return OSError(number, os.strerror(number), order.program if step == "program" else order.folder)
    if type(number) is int:
        what = f"confining {order.program} failed at the step {step!r}: {os.strerror(number)}"
        return SpawnFailed(f"{what}; it was not started", fix="check the status for the features of this kernel")
    return SpawnFailed(f"the spawn server refused to start {order.program}: {answer.get('error')}")


_STATUS_SECONDS = 5.0
"""Seconds for the server to report the exit status of an ended program, after killing its remaining processes."""
_WHOLE_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9."""


_NO_SIGNAL, _BOTH_WAYS, _KILL = int(socket.MSG_NOSIGNAL), int(socket.SHUT_RDWR), int(signal.SIGKILL)


class SpawnedChild:
    """Child of the spawn server and leader of its session.

    Its process id is not reused before ``collect`` or ``close``, even after its end. Closing kills its remaining
    processes.
    """

    __slots__ = ("_lifeline", "_lock", "_returncode", "missing", "pid", "pidfd", "timed_out")

    def __init__(self, pid: int, pidfd: int, lifeline: _socket.socket, missing: tuple[str, ...]) -> None:
        self.pid = pid
        self.pidfd = pidfd
        """Readable after the program has ended; closed with the rest."""
        self.missing = missing
        """Allowed paths that do not exist, so the child cannot use them."""
        self.timed_out = False
        """Whether it was killed by its timeout; known after ``collect``."""
        self._lifeline = lifeline
        self._returncode: int | None = None
        self._lock = threading.Lock()

    @property
    def ended(self) -> int:
        """Descriptor that is readable after the program has ended: the lifeline. Do not read from it."""
        return self._lifeline.fileno()

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group, unless it has ended."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            try:
                self._lifeline.send(bytes([number]), _NO_SIGNAL)
            except OSError:
                self._signal_directly(number)
            else:
                if number == _KILL:  # a stopped server does not forward signals
                    self._signal_directly(number)

    def collect(self) -> int:
        """Return the exit status, negative for a signal, after the program has ended, and close all descriptors."""
        if self._returncode is None:
            packet = self._status()
            try:
                if len(packet) != protocol.STATUS.size:
                    # The server has ended, and the kernel kills its children with it. Their exit status is unknown.
                    self._signal_directly(_KILL)
                    raise SpawnFailed(f"the spawn server has ended, and the program {self.pid} with it")
                self._returncode, self.timed_out = protocol.STATUS.unpack(packet)
            finally:
                self.close()
        return self._returncode

    def close(self) -> None:
        """Kill the remaining processes of the child and close all descriptors."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            # A fork of the application may also hold the lifeline; shutting it down notifies the server anyway.
            with suppress(OSError):
                self._lifeline.shutdown(_BOTH_WAYS)
            self._lifeline.close()
            close(self.pidfd)

    def _status(self) -> bytes:
        poll = select.poll()
        lifeline = self._lifeline.fileno()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        told = any(number == lifeline for number, _ in poll.poll())
        if not told:
            # It has ended; the server reports the status next, unless it is stopped.
            poll.unregister(self.pidfd)
            told = bool(poll.poll(_STATUS_SECONDS * 1000))
        try:
            return self._lifeline.recv(protocol.STATUS.size) if told else b""
        except (BlockingIOError, ConnectionError):
            return b""

    def _signal_directly(self, number: int) -> None:
        """Send a signal without the server. The descriptor cannot refer to another process."""
        for flags in (_WHOLE_GROUP, 0):
            with suppress(OSError):  # an old kernel, a confined application, or an ended process
                pidfd_send_signal(self.pidfd, number, None, flags)


_SERVER = Path(__file__).with_name("server.py")
_KEPT = ("LD_LIBRARY_PATH",)
"""Environment variables that an interpreter may need to start; the server does not get the host's settings."""
_PATIENCE = 30.0
_SLICE = 1.0
"""Seconds after which a caller that waits for an answer checks that the other process is alive."""
_STALLED_PATIENCE = 2.0
"""Seconds to wait for the end of a server that has stopped answering."""
_PAUSE = 0.005
_RESTART = "restart the application: the server can only be started before the application is confined"
_AGAIN = "retry soon: the spawn server restarts automatically; if it does not, restart the application"
_ROOM = socket.CMSG_SPACE(array("i").itemsize)
_KIND = (int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET))
_LEVEL, _RIGHTS, _RECEIVE_WITHIN = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS), int(socket.SO_RCVTIMEO)
_TIMEVAL = struct.Struct("@ll")
_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_GONE = {errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF}


class SpawnServer:
    """Running spawn server. Threads may share it; a fork of the application may not use it."""

    def __init__(self, process: subprocess.Popen[bytes], link: _socket.socket, patience: float, bond: int) -> None:
        """Take over a process that was started with the other ends of the link and the bond."""
        self._patience = patience
        self._answer_within = _timeval(min(patience, _SLICE))
        self._process = process
        self._link = link
        self._spare: list[tuple[_socket.socket, _socket.socket]] = []
        self._sparing = allocate_lock()
        self._owner = getpid()
        self._bond = bond
        self.template: tuple[str, ...] = ()
        """Command of the template process; empty without one."""
        self.pid = process.pid
        """Process id of the server at the last answer."""
        self.standby = 0
        """Process id of its standby."""
        self.template_pid = 0
        """Process id of the template; 0 while none runs."""
        self.limits_processes = False
        """Whether a pids cgroup limits the processes of each child, at the last answer."""
        self.stalled = False
        """Whether it did not answer; requests fail immediately until it does."""

    @classmethod
    def start(
        cls, *, interpreter: str | None = None, patience: float = _PATIENCE, template: Sequence[str] = ()
    ) -> SpawnServer:
        """Start the server and wait until it answers. Call before threads, secrets and confinement.

        The interpreter must have this one's version, because both load the same extension. ``template`` is the command
        of the template process for workers; empty for none.
        """
        ours, far = socketpair(*_KIND)
        bond, held = os.pipe()
        family = int.from_bytes(os.urandom(4), "little") >> 1  # shared by the marks of all children
        try:
            with socket.socket(*_KIND, 0, fileno=far.detach()) as theirs:
                # Before the first packet: the kernel adds the sender's process id only to packets sent after this.
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                # Isolated, without site, and without writing bytecode.
                command = [interpreter or sys.executable, "-I", "-S", "-B", str(_SERVER), json.dumps(template)]
                command.append(_pids_folder())
                # A separate session, so that signals of the terminal do not reach the server.
                process = subprocess.Popen(  # noqa: S603 - this interpreter, with a file of this package
                    [*command, str(theirs.fileno()), str(held), str(getpid()), str(family)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), held),
                    env={name: os.environ[name] for name in _KEPT if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            close(bond)
            raise SpawnFailed(
                f"the spawn server cannot be started: {error}", fix="use a working interpreter"
            ) from error
        finally:
            close(held)
        # A timeout in the kernel: a timeout in Python would double the system calls.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(patience))
        server = cls(process, ours, patience, bond)
        server.template = tuple(template)
        try:
            server.stats()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def alive(self) -> bool:
        """Whether the server or its standby runs; only the application that started it can tell."""
        if getpid() != self._owner or self._bond < 0:
            return False
        self._process.poll()  # reap an ended server
        return not self._are_gone(0)

    def answers(self, within: float) -> bool:
        """Return whether it answers within this number of seconds."""
        try:
            self.stats(within)
        except SpawnFailed:
            return False
        return True

    def spawn(self, order: SpawnOrder) -> SpawnedChild:
        """Start a confined program.

        Raise the ``OSError`` of a direct start if the program or its folder cannot be used, and ``SpawnFailed`` if the
        server or the confinement failed.
        """
        answer = self._ask(*body_of(order))
        if answer.pidfd is None or not answer.members.get("ok"):
            answer.close()
            if order.fork and answer.members.get("step") in _TEMPLATE_STEPS:
                return self.spawn(replace(order, fork=False))
            raise failure_of(answer.members, order)
        members = answer.members
        return SpawnedChild(members["pid"], answer.pidfd, answer.lifeline, members["missing"])

    def baseline(self, plan: protocol.LandlockPlan) -> tuple[str, ...]:
        """Send the application's Landlock lists, once, as the first layer of every child; return the missing paths."""
        return tuple(self._plain_answer({"action": "baseline", "plan": plan})["missing"])

    def stats(self, within: float | None = None) -> dict[str, Any]:
        """Return the server's statistics: running, kept, started and refused children."""
        answer = self._plain_answer({"action": "stats"}, within)
        self.pid, self.standby, self.template_pid = answer["pid"], answer["standby"], answer["template"]
        self.limits_processes = answer["pids_cgroups"]
        return {name: value for name, value in answer.items() if name != "ok"}

    def stop(self, patience: float = _PATIENCE) -> None:
        """Stop the server and all its children."""
        if getpid() != self._owner:
            return
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        while self._spare:
            for end in self._spare.pop():
                end.close()
        if self._bond < 0:
            return
        if self.stalled:
            patience = min(patience, _STALLED_PATIENCE)
            for pid in (self.pid, self.standby):
                with suppress(OSError):  # a confined application may not signal it
                    os.kill(pid, signal.SIGCONT)
        if not self._are_gone(patience):
            with suppress(OSError):  # a confined application may not signal it
                self._process.kill()
                self._are_gone(patience)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)  # it closes its descriptors shortly before it ends
        close(self._bond)
        self._bond = -1

    def _are_gone(self, patience: float) -> bool:
        """Return whether the server and its standby have ended, or end within this number of seconds."""
        poll = select.poll()
        poll.register(self._bond, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def _plain_answer(self, request: dict[str, Any], within: float | None = None) -> dict[str, Any]:
        answer = self._ask(protocol.JSON + json.dumps(request).encode(), [], within)
        answer.close()
        if not answer.members.get("ok"):
            raise SpawnFailed(f"the spawn server refused: {answer.members.get('error')}")
        return answer.members

    def _ask(self, body: bytes, descriptors: Sequence[int], within: float | None = None) -> _SpawnAnswer:
        """Send a request with a new lifeline, and return the lifeline with the answer."""
        if getpid() != self._owner:
            raise SpawnFailed("only the process that started the spawn server can use it, not a fork of that process")
        if self.stalled and within is None:
            raise SpawnFailed("the spawn server does not answer", fix=_AGAIN)
        ours, theirs = self._lifeline()
        if within is not None:
            ours.setsockopt(_LEVEL, _RECEIVE_WITHIN, _timeval(within))
        try:
            try:
                self._send(body, theirs.fileno(), descriptors)
            finally:
                theirs.close()
            answer = self._answer(ours, within)
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise self._lost(error) from error
            raise
        self._make_spare()
        return answer

    def _answer(self, lifeline: _socket.socket, within: float | None) -> _SpawnAnswer:
        deadline = monotonic() + self._patience
        while True:
            try:
                return _received(lifeline)
            except BlockingIOError:
                if within is not None or self.stalled or monotonic() > deadline:
                    raise

    def _lifeline(self) -> tuple[_socket.socket, _socket.socket]:
        """Return the two ends of a lifeline: the spare one, unless another thread has taken it."""
        try:
            return self._spare.pop()
        except IndexError:
            ours, theirs = socketpair(*_KIND)
            ours.setsockopt(_LEVEL, _RECEIVE_WITHIN, self._answer_within)
            return ours, theirs

    def _make_spare(self) -> None:
        """Prepare a lifeline for the next request, while the program starts."""
        if self._sparing.acquire(blocking=False):
            try:
                if not self._spare:
                    self._spare.append(self._lifeline())
            except OSError:
                pass  # no free descriptor: the next request reports it
            finally:
                self._sparing.release()

    def _send(self, body: bytes, lifeline: int, descriptors: Sequence[int]) -> None:
        if len(body) <= protocol.LARGEST_INLINE:
            self._send_packet(body, [lifeline, *descriptors])
            return
        file = protocol.sealed(body)
        try:
            self._send_packet(protocol.IN_FILE, [lifeline, file, *descriptors])
        finally:
            close(file)

    def _send_packet(self, packet: bytes, descriptors: Sequence[int]) -> None:
        """Send a packet; wait while too many descriptors of this user are in transit."""
        rights = [(_LEVEL, _RIGHTS, array("i", descriptors))]
        begin = monotonic()
        while True:
            try:
                self._link.sendmsg([packet], rights, _NO_SIGNAL)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or monotonic() - begin > self._patience:
                    raise
                sleep(_PAUSE)
            else:
                return

    def _lost(self, error: OSError) -> SpawnFailed:
        if isinstance(error, BlockingIOError):
            return SpawnFailed("the spawn server does not answer in time", fix=_AGAIN)
        if error.errno not in _GONE:
            return SpawnFailed(f"the spawn server cannot be reached: {error}")
        if self.alive:
            return SpawnFailed("the spawn server has ended, and its standby takes over", fix=_AGAIN)
        code = self._process.poll()
        state = "has closed the connection" if code is None else f"has ended (exit status {code})"
        return SpawnFailed(f"the spawn server {state}", fix=_RESTART)


def _pids_folder() -> str:
    from democrai_sandbox.kernel.helper.cgroups import own_folder  # noqa: PLC0415 - workers import this module

    try:
        return own_folder("pids")
    except OSError:
        return ""


class _SpawnAnswer(NamedTuple):
    lifeline: _socket.socket
    members: dict[str, Any]
    pidfd: int | None

    def close(self) -> None:
        self.lifeline.close()
        if self.pidfd is not None:
            close(self.pidfd)


def _received(lifeline: _socket.socket) -> _SpawnAnswer:
    """Receive an answer. ``socket.recv_fds`` ignores its flags, so other programs would inherit the descriptor."""
    packet, rest, _, _ = lifeline.recvmsg(protocol.LARGEST_ANSWER, _ROOM, _ON_EXEC)
    if not packet:
        raise ConnectionResetError(errno.ECONNRESET, "the answer is empty")
    passed = array("i")
    for _, _, data in rest:
        passed.frombytes(data)
    return _SpawnAnswer(lifeline, protocol.parsed_answer(packet), passed[0] if passed else None)


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
