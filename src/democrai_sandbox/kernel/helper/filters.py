"""Our rules in one filter: what is in force, what should be, and the one transaction from the one to the other."""

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
    """What a control group is permitted in one filter."""

    group: str
    identity: int
    """Of the group: rules for one that was made anew have to be made anew."""
    allowed: frozenset[Allow]


@dataclass(frozen=True, slots=True)
class _Held:
    chain: str
    specs: tuple[str, ...]
    part: Part | None
    """None when it was found there, and nobody knows what its rules are for."""


class Filter:
    """Our rules for one application in one filter. Parts are ``application``, and ``S<n>`` for each set of children."""

    def __init__(self, table: PacketFilter, owner: Owner) -> None:
        """Begin with nothing believed to be there."""
        self.family = table.family
        self._table = table
        self._owner = owner
        self._held: dict[str, _Held] = {}
        self._strays: tuple[_Held, ...] = ()

    @property
    def chain(self) -> str | None:
        """The application's chain that is in force."""
        held = self._held.get(APPLICATION)
        return None if held is None else held.chain

    @property
    def parts(self) -> dict[str, Part]:
        """What is in force, as far as it is known."""
        return {name: held.part for name, held in self._held.items() if held.part is not None}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Sets of a helper before this one: in force, and for endpoints that were never told to this one."""
        return tuple(name for name, held in self._held.items() if held.part is None and name != APPLICATION)

    def install(self, wanted: Mapping[str, Part], kept: frozenset[str] = frozenset()) -> bool:
        """Bring into force what is wanted and nothing else, in one transaction; tell whether something changed.

        What is believed to be there is not read first. Where it is not so, the transaction fails as a whole, and is
        made again from what really is there. ``kept`` names parts that stay as they are.
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
        """Read the filter and say what of ours is not in force as it should be; an empty text is good news."""
        listing = self._table.read()
        for held in self._held.values():
            jumps = [found for found in listing.jumps if found.chain == held.chain and found.owner == self._owner]
            if not jumps:
                return f"nothing leads to {held.chain} any more"
            if jumps[0].foreign_before:
                return f"a rule of the host comes before the jump to {held.chain}"
            count = listing.chains.get(held.chain)
            if held.part is not None and count != len(chain_rules(held.part.allowed)):
                return f"{held.chain} has {count} rules and not those it was given"
        return ""

    def take_over(self, listing: Listing | None = None) -> bool:
        """Believe what is in the filter now, and tell whether the application has rules there."""
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
        """Remove everything of the application, known or not."""
        self.take_over()
        self.install({})

    def _check_ours(self, chain: str, listing: Listing) -> None:
        """Refuse to touch what an application in another container has made, which has the same number there."""
        for found in listing.jumps:
            if found.chain == chain and found.owner is not None and found.owner.namespace != self._owner.namespace:
                text = f"{chain} belongs to a process {self._owner.pid} in another container that shares this network"
                raise Refused("busy", text, "give each container a network of its own, or start the application again")

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
            self._renew_jump(change)  # whoever has flushed the filter has not told us
        if change:
            self._table.commit(change)
        self._held, self._strays = after, ()
        return bool(change)

    def _lead(self, change: Change, name: str, held: _Held | None, part: Part) -> _Held:
        """Enter what leads from what is held to what is wanted."""
        if held is not None and held.part == part:
            return held
        chain = self._owner.chain(name)
        if name == APPLICATION:
            # Alternating, so that a reader of the filter sees which one is new.
            chain = self._owner.chain("B" if held is not None and held.chain == self._owner.chain("A") else "A")
        spec = jump(part.group, self._owner, chain)
        change.define(chain, part.allowed)
        if held is not None:
            # Also where the same one comes back: a jump that somebody has removed is noticed, since the change fails.
            for old in held.specs:
                change.delete(old)
            if held.chain != chain:
                change.drop(held.chain)
        change.insert(spec)
        return _Held(chain, (spec,), part)

    def _renew_jump(self, change: Change) -> None:
        """Put the application's jump in its place again. Where it is not there any more, the change fails."""
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
