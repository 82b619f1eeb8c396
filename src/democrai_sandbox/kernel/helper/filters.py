"""Rules of one application in one packet filter: compute the transaction from the current to the wanted rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused
from .tables import Change, application_of, chain_rules, jump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .interface import PacketFilter
    from .tables import Allow, Listing, Owner

APPLICATION = "application"


class Part(NamedTuple):
    """Allowed destinations of a cgroup in one packet filter."""

    group: str
    identity: int
    """Identity of the cgroup: a recreated cgroup needs new rules."""
    allowed: frozenset[Allow]


@dataclass(frozen=True, slots=True)
class _Held:
    chain: str
    specs: tuple[str, ...]
    part: Part | None
    """None for found rules with unknown content."""


class Filter:
    """Our rules for one application in one filter. Parts are ``application``, and ``S<n>`` for each set of children."""

    def __init__(self, table: PacketFilter, owner: Owner) -> None:
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
    def parts(self) -> dict[str, Part]:
        """Known parts in force."""
        return {name: held.part for name, held in self._held.items() if held.part is not None}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sets of a previous helper: in force, with endpoints unknown to this one."""
        return tuple(name for name, held in self._held.items() if held.part is None and name != APPLICATION)

    def install(self, wanted: Mapping[str, Part], kept: frozenset[str] = frozenset()) -> bool:
        """Apply exactly the wanted parts in one transaction; return whether anything changed.

        The recorded state is not verified first. If it is wrong, the whole transaction fails and is repeated with the
        state read from the filter. ``kept`` names parts that stay unchanged.
        """
        try:
            return self._commit(wanted, kept)
        except Refused:
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

    def take_over(self, listing: Listing | None = None) -> bool:
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

    def _check_ours(self, chain: str, listing: Listing) -> None:
        """Refuse to change rules of an application in another container with the same process id."""
        for found in listing.jumps:
            if found.chain == chain and found.owner is not None and found.owner.namespace != self._owner.namespace:
                text = f"{chain} belongs to process {self._owner.pid} of another container that shares this network"
                raise Refused("busy", text, "give each container a separate network, or restart the application")

    def _commit(self, wanted: Mapping[str, Part], kept: frozenset[str]) -> bool:
        change = Change()
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

    def _lead(self, change: Change, name: str, held: _Held | None, part: Part) -> _Held:
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

    def _renew_jump(self, change: Change) -> None:
        """Move the application's jump to the front. The change fails if the jump is missing."""
        held = self._held.get(APPLICATION)
        if held is not None and held.part is not None:
            for spec in held.specs:
                change.delete(spec)
                change.insert(spec)

    def _end(self, change: Change, held: _Held, *, drop: bool = True) -> None:
        for spec in held.specs:
            change.delete(spec)
        if drop:
            change.drop(held.chain)
