"""Inspect egress control from the command line: list helpers and rules, and run a policy file dry.

A helper answers its own application only. A refusal shows that it runs; its rules are in the policy file, and in the
packet filter, which only root can read. The dry run computes the transactions without applying them.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import HelperFailed, PolicyFileRefused
from democrai_sandbox.kernel.helper import application_rules, iptables
from democrai_sandbox.kernel.helper.cgroups import PREFIX, find_tree
from democrai_sandbox.kernel.helper.policy import Resolver, name_servers, parse_policy, read_policy
from democrai_sandbox.kernel.helper.processes import facts
from democrai_sandbox.kernel.helper.protocol import RequestRefused

from .helper_client import HelperClient

if TYPE_CHECKING:
    from democrai_sandbox.kernel.helper.policy import Policy, PolicyEndpoint
    from democrai_sandbox.kernel.settings import OsSettings

_PID = "{pid}"
_LIVES = frozenset({"not_a_descendant", "foreign_uid", "confined", "busy"})
"""Refusal that only a helper sends."""


class FoundHelper(NamedTuple):
    """Running helper, or files left by one."""

    application: int
    """0 when the path of the socket does not contain it."""
    socket: str
    answers: bool
    why: str
    """Reason why it does not answer."""
    policy_file: str
    endpoints: tuple[PolicyEndpoint, ...] | None
    """Endpoints of its policy file; None if the file cannot be read."""


class FoundChain(NamedTuple):
    """Rules in a packet filter."""

    family: str
    name: str
    application: int
    rules: int
    in_force: bool
    """Whether packets pass through it."""
    is_left: bool
    """Whether its application has ended, so that the next helper removes it."""


def list_helpers(settings: OsSettings, *, data_dir: str, state_dir: str) -> tuple[FoundHelper, ...]:
    """Return the helpers found at the sockets of a configuration, sorted by application process id."""
    socket = settings.helper_socket or f"{state_dir}/os_sandbox_helper_{_PID}.sock"
    policy = settings.policy_file or f"{data_dir}/os_sandbox_allowlist_{_PID}.json"
    return tuple(sorted(_seen(path, pid, policy.replace(_PID, str(pid))) for path, pid in _sockets(socket)))


def list_chains() -> tuple[FoundChain, ...]:
    """Return all our rules on this machine; raise ``HelperFailed`` if they cannot be read."""
    try:
        found, _ = iptables.tables(iptables.Commands())
        listings = [(table.family.value, table.read()) for table in found]
    except RequestRefused as refused:
        raise HelperFailed(refused.error, fix=refused.fix, reason=refused.reason) from None
    return tuple(
        FoundChain(
            family,
            name,
            iptables.application_of(name),
            count,
            any(jump.chain == name for jump in listing.jumps),
            not Path(f"/proc/{iptables.application_of(name)}").exists(),
        )
        for family, listing in listings
        for name, count in listing.chains.items()
    )


def _sockets(template: str) -> list[tuple[str, int]]:
    parts = template.split(_PID)
    if len(parts) == 1:
        return [(template, 0)] if os.path.lexists(template) else []
    shape = re.compile("([0-9]+)".join(map(re.escape, parts)))
    found = ((path, shape.fullmatch(path)) for path in glob.glob("*".join(map(glob.escape, parts))))  # noqa: PTH207 - texts
    return [(path, int(match[1])) for path, match in found if match is not None]


def _seen(socket: str, pid: int, policy_file: str) -> FoundHelper:
    try:
        HelperClient(socket).ping()
        answers, why = True, ""
    except HelperFailed as error:
        answers = error.reason in _LIVES
        why = "" if answers else error.what
    return FoundHelper(pid, socket, answers, why, policy_file, _endpoints(policy_file))


def _endpoints(path: str) -> tuple[PolicyEndpoint, ...] | None:
    try:
        return parse_policy(Path(path).read_bytes(), path).endpoints
    except (OSError, RequestRefused):
        return None


_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PROGRAMS = ((iptables.IpVersion.IPV4, "iptables-restore"), (iptables.IpVersion.IPV6, "ip6tables-restore"))


class FilterTransaction(NamedTuple):
    """Input for one system program."""

    family: str
    program: str
    text: str


class DryRun(NamedTuple):
    """Policy with its resolved rules."""

    policy: Policy
    transactions: tuple[FilterTransaction, ...]
    unresolved: tuple[str, ...]
    """Names that do not resolve now."""
    withheld: tuple[str, ...]
    """Names that resolve to loopback or link-local addresses, which DNS may not open."""


def dry_run(path: str, pid: int) -> DryRun:
    """Read a policy file and compute its rules, like the helper; raise ``PolicyFileRefused`` if it would reject it."""
    try:
        policy = read_policy(path, os.geteuid(), lambda name: os.open(name, _OPEN))
    except RequestRefused as refused:
        raise PolicyFileRefused(refused.error, fix=refused.fix) from None
    resolver = Resolver()
    resolver.ask(policy.endpoints, patient=True)
    found = resolver.resolve(policy.endpoints)
    owner = iptables.Owner(pid, _start_time(pid), application_rules.process_namespace())
    allowed = found.allowed | name_servers()
    transactions = []
    for family, program in _PROGRAMS:
        recording = _RecordingFilter(family)
        part = application_rules.FilterPart(
            _group(pid), 0, frozenset(each for each in allowed if each.family is family)
        )
        application_rules.ApplicationFilter(recording, owner).install({application_rules.APPLICATION: part})
        transactions.append(FilterTransaction(family.value, program, recording.text))
    return DryRun(policy, tuple(transactions), found.unresolved, found.withheld)


class _RecordingFilter(iptables.FilterTable):
    """Stand-in for a packet filter without our rules. It runs no programs, and records the changes."""

    def __init__(self, family: iptables.IpVersion) -> None:
        self.family = family
        self.text = ""

    def read(self) -> iptables.FilterListing:
        return iptables.FilterListing({}, ())

    def commit(self, change: iptables.FilterChange) -> None:
        self.text = change.text()


def _start_time(pid: int) -> int:
    try:
        return facts(pid).start_time
    except RequestRefused:
        return 0


def _group(pid: int) -> str:
    try:
        return find_tree().application(pid).relative
    except RequestRefused:  # rules cannot be applied here, but they can be shown
        return f"{PREFIX}{pid}"
