"""Rules of one application in all packet filters, and removal of the rules and cgroups of dead applications.

Rules change in all filters with one transaction each, or in none. Dead applications are found by name; as process ids
are reused, the rules have the start time in a comment, and the cgroup has it in an attribute.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .cgroups import find_tree
from .iptables import FilterChange, IpVersion, Owner, application_of, chain_rules, jump, tables
from .processes import HIGHEST_PID, answers, facts
from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .cgroups import Cgroup
    from .iptables import Allow, Commands, FilterListing, FilterTable

APPLICATION = "application"


class FilterPart(NamedTuple):
    """Allowed destinations of a cgroup in one packet filter."""

    group: str
    identity: int
    """Identity of the cgroup: a recreated cgroup needs new rules."""
    allowed: frozenset[Allow]


@dataclass(frozen=True, slots=True)
class _Held:
    chain: str
    specs: tuple[str, ...]
    part: FilterPart | None
    """None for found rules with unknown content."""


class ApplicationFilter:
    """Our rules for one application in one filter. Parts are ``application``, and ``S<n>`` for each set of children."""

    def __init__(self, table: FilterTable, owner: Owner) -> None:
        """Start with the assumption that the filter has no rules of this application."""
        self.family = table.family
        self._table = table
        self._owner = owner
        self._held: dict[str, _Held] = {}
        self._strays: tuple[_Held, ...] = ()

    @property
    def chain(self) -> str | None:
        """Application chain in force."""
        held = self._held.get(APPLICATION)
        return None if held is None else held.chain

    @property
    def parts(self) -> dict[str, FilterPart]:
        """Known parts in force."""
        return {name: held.part for name, held in self._held.items() if held.part is not None}

    def install(self, wanted: Mapping[str, FilterPart], kept: frozenset[str] = frozenset()) -> bool:
        """Apply exactly the wanted parts in one transaction; return whether anything changed.

        The recorded state is not verified first. If it is wrong, the whole transaction fails and is repeated with the
        state read from the filter. ``kept`` names parts that stay unchanged.
        """
        try:
            return self._commit(wanted, kept)
        except RequestRefused:
            before = self._held
            self.take_over(self._table.read())
            if {held.chain for held in before.values()} == {held.chain for held in self._held.values()}:
                self._held = before
                raise
            return self._commit(wanted, kept)

    def problem(self) -> str:
        """Read the filter and describe rules that are missing or changed; return an empty text without a problem."""
        listing = self._table.read()
        for held in self._held.values():
            jumps = [found for found in listing.jumps if found.chain == held.chain and found.owner == self._owner]
            if not jumps:
                return f"the jump to {held.chain} is missing"
            if jumps[0].foreign_before:
                return f"another rule precedes the jump to {held.chain}"
            count = listing.chains.get(held.chain)
            if held.part is not None and count != len(chain_rules(held.part.allowed)):
                return f"{held.chain} has {count} rules, which differ from the applied ones"
        return ""

    def take_over(self, listing: FilterListing | None = None) -> bool:
        """Record the rules found in the filter; return whether the application has any."""
        listing = self._table.read() if listing is None else listing
        held: dict[str, _Held] = {}
        strays: list[_Held] = []
        for chain in listing.chains:
            if application_of(chain) != self._owner.pid:
                continue
            self._check_ours(chain, listing)
            found = _Held(chain, tuple(each.spec for each in listing.jumps if each.chain == chain), None)
            part = chain.rpartition("_")[2]
            name = APPLICATION if part in {"A", "B"} else part
            if found.specs and name not in held:
                held[name] = found
            else:
                strays.append(found)
        self._held, self._strays = held, tuple(strays)
        return APPLICATION in held

    def clear(self) -> None:
        """Remove all rules of the application, known or not."""
        self.take_over()
        self.install({})

    def _check_ours(self, chain: str, listing: FilterListing) -> None:
        """Refuse to change rules of an application in another container with the same process id."""
        for found in listing.jumps:
            if found.chain == chain and found.owner is not None and found.owner.namespace != self._owner.namespace:
                text = f"{chain} belongs to process {self._owner.pid} of another container that shares this network"
                raise RequestRefused("busy", text, "give each container a separate network, or restart the application")

    def _commit(self, wanted: Mapping[str, FilterPart], kept: frozenset[str]) -> bool:
        change = FilterChange()
        after: dict[str, _Held] = {}
        for name, part in wanted.items():
            after[name] = self._lead(change, name, self._held.get(name), part)
        for name, held in self._held.items():
            if name in kept and name not in wanted:
                after[name] = held
            elif name not in wanted:
                self._end(change, held)
        chains = {held.chain for held in after.values()}
        for stray in self._strays:
            self._end(change, stray, drop=stray.chain not in chains)
        if change and after.get(APPLICATION) is self._held.get(APPLICATION):
            self._renew_jump(change)  # fails if another program has flushed the filter
        if change:
            self._table.commit(change)
        self._held, self._strays = after, ()
        return bool(change)

    def _lead(self, change: FilterChange, name: str, held: _Held | None, part: FilterPart) -> _Held:
        """Add the changes from the current part to the wanted part."""
        if held is not None and held.part == part:
            return held
        chain = self._owner.chain(name)
        if name == APPLICATION:
            # Alternate, so that a reader of the filter sees which one is new.
            chain = self._owner.chain("B" if held is not None and held.chain == self._owner.chain("A") else "A")
        spec = jump(part.group, self._owner, chain)
        change.define(chain, part.allowed)
        if held is not None:
            # Delete it even if the same jump is added again: the change then fails if another program removed it.
            for old in held.specs:
                change.delete(old)
            if held.chain != chain:
                change.drop(held.chain)
        change.insert(spec)
        return _Held(chain, (spec,), part)

    def _renew_jump(self, change: FilterChange) -> None:
        """Move the application's jump to the front. The change fails if the jump is missing."""
        held = self._held.get(APPLICATION)
        if held is not None and held.part is not None:
            for spec in held.specs:
                change.delete(spec)
                change.insert(spec)

    def _end(self, change: FilterChange, held: _Held, *, drop: bool = True) -> None:
        for spec in held.specs:
            change.delete(spec)
        if drop:
            change.drop(held.chain)


class WantedRules(NamedTuple):
    """Wanted destinations of a cgroup, for all packet filters."""

    group: Cgroup
    allowed: frozenset[Allow]


class ApplicationRules:
    """All packet filters as one."""

    def __init__(self, commands: Commands, owner: Owner) -> None:
        self._commands = commands
        self._owner = owner
        self._filters: tuple[ApplicationFilter, ...] = ()
        self.warnings: list[str] = []

    @property
    def families(self) -> list[str]:
        """Filtered IP versions."""
        return [each.family.value for each in self._filters]

    @property
    def chains(self) -> dict[str, str | None]:
        """Application chain in each filter."""
        found: dict[str, str | None] = dict.fromkeys((family.value for family in IpVersion), None)
        return found | {each.family.value: each.chain for each in self._filters}

    @property
    def complete(self) -> bool:
        """Whether the application has rules in all filters, according to the recorded state."""
        return bool(self._filters) and all(each.chain is not None for each in self._filters)

    def find(self) -> None:
        """Find the filters. Call it again each time, because IPv6 may have been enabled meanwhile."""
        found, self.warnings = tables(self._commands)
        known = {each.family: each for each in self._filters}
        self._filters = tuple(known.get(each.family) or ApplicationFilter(each, self._owner) for each in found)

    def take_over(self) -> bool:
        """Record the rules found; return whether any belongs to the application."""
        found = [each.take_over() for each in self._filters]
        return any(found)

    def install(self, wanted: Mapping[str, WantedRules], kept: frozenset[str]) -> bool:
        """Apply exactly the wanted and kept parts; return whether anything changed."""
        done: list[tuple[ApplicationFilter, dict[str, FilterPart] | None]] = []
        changed = False
        for each in self._filters:
            # Rules of a previous helper cannot be restored, because their endpoints are unknown.
            before = each.parts if each.chain is None or APPLICATION in each.parts else None
            try:
                if _install(each, _parts(wanted, each.family), kept):
                    done.append((each, before))
                    changed = True
            except RequestRefused as refused:
                stay = [name for name in (_put_back(*earlier, kept) for earlier in done) if name]
                if not stay:
                    raise
                text = f"{refused.error}; the rules for {', '.join(stay)} are already the new ones"
                raise RequestRefused(refused.reason, text, refused.fix) from None
        return changed

    def problems(self, group: Cgroup) -> dict[str, str]:
        """Read the filters, and return the problem of each."""
        found = {each.family.value: _problem(each, group) for each in self._filters}
        return {family: text for family, text in found.items() if text}

    def clear(self) -> None:
        """Remove the application from all filters; raise the first error after all have been tried."""
        failed: list[RequestRefused] = []
        for each in self._filters:
            try:
                each.clear()
            except RequestRefused as refused:
                failed.append(refused)
        if failed:
            raise failed[0]


def _install(each: ApplicationFilter, wanted: Mapping[str, FilterPart], kept: frozenset[str]) -> bool:
    if each.install(wanted, kept):
        return True
    if not each.problem():
        return False
    # Another program has changed the filter: compute the change from its current state.
    each.take_over()
    return each.install(wanted, kept)


def _put_back(each: ApplicationFilter, before: Mapping[str, FilterPart] | None, kept: frozenset[str]) -> str:
    """Restore a filter; return its name if it keeps the new rules, which are not weaker than the old ones."""
    if before is None:
        return each.family.value
    try:
        each.install(before, kept)
    except RequestRefused:
        return each.family.value
    return ""


def _parts(wanted: Mapping[str, WantedRules], family: IpVersion) -> dict[str, FilterPart]:
    return {
        name: FilterPart(
            group.relative, group.identity() or 0, frozenset(each for each in allowed if each.family is family)
        )
        for name, (group, allowed) in wanted.items()
    }


def _problem(each: ApplicationFilter, group: Cgroup) -> str:
    if each.chain is None:
        return "the application has no rules"
    part = each.parts.get(APPLICATION)
    if part is not None and part.identity != group.identity():
        return "the cgroup was recreated, so its rules no longer apply to it"
    try:
        return each.problem()
    except RequestRefused as refused:
        return str(refused)


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
    """Remove the chains of dead applications without ``living`` members, and the jumps to them; return their names."""
    for attempt in range(_ATTEMPTS):
        listing = table.read()
        dead = {chain for chain in dead_chains(listing) if application_of(chain) not in living}
        if not dead:
            return []
        change = FilterChange()
        for found in listing.jumps:
            if found.chain in dead:
                change.delete(found.spec)
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
    for found in listing.jumps:
        known.setdefault(found.chain, []).append(found.owner)
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
    return 0 < pid <= HIGHEST_PID and answers(pid)
