"""Remove the rules and cgroups of dead applications, which are found by name.

A process id is not enough, because it may have been reused. The rules contain the start time of their application in a
comment, and its cgroup contains it in an attribute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cgroups import find_tree
from .iptables import FilterChange, Owner, application_of, tables
from .processes import HIGHEST_PID, facts
from .protocol import RequestRefused

if TYPE_CHECKING:
    from .cgroups import Cgroup
    from .iptables import Commands, FilterListing, FilterTable

_ATTEMPTS = 3
_MARKING = 0.1
"""Seconds within which the creator of a cgroup marks it."""


def process_namespace() -> int:
    """Return this pid namespace. A container may share the network or the cgroups, but have another pid namespace."""
    return Path("/proc/self/ns/pid").stat().st_ino


def mark_of(owner: Owner) -> str:
    """Return the owner mark of an application's cgroup."""
    return f"{owner.namespace} {owner.start_time}"


def sweep(commands: Commands) -> dict[str, Any]:
    """Remove all leftovers of dead applications; return the removed ones and the failures."""
    chains: dict[str, list[str]] = {}
    problems: list[str] = []
    groups: list[tuple[int, Cgroup]] = []
    try:
        groups = [(pid, group) for pid, group in find_tree().applications() if _left_behind(pid, group)]
    except RequestRefused as refused:
        problems.append(str(refused))
    # In this order, so that no process runs without its rules, and no rule stays for a removed cgroup, which would
    # block every later change with iptables-legacy.
    living = frozenset(pid for pid, group in groups if not group.kill())
    problems.extend(f"the processes left by application {pid} could not be killed" for pid in sorted(living))
    try:
        for table in tables(commands)[0]:
            chains[table.family.value] = sweep_table(table, living)
    except RequestRefused as refused:
        problems.append(str(refused))
    removed = [pid for pid, group in groups if group.remove()]
    return {"cgroups": removed, "chains": chains, "problems": problems}


def lives(owner: Owner) -> bool:
    """Return whether exactly this application still runs."""
    try:
        return facts(owner.pid).start_time == owner.start_time and _exists(owner.pid)
    except RequestRefused:
        return _answers(owner.pid)


def sweep_table(table: FilterTable, living: frozenset[int] = frozenset()) -> list[str]:
    """Remove the chains of dead applications and the jumps to them; return their names.

    Keep the rules of applications with ``living`` members.
    """
    for attempt in range(_ATTEMPTS):
        listing = table.read()
        dead = {chain for chain in dead_chains(listing) if application_of(chain) not in living}
        if not dead:
            return []
        change = FilterChange()
        for jump in listing.jumps:
            if jump.chain in dead:
                change.delete(jump.spec)
        for chain in dead:
            change.drop(chain)
        try:
            table.commit(change)
        except RequestRefused:
            if attempt == _ATTEMPTS - 1:
                raise
            # Another helper may sweep at the same time: read the current state again.
        else:
            return sorted(dead)
    return []


def dead_chains(listing: FilterListing) -> set[str]:
    """Return the chains of dead applications; without a start time, the process id must be enough."""
    known: dict[str, list[Owner | None]] = {chain: [] for chain in listing.chains}
    for jump in listing.jumps:
        known.setdefault(jump.chain, []).append(jump.owner)
    return {chain for chain, owners in known.items() if _is_dead(application_of(chain), owners)}


def _is_dead(pid: int, owners: list[Owner | None]) -> bool:
    named = [owner for owner in owners if owner is not None]
    if named:
        # The state of a process in another pid namespace is unknown.
        return all(owner.namespace == process_namespace() and not lives(owner) for owner in named)
    return not _exists(pid)


def _left_behind(pid: int, group: Cgroup) -> bool:
    mark = group.mark()
    if not mark and not _exists(pid):
        # A helper in another pid namespace may have just created it and be about to mark it.
        time.sleep(_MARKING)
        mark = group.mark()
    namespace, _, start = mark.partition(" ")
    if namespace and namespace != str(process_namespace()):
        return False
    return not (lives(Owner(pid, int(start), process_namespace())) if start.isdigit() else _exists(pid))


def _exists(pid: int) -> bool:
    try:
        # A process whose first thread has ended looks dead while other threads run.
        return not facts(pid).dead or len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
    except (RequestRefused, OSError):
        return _answers(pid)


def _answers(pid: int) -> bool:
    """Return whether a process exists of which nothing can be read.

    If ``/proc`` hides processes of other users (``hidepid``), or without free descriptors, living applications would
    look dead and be removed.
    """
    if not 0 < pid <= HIGHEST_PID:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
