"""Manage one application's cgroup and rules, from the first policy to the final cleanup.

The rules of children belong to a set of children with the same endpoints, so another child of a subject only needs a
folder, not a packet filter change. The cgroup per child serves to kill a child with all its descendants.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .application_rules import APPLICATION, ApplicationRules, WantedRules, lives, mark_of, process_namespace, sweep
from .cgroups import CgroupMembers, find_tree, same_network, step_out
from .iptables import Allow, Commands, Owner
from .policy import FRESH_SECONDS, Resolution, Resolver, name_servers
from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .cgroups import Cgroup, Tree
    from .policy import Policy, PolicyEndpoint

MOST_SETS = 128
MOST_CHILDREN = 4096
_UNUSED_SECONDS = 600.0
_MOST_ADDRESSES = 64
_SET, _CHILD = "set_", "child_"


@dataclass(slots=True)
class ChildSet:
    """Children with the same endpoints."""

    number: int
    cgroup: Cgroup
    endpoints: tuple[PolicyEndpoint, ...] | None
    """None for a set of a previous helper, whose rules stay unchanged until it is empty."""
    digest: str
    used: float
    allowed: frozenset[Allow] = frozenset()
    """Destinations at the last resolution of the endpoints."""
    children: set[int] = field(default_factory=set)

    @property
    def part(self) -> str:
        """Name of its chain."""
        return f"S{self.number}"


class ChildGroup(NamedTuple):
    """Cgroup of one child."""

    number: int
    set: ChildSet
    cgroup: Cgroup
    made: float


class ChildRegistry:
    """Sets and children of one application."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        self._sets: dict[int, ChildSet] = {}
        self._children: dict[int, ChildGroup] = {}
        self._last_set = 0
        self._last_child = 0

    @property
    def sets(self) -> tuple[ChildSet, ...]:
        """Sets of children."""
        return tuple(self._sets.values())

    def __len__(self) -> int:
        return len(self._children)

    def known(self, endpoints: Iterable[PolicyEndpoint]) -> ChildSet | None:
        """Return the existing set with these endpoints, with their new addresses added."""
        wanted = tuple(endpoints)
        digest = _digest(wanted)
        found = next((each for each in self._sets.values() if each.digest == digest), None)
        if found is not None:
            found.used = time.monotonic()
            found.endpoints = _merged(found.endpoints or (), wanted)
        return found

    def make(self, endpoints: Iterable[PolicyEndpoint]) -> ChildSet:
        """Create a set with these endpoints. Children may enter only after its rules are applied."""
        if len(self._sets) >= MOST_SETS:
            text = f"the limit of {MOST_SETS} different endpoint lists is reached"
            raise RequestRefused("busy", text, "wait until some children have ended, or release them")
        wanted = tuple(endpoints)
        self._last_set += 1
        group = self._cgroup.below(f"{_SET}{self._last_set}")
        made = ChildSet(self._last_set, group, wanted, _digest(wanted), time.monotonic())
        group.make()
        self._sets[made.number] = made
        return made

    def admit(self, child_set: ChildSet) -> tuple[ChildGroup, int]:
        """Create the cgroup of another child in a set with rules; return it with the descriptor for joining it."""
        if len(self._children) >= MOST_CHILDREN:
            raise RequestRefused("busy", f"the limit of {MOST_CHILDREN} children is reached", "release ended children")
        self._last_child += 1
        cgroup = child_set.cgroup.below(f"{_CHILD}{self._last_child}")
        child = ChildGroup(self._last_child, child_set, cgroup, time.monotonic())
        child.cgroup.make()
        try:
            descriptor = child.cgroup.opened()
        except RequestRefused:
            child.cgroup.remove()
            raise
        self._children[child.number] = child
        child_set.children.add(child.number)
        return child, descriptor

    def release(self, number: int) -> bool:
        """Kill a child with all its descendants; return whether it existed."""
        child = self._children.get(number)
        if child is None:
            return False
        if not child.cgroup.kill() or not child.cgroup.remove():
            text = f"child {number} was killed but has not ended yet"
            raise RequestRefused(
                "busy", text, "release it again; a process that waits for a disk ends when the disk responds"
            )
        del self._children[number]
        child.set.children.discard(number)
        return True

    def drop(self, child_set: ChildSet) -> None:
        """Remove a set from the list without removing its cgroup."""
        for number in tuple(child_set.children):
            self._children.pop(number, None)
        self._sets.pop(child_set.number, None)

    def forget(self, child_set: ChildSet) -> None:
        """Remove a set and its cgroup. It must have no rules."""
        child_set.cgroup.kill()
        child_set.cgroup.remove()
        self.drop(child_set)

    def collect(self) -> tuple[ChildSet, ...]:
        """Remove the cgroups of children that ended without a release; return inherited sets that are now empty."""
        oldest = time.monotonic() - _UNUSED_SECONDS
        for child in tuple(self._children.values()):
            # A new child may not have entered its cgroup yet.
            if child.made < oldest and not child.cgroup.populated() and child.cgroup.remove():
                del self._children[child.number]
                child.set.children.discard(child.number)
        return tuple(s for s in self._sets.values() if s.endpoints is None and not s.cgroup.populated())

    def take_over(self) -> None:
        """Register the cgroups of a previous helper."""
        for folder in self._cgroup.inside():
            number = _number(folder, _SET)
            if number is None or number in self._sets:
                continue
            self._last_set = max(self._last_set, number)
            found = self._sets[number] = ChildSet(number, folder, None, "", time.monotonic())
            for group in folder.inside():
                child = _number(group, _CHILD)
                if child is not None:
                    self._last_child = max(self._last_child, child)
                    self._children[child] = ChildGroup(child, found, group, time.monotonic())
                    found.children.add(child)

    def idle(self) -> ChildSet | None:
        """Return the set to remove before another one is created: the least recently used one without children."""
        if len(self._sets) < MOST_SETS:
            return None
        return min((s for s in self._sets.values() if not s.children), key=lambda s: s.used, default=None)


def _number(group: Cgroup, prefix: str) -> int | None:
    text = group.name.removeprefix(prefix)
    return int(text) if group.name.startswith(prefix) and text.isascii() and text.isdigit() else None


def _merged(known: tuple[PolicyEndpoint, ...], told: tuple[PolicyEndpoint, ...]) -> tuple[PolicyEndpoint, ...]:
    """Return the endpoints with the addresses of both: a running child may be connected to its addresses."""
    before = {(each.host, each.port, each.protocol): each.addresses for each in known}
    merged = []
    for each in told:
        addresses = dict.fromkeys((*each.addresses, *before.get((each.host, each.port, each.protocol), ())))
        merged.append(each._replace(addresses=tuple(addresses)[:_MOST_ADDRESSES]))
    return tuple(merged)


def _digest(endpoints: tuple[PolicyEndpoint, ...]) -> str:
    """Return the digest for comparing endpoint lists. It excludes addresses, which change over time."""
    keys = sorted({(each.host, each.port, each.protocol) for each in endpoints})
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


_NOTHING = Resolution(frozenset(), (), ())
MOST_DESTINATIONS = 20_000
MOST_IN_ALL = 100_000
"""Limit for the application and all sets of children together: the tables are shared by the whole machine."""


class Enforcer:
    """Enforcer of one application's allowlist. Not thread-safe; failures raise ``RequestRefused``."""

    def __init__(
        self,
        parent_pid: int,
        start_time: int,
        *,
        commands: Commands | None = None,
        resolver: Resolver | None = None,
        servers: Callable[[], frozenset[Allow]] = name_servers,
    ) -> None:
        self._owner = Owner(parent_pid, start_time, process_namespace())
        self._commands = Commands() if commands is None else commands
        self._rules = ApplicationRules(self._commands, self._owner)
        self._resolver = Resolver() if resolver is None else resolver
        self._servers = servers
        self._tree: Tree | None = None
        self._children: ChildRegistry | None = None
        self._policy: Policy | None = None
        self._resolution = _NOTHING
        self._members = CgroupMembers()
        self._last: dict[str, Any] = {"at": None, "seconds": None, "error": ""}

    def probe(self) -> list[str]:
        """Return warnings; raise if this machine cannot enforce anything."""
        if os.geteuid() != 0:
            raise RequestRefused("not_privileged", "the helper does not run as root", "start it with sudo or pkexec")
        same_network(self._owner.pid)
        group = self._group()
        step_out(find_tree(), group)
        self._rules.take_over()
        # Test now, instead of at the first policy, whether the cgroup can be created. It is not marked, because an
        # existing one may belong to a dead application with the same process id, and must be removed by the sweep.
        existed = group.identity() is not None
        group.make()
        if not existed:
            group.remove()
        return list(self._rules.warnings)

    def sweep(self) -> dict[str, Any]:
        """Remove leftovers of dead applications, and take over the rules of a killed predecessor."""
        answer = sweep(self._commands)
        if not lives(self._owner):
            return {**answer, "took_over": False}
        self._group()
        self._inherited()
        return {**answer, "took_over": self._rules.take_over()}

    def apply(self, policy: Policy, pid: int) -> dict[str, Any]:
        """Apply a policy, then move the process in; return the fields of the answer."""
        with self._or_as_before():
            self._policy = policy
            answer = self._enforce(patient=False)
        # After the rules, so that the process is never inside without them.
        self.join(pid)
        return {**answer, "digest": policy.digest}

    def refresh(self) -> dict[str, Any]:
        """Resolve the names again, and renew the rules if they changed or were modified by another program."""
        if self._policy is None:
            return {"changed": False}
        with self._or_as_before():
            return self._enforce(patient=True)

    def repair(self) -> bool:
        """Restore rules that another program modified, without resolving names; return whether that was necessary."""
        if self._policy is None:
            return False
        with self._or_as_before():
            return self._install()

    def join(self, pid: int) -> dict[str, Any]:
        """Move another process in, unless it is already inside."""
        group, tree = self._ready()
        self._members.join(tree, group, pid)
        return {"cgroup": group.path, "pid": pid}

    def child(self, endpoints: Sequence[PolicyEndpoint]) -> tuple[dict[str, Any], int]:
        """Create a cgroup for a child; return the fields of the answer and a descriptor for joining it."""
        self._ready()
        children = self._inherited()
        child_set = children.known(endpoints)
        if child_set is not None:
            self._permit(child_set, new=False)
        else:
            idle = children.idle()
            self._let_go(() if idle is None else (idle,))
            child_set = children.make(endpoints)
            self._permit(child_set, new=True)
        child, descriptor = children.admit(child_set)
        return {"set": child_set.number, "child": child.number, "cgroup": child.cgroup.path}, descriptor

    def release(self, child: int) -> dict[str, Any]:
        """Kill the remaining processes of a child and remove its cgroup."""
        return {"child": child, "known": self._inherited().release(child)}

    def status(self) -> dict[str, Any]:
        """Return the measured state."""
        group, children, rules = self._group(), self._inherited(), self._rules
        problems = rules.problems(group)
        return {
            **self._facts(),
            "populated": group.populated(),
            "members": group.members(),
            "in_force": rules.complete and not problems,
            "problems": problems,
            "last_apply": dict(self._last),
            "sets": len(children.sets),
            "children": len(children),
            "digest": None if self._policy is None else self._policy.digest,
        }

    def clear(self) -> dict[str, Any]:
        """Remove the rules and move the members back to their previous cgroups. Children are killed, not released."""
        group = self._group()
        for each in self._inherited().sets:
            _end(each.cgroup)
        moved = self._members.move_out(group)
        self._rules.clear()
        removed = group.remove()
        self._forget()
        return {"moved": moved, "removed": removed}

    def remove(self) -> None:
        """Kill the members and remove the rules and the cgroup, after the application has ended."""
        group = self._group()
        _end(group)
        self._rules.clear()
        self._forget()
        if not group.remove():
            raise RequestRefused("busy", f"the cgroup {group.path} is still in use", "the next helper removes it")

    def _group(self) -> Cgroup:
        if self._tree is None:
            self._tree = find_tree()
            self._rules.find()
        return self._tree.application(self._owner.pid)

    def _ready(self) -> tuple[Cgroup, Tree]:
        group = self._group()
        if self._tree is None or not self._rules.complete or group.identity() is None:
            raise RequestRefused("bad_request", "no policy is in force yet", "send apply first")
        return group, self._tree

    def _inherited(self) -> ChildRegistry:
        """Return the children, including those of a previous helper."""
        if self._children is None:
            self._children = ChildRegistry(self._group())
            self._children.take_over()
        return self._children

    def _enforce(self, *, patient: bool) -> dict[str, Any]:
        started, error = time.perf_counter(), ""
        try:
            changed = self._renew(patient=patient)
        except RequestRefused as refused:
            error = str(refused)
            raise
        finally:
            self._last = {"at": time.time(), "seconds": time.perf_counter() - started, "error": error}
        return {**self._facts(), "changed": changed, "seconds": self._last["seconds"]}

    def _facts(self) -> dict[str, Any]:
        """Return the fields that the answers to a policy and to a question about the status share."""
        allowed, unresolved, withheld = self._resolution
        return {
            "cgroup": self._group().path,
            "families": self._rules.families,
            "chains": self._rules.chains,
            "endpoints": 0 if self._policy is None else len(self._policy.endpoints),
            "addresses": len(allowed),
            "unresolved": list(unresolved),
            "withheld": list(withheld),
            "warnings": list(self._rules.warnings),
        }

    def _renew(self, *, patient: bool) -> bool:
        self._rules.find()
        group, children = self._group(), self._inherited()
        wanted = () if self._policy is None else self._policy.endpoints
        known = [each for each in children.sets if each.endpoints is not None]
        ends = (*wanted, *(end for each in known for end in each.endpoints or ()))
        self._resolver.ask(ends, fresh=0.0 if patient else FRESH_SECONDS, patient=patient)
        self._resolution = self._resolver.resolve(wanted)
        _check_number(self._resolution.allowed)
        existed = group.identity() is not None
        group.make(mark_of(self._owner))
        for each in known:
            each.allowed = self._allowed(each)
            each.cgroup.make()
        try:
            changed = self._install()
        except RequestRefused:
            if not existed:
                group.remove()
            raise
        self._let_go(children.collect())
        return changed

    def _install(self) -> bool:
        sets = self._inherited().sets
        wanted = {each.part: WantedRules(each.cgroup, each.allowed) for each in sets if each.endpoints is not None}
        kept = frozenset(each.part for each in sets if each.endpoints is None)
        if self._policy is None:
            kept |= {APPLICATION}  # taken over: in force, with unknown content
        else:
            wanted[APPLICATION] = WantedRules(self._group(), self._resolution.allowed | self._servers())
        _check_total(wanted.values())
        return self._rules.install(wanted, kept)

    def _allowed(self, child_set: ChildSet) -> frozenset[Allow]:
        """Return the destinations of a set. Without endpoints it gets no name servers, which could carry data out."""
        allowed = self._resolver.resolve(child_set.endpoints or ()).allowed
        _check_number(allowed)
        return allowed | self._servers() if child_set.endpoints else allowed

    def _permit(self, child_set: ChildSet, *, new: bool) -> None:
        if new:
            self._resolver.ask(child_set.endpoints or ())
        allowed = self._allowed(child_set)
        lost = child_set.cgroup.identity() is None
        if not new and not lost and allowed == child_set.allowed:
            return
        try:
            with self._or_as_before():
                child_set.allowed = allowed
                child_set.cgroup.make()
                self._install()
        except RequestRefused:
            if new:
                self._inherited().forget(child_set)
            raise

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Restore the recorded state if the rules could not be changed, because the old ones stay in force."""
        policy, resolution = self._policy, self._resolution
        sets = [(each, each.allowed) for each in self._inherited().sets]
        try:
            yield
        except RequestRefused:
            self._policy, self._resolution = policy, resolution
            for each, allowed in sets:
                each.allowed = allowed
            raise

    def _let_go(self, sets: Sequence[ChildSet]) -> None:
        """Remove sets: kill their members, then remove the rules, then the cgroup. If a member survives, keep all."""
        sets = [each for each in sets if each.cgroup.kill()]
        if not sets:
            return
        for each in sets:
            self._inherited().drop(each)
        self._install()
        for each in sets:
            each.cgroup.remove()

    def _forget(self) -> None:
        self._policy, self._children, self._resolution = None, None, _NOTHING


def _end(group: Cgroup) -> None:
    """Kill the members of a cgroup. Its rules stay as long as a member may live."""
    if not group.kill():
        text = f"the members of the cgroup {group.path} could not be killed; their rules stay"
        raise RequestRefused("busy", text, "try again; the next helper kills remaining members")


def _check_number(allowed: frozenset[Allow]) -> None:
    """Refuse a number of destinations that would slow down packets and updates."""
    if len(allowed) > MOST_DESTINATIONS:
        text = f"the endpoints have {len(allowed)} destinations, more than {MOST_DESTINATIONS}"
        raise RequestRefused("policy_too_large", text, "declare fewer endpoints")


def _check_total(wanted: Iterable[WantedRules]) -> None:
    """Refuse a total that would overload the machine's tables."""
    destinations = sum(len(each.allowed) for each in wanted)
    if destinations > MOST_IN_ALL:
        text = f"the application and its children have {destinations} destinations, more than {MOST_IN_ALL}"
        raise RequestRefused(
            "policy_too_large", text, "declare fewer endpoints, or run fewer different subjects at a time"
        )
