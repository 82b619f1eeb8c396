"""What the helper would do with a policy file, on paper: the transactions for the packet filter. Nothing is applied."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import PolicyFileRefused
from democrai_sandbox.kernel.helper.answers import Refused
from democrai_sandbox.kernel.helper.cgroups import PREFIX, find_tree
from democrai_sandbox.kernel.helper.filters import APPLICATION, Filter, Part
from democrai_sandbox.kernel.helper.policy import read_policy
from democrai_sandbox.kernel.helper.processes import facts
from democrai_sandbox.kernel.helper.resolving import Resolver, name_servers
from democrai_sandbox.kernel.helper.sweeping import process_namespace
from democrai_sandbox.kernel.helper.tables import Family, Listing, Owner

if TYPE_CHECKING:
    from democrai_sandbox.kernel.helper.policy import Policy
    from democrai_sandbox.kernel.helper.tables import Change

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PROGRAMS = ((Family.IPV4, "iptables-restore"), (Family.IPV6, "ip6tables-restore"))


class Transaction(NamedTuple):
    """What one program of the system would be given."""

    family: str
    program: str
    text: str


class Rehearsal(NamedTuple):
    """A policy, and what it comes to now."""

    policy: Policy
    transactions: tuple[Transaction, ...]
    unresolved: tuple[str, ...]
    """Names that lead nowhere at the moment."""
    withheld: tuple[str, ...]
    """Names that lead to this machine or its link, which a name server cannot open."""


def rehearse(path: str, pid: int) -> Rehearsal:
    """Read a policy file as the helper reads it, resolve its names, and write its rules for a process of this number.

    Raises ``PolicyFileRefused`` for a file that the helper would refuse.
    """
    try:
        policy = read_policy(path, os.geteuid(), lambda name: os.open(name, _OPEN))
    except Refused as refused:
        raise PolicyFileRefused(refused.error, fix=refused.fix) from None
    resolver = Resolver()
    resolver.ask(policy.endpoints, patient=True)
    found = resolver.resolve(policy.endpoints)
    owner = Owner(pid, _start_time(pid), process_namespace())
    allowed = found.allowed | name_servers()
    transactions = []
    for family, program in _PROGRAMS:
        paper = _Paper(family)
        part = Part(_group(pid), 0, frozenset(each for each in allowed if each.family is family))
        Filter(paper, owner).install({APPLICATION: part})
        transactions.append(Transaction(family.value, program, paper.text))
    return Rehearsal(policy, tuple(transactions), found.unresolved, found.withheld)


class _Paper:
    """Stands in the place of a packet filter in which there is nothing of ours, and keeps what it is told."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.text = ""

    def read(self) -> Listing:
        """Return that nothing of ours is there."""
        return Listing({}, ())

    def commit(self, change: Change) -> None:
        """Write it down."""
        self.text = change.text()


def _start_time(pid: int) -> int:
    """Return when a process was started; 0 for one that is not there."""
    try:
        return facts(pid).start_time
    except Refused:
        return 0


def _group(pid: int) -> str:
    try:
        return find_tree().application(pid).relative
    except Refused:  # nothing could be applied here; what it would be can be said all the same
        return f"{PREFIX}{pid}"
