"""What dead applications have left: their rules and control groups, found by name and told from those of living ones.

A number alone says nothing: it may have been given to another process since. The rules carry the start time of their
application in a comment, and its control group in an attribute.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answers import Refused
from .cgroups import find_tree
from .processes import HIGHEST_PID, facts
from .tables import Change, Owner, application_of, tables

if TYPE_CHECKING:
    from .cgroups import Cgroup
    from .commands import Commands
    from .tables import Listing, Table

_ATTEMPTS = 3
_MARKING = 0.1
"""Seconds within which who has made a control group has marked it."""


def process_namespace() -> int:
    """Return in which world of process numbers this is: a container may share the network or the groups, but not it."""
    return Path("/proc/self/ns/pid").stat().st_ino


def mark_of(owner: Owner) -> str:
    """Return what is noted at the control group of an application."""
    return f"{owner.namespace} {owner.start_time}"


def sweep(commands: Commands) -> dict[str, Any]:
    """Remove everything of dead applications; return what it was, and what did not succeed."""
    chains: dict[str, list[str]] = {}
    problems: list[str] = []
    groups: list[tuple[int, Cgroup]] = []
    try:
        groups = [(pid, group) for pid, group in find_tree().applications() if _left_behind(pid, group)]
    except Refused as refused:
        problems.append(str(refused))
    # In this order: nothing lives for a moment without its rules, and no rule is left for a group that is gone (with
    # the older kind of iptables, such a one blocks every change of the filter).
    living = frozenset(pid for pid, group in groups if not group.kill())
    problems.extend(f"the members that application {pid} has left could not be ended" for pid in sorted(living))
    try:
        for table in tables(commands)[0]:
            chains[table.family.value] = sweep_table(table, living)
    except Refused as refused:
        problems.append(str(refused))
    removed = [pid for pid, group in groups if group.remove()]
    return {"cgroups": removed, "chains": chains, "problems": problems}


def lives(owner: Owner) -> bool:
    """Tell whether this very application still runs."""
    try:
        return facts(owner.pid).start_time == owner.start_time and _exists(owner.pid)
    except Refused:
        return _answers(owner.pid)


def sweep_table(table: Table, living: frozenset[int] = frozenset()) -> list[str]:
    """Remove the chains of dead applications and what leads to them; return their names.

    The rules of those of which members are ``living`` stay.
    """
    for attempt in range(_ATTEMPTS):
        listing = table.read()
        dead = {chain for chain in dead_chains(listing) if application_of(chain) not in living}
        if not dead:
            return []
        change = Change()
        for jump in listing.jumps:
            if jump.chain in dead:
                change.delete(jump.spec)
        for chain in dead:
            change.drop(chain)
        try:
            table.commit(change)
        except Refused:
            if attempt == _ATTEMPTS - 1:
                raise
            # Another helper sweeps as well: what is there now is looked at again.
        else:
            return sorted(dead)
    return []


def dead_chains(listing: Listing) -> set[str]:
    """Return the chains whose application is gone; where nothing says when it was started, its number has to do."""
    known: dict[str, list[Owner | None]] = {chain: [] for chain in listing.chains}
    for jump in listing.jumps:
        known.setdefault(jump.chain, []).append(jump.owner)
    return {chain for chain, owners in known.items() if _is_dead(application_of(chain), owners)}


def _is_dead(pid: int, owners: list[Owner | None]) -> bool:
    named = [owner for owner in owners if owner is not None]
    if named:
        # Of another world of numbers: nobody here can tell.
        return all(owner.namespace == process_namespace() and not lives(owner) for owner in named)
    return not _exists(pid)


def _left_behind(pid: int, group: Cgroup) -> bool:
    mark = group.mark()
    if not mark and not _exists(pid):
        # Perhaps somebody in another world of numbers has made it this moment, and is about to mark it.
        time.sleep(_MARKING)
        mark = group.mark()
    namespace, _, start = mark.partition(" ")
    if namespace and namespace != str(process_namespace()):
        return False
    return not (lives(Owner(pid, int(start), process_namespace())) if start.isdigit() else _exists(pid))


def _exists(pid: int) -> bool:
    try:
        # A process whose first thread has ended looks dead while others still run.
        return not facts(pid).dead or len([*Path(f"/proc/{pid}/task").iterdir()]) > 1
    except (Refused, OSError):
        return _answers(pid)


def _answers(pid: int) -> bool:
    """Tell whether there is a process of that number, of which nothing can be read.

    Where ``/proc`` hides the processes of others (``hidepid``), or descriptors have run out, all would seem dead, and
    the living be swept.
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
