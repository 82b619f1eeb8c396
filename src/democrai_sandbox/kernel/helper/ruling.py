"""Rules of one application in all packet filters: changed in all of them, or in none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused
from .filters import APPLICATION, Filter, Part
from .tables import Family, tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .cgroups import Cgroup
    from .commands import Commands
    from .tables import Allow, Owner


class Wanted(NamedTuple):
    """Wanted destinations of a cgroup, for all packet filters."""

    group: Cgroup
    allowed: frozenset[Allow]


class Ruling:
    """All packet filters as one."""

    def __init__(self, commands: Commands, owner: Owner) -> None:
        """Start without filters; ``find`` looks for them."""
        self._commands = commands
        self._owner = owner
        self._filters: tuple[Filter, ...] = ()
        self.warnings: list[str] = []

    @property
    def families(self) -> list[str]:
        """Filtered IP versions."""
        return [each.family.value for each in self._filters]

    @property
    def chains(self) -> dict[str, str | None]:
        """Application chain in each filter."""
        found: dict[str, str | None] = dict.fromkeys((family.value for family in Family), None)
        return found | {each.family.value: each.chain for each in self._filters}

    @property
    def complete(self) -> bool:
        """Whether the application has rules in all filters, according to the recorded state."""
        return bool(self._filters) and all(each.chain is not None for each in self._filters)

    def find(self) -> None:
        """Find the filters. Call it again each time, because IPv6 may have been enabled meanwhile."""
        found, self.warnings = tables(self._commands)
        known = {each.family: each for each in self._filters}
        self._filters = tuple(known.get(each.family) or Filter(each, self._owner) for each in found)

    def take_over(self) -> bool:
        """Record the rules found; return whether any belongs to the application."""
        found = [each.take_over() for each in self._filters]
        return any(found)

    def install(self, wanted: Mapping[str, Wanted], kept: frozenset[str]) -> bool:
        """Apply exactly the wanted and kept parts; return whether anything changed."""
        done: list[tuple[Filter, dict[str, Part] | None]] = []
        changed = False
        for each in self._filters:
            # Rules of a previous helper cannot be restored, because their endpoints are unknown.
            before = each.parts if each.chain is None or APPLICATION in each.parts else None
            try:
                if _install(each, _parts(wanted, each.family), kept):
                    done.append((each, before))
                    changed = True
            except Refused as refused:
                stay = [name for name in (_put_back(*earlier, kept) for earlier in done) if name]
                if not stay:
                    raise
                text = f"{refused.error}; the rules for {', '.join(stay)} are already the new ones"
                raise Refused(refused.reason, text, refused.fix) from None
        return changed

    def problems(self, group: Cgroup) -> dict[str, str]:
        """Read the filters, and return the problem of each."""
        found = {each.family.value: _problem(each, group) for each in self._filters}
        return {family: text for family, text in found.items() if text}

    def clear(self) -> None:
        """Remove the application from all filters; raise the first error after all have been tried."""
        failed: list[Refused] = []
        for each in self._filters:
            try:
                each.clear()
            except Refused as refused:
                failed.append(refused)
        if failed:
            raise failed[0]


def _install(each: Filter, wanted: Mapping[str, Part], kept: frozenset[str]) -> bool:
    if each.install(wanted, kept):
        return True
    if not each.problem():
        return False
    # Another program has changed the filter: compute the change from its current state.
    each.take_over()
    return each.install(wanted, kept)


def _put_back(each: Filter, before: Mapping[str, Part] | None, kept: frozenset[str]) -> str:
    """Restore a filter; return its name if it keeps the new rules, which are not weaker than the old ones."""
    if before is None:
        return each.family.value
    try:
        each.install(before, kept)
    except Refused:
        return each.family.value
    return ""


def _parts(wanted: Mapping[str, Wanted], family: Family) -> dict[str, Part]:
    return {
        name: Part(group.relative, group.identity() or 0, frozenset(each for each in allowed if each.family is family))
        for name, (group, allowed) in wanted.items()
    }


def _problem(each: Filter, group: Cgroup) -> str:
    if each.chain is None:
        return "the application has no rules"
    part = each.parts.get(APPLICATION)
    if part is not None and part.identity != group.identity():
        return "the cgroup was recreated, so its rules no longer apply to it"
    try:
        return each.problem()
    except Refused as refused:
        return str(refused)
