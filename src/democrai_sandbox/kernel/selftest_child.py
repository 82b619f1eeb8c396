"""Temporary child of the self-test: confined like the child of a subject without rules, it runs all operations."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError

from . import selftest_acts as acts
from .selftest import CGROUP_CHILD, CHILD, OPEN, STOPPED, Attempt, judged, needless
from .selftest_ground import FAMILIES, cgroup_root
from .spawn.client import SpawnOrder
from .spawn.confinement import confinement_of, enforcement_of
from .spawn.limits import ResourceLimits
from .status import EGRESS, SPAWN_SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .egress.control import EgressControl
    from .egress.interface import ChildCgroup
    from .selftest_ground import Ground
    from .spawn.client import SpawnedChild, SpawnServer
    from .spawn.confinement import ChildConfinement, Enforcement

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/dev/null", "/dev/urandom")
_LEAVE = "leave the cgroup"
_GROUP = "multicast group"
_BY_LANDLOCK = ("read", "write", "exec", "network tables", _LEAVE)
_BY_FILTER = (
    *("ptrace", "setuid", "chroot", "unshare", "io_uring", "packet socket", "unix socket"),
    *("message queue", "memory program", "watch for changes", "attributes", "netlink", _GROUP),
)
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


def attempts_in_child(
    ground: Ground, server: SpawnServer, abi: int, egress: EgressControl | None = None
) -> tuple[Attempt, ...]:
    """Run all operations in a child without rules, and network operations in a child without allowed targets."""
    trials = [_without_rules(abi, has_cgroup=egress is not None)]
    if egress is not None:
        trials.append(_without_targets(abi))
    return tuple(attempt for trial in trials for attempt in _attempts(ground, server, egress, trial))


def unenforced_in_children(abi: int) -> tuple[str, ...]:
    """Return the accesses that this machine cannot deny to a child."""
    return _enforcement(_confinement(), abi).unenforced


def _without_rules(abi: int, *, has_cgroup: bool) -> _Trial:
    enforced = _enforcement(_confinement(), abi, packet_filter=has_cgroup)
    filtered = bool(enforced.filter)
    stopped = set(_BY_LANDLOCK if abi else ()) | set(_BY_FILTER if filtered else ())
    for act in _NETWORK:
        if filtered or has_cgroup or (act.startswith("tcp") and abi >= _TCP_SINCE):
            stopped.add(act)
    return _Trial(CHILD, SPAWN_SERVER, enforced, (*_BY_LANDLOCK, *_BY_FILTER, *_NETWORK), frozenset(stopped))


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


def _enforcement(confinement: ChildConfinement, abi: int, *, packet_filter: bool = False) -> Enforcement:
    return enforcement_of(confinement, abi, packet_filter=packet_filter, root=os.geteuid() == 0)


def _attempts(ground: Ground, server: SpawnServer, egress: EgressControl | None, trial: _Trial) -> tuple[Attempt, ...]:
    cgroup = None
    try:
        cgroup = egress.child(()) if egress is not None else None
        met, said = _answers(server, _order(ground, trial, cgroup))
    except (KernelLayerError, OSError) as error:
        return (judged("all acts", trial.where, trial.control, f"{acts.UNTRIED}{error}"),)
    finally:
        if egress is not None and cgroup is not None:
            egress.release(cgroup)
    return tuple(_judged_all(ground, trial, met, said))


def _order(ground: Ground, trial: _Trial, cgroup: ChildCgroup | None) -> SpawnOrder:
    from . import _native  # noqa: PLC0415 - exists on Linux only

    plan = {
        "native": _native.__file__,
        "file": ground.file,
        "folder": ground.folder,
        "program": ground.program,
        "token": ground.token,
        "cgroup": cgroup_root(),
        "acts": trial.acts,
        **ground.addresses,
    }
    enforced = trial.enforced
    return SpawnOrder(
        program=sys.executable,
        argv=(sys.executable, "-I", "-S", "-B", acts.__file__, json.dumps(plan)),
        environment={},
        folder=ground.folder,  # gives the socket there a short name; entering a folder does not read it
        plan=enforced.plan,
        filter=enforced.filter,
        limits=enforced.limits,
        wall_seconds=enforced.wall_seconds,
        cgroup=-1 if cgroup is None else cgroup.descriptor,
    )


def _answers(server: SpawnServer, order: SpawnOrder) -> tuple[dict[str, str], str]:
    """Return the outcome of each operation, and any other output of the child."""
    heard, told = os.pipe()
    try:
        try:
            child = server.spawn(replace(order, stdout=told, stderr=told))
        finally:
            os.close(told)
        text = _read(heard, child)
    finally:
        os.close(heard)
    met: dict[str, str] = {}
    other = ""
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            name, outcome = json.loads(line)
            met[str(name)] = str(outcome)
        except (ValueError, TypeError):
            other = line
    return met, other


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


def _judged_all(ground: Ground, trial: _Trial, met: dict[str, str], said: str) -> Iterator[Attempt]:
    for act in trial.acts:
        family = act[-2:]
        if ground.addresses.get(act, act) is None:
            yield needless(act, trial.where, trial.control, f"this machine has no IP{family} on loopback")
            continue
        if act == _LEAVE and not cgroup_root():
            yield needless(act, trial.where, trial.control, "this machine has no cgroup v2")
            continue
        outcome = met.get(act, f"{acts.UNTRIED}{said or 'the child ended before it'}")
        if act.startswith("udp") and outcome == acts.THROUGH and not ground.arrived(family):
            outcome = "stopped by timeout"
        expected = STOPPED if act in trial.stopped else OPEN
        yield judged(act, trial.where, trial.control, outcome, expected=expected)
