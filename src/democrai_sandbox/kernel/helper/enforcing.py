"""The enforcer: one application's control group and the rules for it, from the first policy to the last trace."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .answers import Refused
from .cgroups import find_tree
from .children import Children, ChildSet
from .commands import Commands
from .filters import APPLICATION
from .members import Members, same_network, step_out
from .resolving import FRESH_SECONDS, Resolution, Resolver, name_servers
from .ruling import Ruling, Wanted
from .sweeping import lives, mark_of, process_namespace, sweep
from .tables import Allow, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .cgroups import Cgroup, Tree
    from .policy import Endpoint, Policy

_NOTHING = Resolution(frozenset(), (), ())
MOST_DESTINATIONS = 20_000
MOST_IN_ALL = 100_000
"""Of the application and all sets of children together: others on the machine wait for these tables too."""


class Enforcer:
    """Keeps one application's allowlist in force. Not for several threads at once; whatever fails is ``Refused``."""

    def __init__(
        self,
        parent_pid: int,
        start_time: int,
        *,
        commands: Commands | None = None,
        resolver: Resolver | None = None,
        servers: Callable[[], frozenset[Allow]] = name_servers,
    ) -> None:
        """Take the application's identity; nothing is touched yet."""
        self._owner = Owner(parent_pid, start_time, process_namespace())
        self._commands = Commands() if commands is None else commands
        self._ruling = Ruling(self._commands, self._owner)
        self._resolver = Resolver() if resolver is None else resolver
        self._servers = servers
        self._tree: Tree | None = None
        self._children: Children | None = None
        self._policy: Policy | None = None
        self._resolution = _NOTHING
        self._members = Members()
        self._last: dict[str, Any] = {"at": None, "seconds": None, "error": ""}

    def probe(self) -> list[str]:
        """Return warnings; refuse when nothing can be enforced on this machine at all."""
        if os.geteuid() != 0:
            raise Refused("not_privileged", "the helper does not run as root", "start it through sudo or pkexec")
        same_network(self._owner.pid)
        group = self._group()
        step_out(find_tree(), group)
        self._ruling.take_over()
        # It is found out here, and not at the first policy, whether it can be made. No mark: what is there already may
        # be a dead application's which had the same number, and is swept then.
        existed = group.identity() is not None
        group.make()
        if not existed:
            group.remove()
        return list(self._ruling.warnings)

    def sweep(self) -> dict[str, Any]:
        """Remove what dead applications left, and take over what a killed predecessor did for this one."""
        answer = sweep(self._commands)
        if not lives(self._owner):
            return {**answer, "took_over": False}
        self._group()
        self._inherited()
        return {**answer, "took_over": self._ruling.take_over()}

    def apply(self, policy: Policy, pid: int) -> dict[str, Any]:
        """Put a policy in force, then move the process in; return the fields of the answer."""
        with self._or_as_before():
            self._policy = policy
            answer = self._enforce(patient=False)
        # Not a moment inside without rules.
        self.join(pid)
        return {**answer, "digest": policy.digest}

    def refresh(self) -> dict[str, Any]:
        """Resolve the names again, and renew the rules when something changed or somebody has touched them."""
        if self._policy is None:
            return {"changed": False}
        with self._or_as_before():
            return self._enforce(patient=True)

    def repair(self) -> bool:
        """Put the rules back where somebody has touched them; tell whether that was so. No name is resolved for it."""
        if self._policy is None:
            return False
        with self._or_as_before():
            return self._install()

    def join(self, pid: int) -> dict[str, Any]:
        """Move one more process in, if it is not inside."""
        group, tree = self._ready()
        self._members.join(tree, group, pid)
        return {"cgroup": group.path, "pid": pid}

    def child(self, endpoints: Sequence[Endpoint]) -> tuple[dict[str, Any], int]:
        """Make a control group for a child; return the fields of the answer and a descriptor to join it by."""
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
        """End what is left of a child and remove its control group."""
        return {"child": child, "known": self._inherited().release(child)}

    def status(self) -> dict[str, Any]:
        """Say what is in force, as it is found now."""
        group, children, ruling = self._group(), self._inherited(), self._ruling
        problems = ruling.problems(group)
        return {
            "cgroup": group.path,
            "populated": group.populated(),
            "members": group.members(),
            "families": ruling.families,
            "chains": ruling.chains,
            "in_force": ruling.complete and not problems,
            "problems": problems,
            "endpoints": 0 if self._policy is None else len(self._policy.endpoints),
            **self._resolved(),
            "warnings": list(ruling.warnings),
            "last_apply": dict(self._last),
            "sets": len(children.sets),
            "children": len(children),
            "digest": None if self._policy is None else self._policy.digest,
        }

    def clear(self) -> dict[str, Any]:
        """Remove the rules, and move the members to where they came from. Children end: they are not set free."""
        group = self._group()
        for each in self._inherited().sets:
            _end(each.cgroup)
        moved = self._members.move_out(group)
        self._ruling.clear()
        removed = group.remove()
        self._forget()
        return {"moved": moved, "removed": removed}

    def remove(self) -> None:
        """End the members, then remove the rules and the control group: the application is gone."""
        group = self._group()
        _end(group)
        self._ruling.clear()
        self._forget()
        if not group.remove():
            raise Refused("busy", f"the control group {group.path} is still in use", "it is swept by the next helper")

    def _group(self) -> Cgroup:
        if self._tree is None:
            self._tree = find_tree()
            self._ruling.find()
        return self._tree.application(self._owner.pid)

    def _ready(self) -> tuple[Cgroup, Tree]:
        group = self._group()
        if self._tree is None or not self._ruling.complete or group.identity() is None:
            raise Refused("bad_request", "no policy is in force yet", "ask for apply first")
        return group, self._tree

    def _inherited(self) -> Children:
        """Return the children, with those that a helper before this one has left."""
        if self._children is None:
            self._children = Children(self._group())
            self._children.take_over()
        return self._children

    def _enforce(self, *, patient: bool) -> dict[str, Any]:
        started, error = time.perf_counter(), ""
        try:
            changed = self._renew(patient=patient)
        except Refused as refused:
            error = str(refused)
            raise
        finally:
            self._last = {"at": time.time(), "seconds": time.perf_counter() - started, "error": error}
        return {
            "endpoints": 0 if self._policy is None else len(self._policy.endpoints),
            **self._resolved(),
            "cgroup": self._group().path,
            "chains": self._ruling.chains,
            "families": self._ruling.families,
            "warnings": list(self._ruling.warnings),
            "changed": changed,
            "seconds": self._last["seconds"],
        }

    def _resolved(self) -> dict[str, Any]:
        allowed, unresolved, withheld = self._resolution
        return {"addresses": len(allowed), "unresolved": list(unresolved), "withheld": list(withheld)}

    def _renew(self, *, patient: bool) -> bool:
        """Make the group, resolve everything, and bring the rules into force."""
        self._ruling.find()
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
        except Refused:
            if not existed:
                group.remove()
            raise
        self._let_go(children.collect())
        return changed

    def _install(self) -> bool:
        sets = self._inherited().sets
        wanted = {each.part: Wanted(each.cgroup, each.allowed) for each in sets if each.endpoints is not None}
        kept = frozenset(each.part for each in sets if each.endpoints is None)
        if self._policy is None:
            kept |= {APPLICATION}  # taken over: in force, and not known
        else:
            wanted[APPLICATION] = Wanted(self._group(), self._resolution.allowed | self._servers())
        _check_sum(wanted.values())
        return self._ruling.install(wanted, kept)

    def _allowed(self, child_set: ChildSet) -> frozenset[Allow]:
        """Return what a set may reach. One without endpoints has no use for names: they would only carry data out."""
        allowed = self._resolver.resolve(child_set.endpoints or ()).allowed
        _check_number(allowed)
        return allowed | self._servers() if child_set.endpoints else allowed

    def _permit(self, child_set: ChildSet, *, new: bool) -> None:
        """Bring a set's rules into force, unless they are."""
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
        except Refused:
            if new:
                self._inherited().forget(child_set)
            raise

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Believe what was believed before when the rules could not be changed: it is still what is in force."""
        policy, resolution = self._policy, self._resolution
        sets = [(each, each.allowed) for each in self._inherited().sets]
        try:
            yield
        except Refused:
            self._policy, self._resolution = policy, resolution
            for each, allowed in sets:
                each.allowed = allowed
            raise

    def _let_go(self, sets: Sequence[ChildSet]) -> None:
        """Remove sets: what is in them ends, then the rules go, then the group. Where it does not end, all stays."""
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
    """End what is in a group; while something of it may live, its rules stay."""
    if not group.kill():
        text = f"the members of the control group {group.path} could not be ended; their rules stay"
        raise Refused("busy", text, "try again; what still lives then is ended by the next helper")


def _check_number(allowed: frozenset[Allow]) -> None:
    """Refuse what would make every packet slow, and the swaps too."""
    if len(allowed) > MOST_DESTINATIONS:
        text = f"the endpoints come to {len(allowed)} destinations, more than {MOST_DESTINATIONS}"
        raise Refused("policy_too_large", text, "declare fewer endpoints")


def _check_sum(wanted: Iterable[Wanted]) -> None:
    """Refuse what one application would take of the machine's tables."""
    destinations = sum(len(each.allowed) for each in wanted)
    if destinations > MOST_IN_ALL:
        text = f"application and children come to {destinations} destinations, more than {MOST_IN_ALL}"
        raise Refused("policy_too_large", text, "declare fewer endpoints, or run fewer different subjects at a time")
