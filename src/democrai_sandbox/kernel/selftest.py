"""Self-test: run forbidden operations and report the results.

*In the application process* it runs operations that are harmless even if they succeed: open a folder outside the
lists, create a file there, connect to a listener of the self-test, send signal 0. ``execve`` kills its caller, so it
runs in a child forked by ``subprocess``, which runs only C code between fork and exec. Other operations are not tested
in a fork of the application, because Python code in a fork is unsafe beside threads. The remaining filter rules belong
to the same program, and the status reads from ``/proc`` that every thread has it.

*In a temporary child* of the spawn server, confined like the child of a subject without rules, it runs all operations,
including those that kill the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import KernelLayerError

from . import selftest_acts as acts
from .selftest_ground import FAMILIES, Ground, harmless_program, readable_outside, writable_outside
from .status import EGRESS, LANDLOCK, SECCOMP

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

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
class Attempt:
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
        return {name: getattr(self, name) for name in ("act", "where", "control", "expected", "outcome", "ok", "fix")}


def judged(act: str, where: str, control: str, outcome: str, *, expected: str = STOPPED, fix: str = "") -> Attempt:
    """Return the attempt with its verdict. An operation that could not be run counts as failed."""
    if outcome in _NO_NETWORK:
        return Attempt(act, where, control, expected, f"{acts.UNTRIED}this machine lacks such a network", ok=True)
    ok = expected == OPEN or outcome.startswith(("stopped by", "killed by"))
    return Attempt(act, where, control, expected, outcome, ok, "" if ok else fix)


def needless(act: str, where: str, control: str, why: str) -> Attempt:
    """Return an attempt that does not apply on this machine."""
    return Attempt(act, where, control, STOPPED, f"{acts.UNTRIED}{why}", ok=True)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Results of one self-test run."""

    attempts: tuple[Attempt, ...]
    seconds: float

    @property
    def failed(self) -> tuple[Attempt, ...]:
        """Attempts that succeeded, or could not be run, although a control should have stopped them."""
        return tuple(attempt for attempt in self.attempts if not attempt.ok)

    def as_dict(self) -> dict[str, object]:
        """Return the results as JSON data."""
        return {"seconds": self.seconds, "attempts": [attempt.as_dict() for attempt in self.attempts]}


@dataclass(frozen=True, slots=True)
class Claims:
    """Controls that are reported as in force and are therefore tested."""

    state_dir: str
    landlock_abi: int = 0
    """0 when Landlock is not applied."""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    seccomp: bool = False
    egress: bool = False
    foreign_cgroup: str = ""
    """File through which the process could leave its cgroup."""
    outsider: int = 0
    """Process id of an unconfined process of the same user; 0 without one."""
    child: Callable[[Ground], tuple[Attempt, ...]] | None = None
    """Function that runs all operations in a temporary child."""


def run(claims: Claims) -> SelfTest:
    """Run the forbidden operations and return the results."""
    begin = time.monotonic()
    try:
        ground = Ground(claims.state_dir)
    except OSError as error:
        raise KernelLayerError(
            f"the self-test cannot create files in {claims.state_dir}: {error}",
            fix="give the application's user write permission for its state directory",
        ) from error
    with ground:
        attempts = (
            *(_files(claims) if claims.landlock_abi else ()),
            *(_calls() if claims.seccomp else ()),
            *(_network(ground, claims) if claims.egress else ()),
            *(claims.child(ground) if claims.child else ()),
        )
    return SelfTest(attempts, time.monotonic() - begin)


def reaches_outside(readable: tuple[str, ...]) -> bool:
    """Whether the calling thread can open a folder outside all lists. Takes microseconds."""
    folder = readable_outside(readable)
    return folder is not None and acts.outcome_of(acts.read, folder) == acts.THROUGH


def _files(claims: Claims) -> Iterator[Attempt]:
    places: tuple[tuple[str, Callable[[str], None], str | None], ...] = (
        ("read outside the lists", acts.read, readable_outside((*claims.readable, *claims.writable))),
        ("write outside the lists", acts.write, writable_outside(claims.writable)),
    )
    for act, function, place in places:
        if place is None:
            yield needless(act, PROCESS, LANDLOCK, "every folder that this user can reach is in the lists")
        else:
            yield judged(f"{act}: {place}", PROCESS, LANDLOCK, acts.outcome_of(function, place))
    if claims.outsider and claims.landlock_abi >= _SCOPES_SINCE:
        yield judged("signal to a process outside", PROCESS, LANDLOCK, acts.outcome_of(os.kill, claims.outsider, 0))


def _calls() -> Iterator[Attempt]:
    from . import _native  # noqa: PLC0415 - exists on Linux only

    yield judged("execve", PROCESS, SECCOMP, acts.outcome_of(_executed))
    for name in ("unshare", "io_uring_setup", "process_vm_readv"):  # the filter refuses these without killing
        yield judged(name, PROCESS, SECCOMP, acts.outcome_of(acts.probe, _native, name))
    yield judged("packet socket", PROCESS, SECCOMP, acts.outcome_of(acts.packet_socket))


def _executed() -> str | None:
    program = subprocess.Popen(  # noqa: S603 - a program of the system that does nothing
        [harmless_program()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
    )
    with program:
        try:
            code = program.wait(_EXEC_WITHIN)
        except subprocess.TimeoutExpired:
            program.kill()
            return None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else None


def _network(ground: Ground, claims: Claims) -> Iterator[Attempt]:
    for name, family, _ in FAMILIES:
        for protocol, act in (("tcp", _connected), ("udp", _sent)):
            kind = f"{protocol} {name}"
            address = ground.addresses[kind]
            if address is None:
                yield needless(kind, PROCESS, EGRESS, f"this machine has no IP{name} on loopback")
            else:
                yield judged(kind, PROCESS, EGRESS, acts.outcome_of(act, ground, name, family, address))
    outcome = acts.outcome_of(ground.call_unix)
    yield judged("unix socket", PROCESS, EGRESS, outcome, expected=OPEN)
    # A process that can do one of these, usually root, can avoid the packet filter of its cgroup.
    yield judged("packet socket", PROCESS, EGRESS, acts.outcome_of(acts.packet_socket), fix=_AS_ROOT)
    if claims.foreign_cgroup:
        outcome = acts.outcome_of(acts.open_for_writing, claims.foreign_cgroup)
        yield judged("leave the cgroup", PROCESS, EGRESS, outcome, fix=_AS_ROOT)


def _connected(_ground: Ground, _name: str, family: socket.AddressFamily, address: Any) -> str | None:
    return acts.connect(family, address)


def _sent(ground: Ground, name: str, family: socket.AddressFamily, address: Any) -> str | None:
    acts.send(family, address, ground.token)
    return None if ground.arrived(name) else "stopped by timeout"
