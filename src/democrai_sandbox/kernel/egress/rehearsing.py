"""Dry run of a policy file: compute the packet filter transactions without applying them."""

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
    """Input for one system program."""

    family: str
    program: str
    text: str


class Rehearsal(NamedTuple):
    """Policy with its resolved rules."""

    policy: Policy
    transactions: tuple[Transaction, ...]
    unresolved: tuple[str, ...]
    """Names that do not resolve now."""
    withheld: tuple[str, ...]
    """Names that resolve to loopback or link-local addresses, which DNS may not open."""


def rehearse(path: str, pid: int) -> Rehearsal:
    """Read a policy file as the helper does, resolve its names, and compute the rules for this process id.

    Raise ``PolicyFileRefused`` for a file that the helper would reject.
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
    """Stand-in for a packet filter without our rules. It records changes."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.text = ""

    def read(self) -> Listing:
        """Return an empty listing."""
        return Listing({}, ())

    def commit(self, change: Change) -> None:
        """Record the change."""
        self.text = change.text()


def _start_time(pid: int) -> int:
    """Return the start time of a process; 0 if it does not exist."""
    try:
        return facts(pid).start_time
    except Refused:
        return 0


def _group(pid: int) -> str:
    try:
        return find_tree().application(pid).relative
    except Refused:  # rules cannot be applied here, but they can be shown
        return f"{PREFIX}{pid}"
