"""The packet filter as text: chains, jumps and transactions for ``iptables-restore``, and reading them back.

A chain ends connections that are not permitted and *returns* for those that are: rules of the host's own still count,
and where a process is in two groups, one inside the other, it may do what both permit.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .commands import Commands

_NETWORK = Path("/proc/sys/net")
_WAIT_SECONDS = "10"
_INSTALL_FIX = "install iptables (the packages iptables or iptables-nft)"
_MODULES_FIX = (
    "load the modules of the kernel which the rules need: xt_cgroup, xt_addrtype, xt_comment, nf_conntrack, ipt_REJECT"
)
_CHAIN = re.compile(r"DEMOCRAI_OS_(?P<pid>[0-9]+)_(?P<part>A|B|S[0-9]+)")
_JUMP = re.compile(rf"-A OUTPUT (?P<spec>(?:.* )?-j (?P<chain>{_CHAIN.pattern}))")
_COMMENT = re.compile(r'--comment "democrai (?P<pid>[0-9]+) (?P<start>[0-9]+) (?P<space>[0-9]+)"')
# What the tools add below the sentence that matters.
_NOISE = re.compile(r"Try `|Error occurred at line|^\s*$|^#")


class Family(StrEnum):
    """The two versions of IP, each with a filter of its own."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


class Owner(NamedTuple):
    """An application: numbers of processes are used again, so that only all together say which one it is."""

    pid: int
    start_time: int
    namespace: int
    """Of processes: containers that share a network count each for itself."""

    @property
    def comment(self) -> str:
        """What its rules carry."""
        return f"democrai {self.pid} {self.start_time} {self.namespace}"

    def chain(self, part: str) -> str:
        """Return the name of a chain: ``A`` or ``B`` for the application, ``S<n>`` for a set of its children."""
        return f"DEMOCRAI_OS_{self.pid}_{part}"


class Allow(NamedTuple):
    """One destination."""

    protocol: str
    address: str
    port: int

    @property
    def family(self) -> Family:
        """Which filter it belongs to."""
        return Family.IPV6 if ":" in self.address else Family.IPV4


class Jump(NamedTuple):
    """A rule of ``OUTPUT`` that leads into a chain of an application."""

    chain: str
    spec: str
    """The rule as the tool prints it, which is how it can be deleted."""
    owner: Owner | None
    """Who it says that it is for; None when it does not say."""
    foreign_before: bool
    """Whether a rule that is nobody's of ours is looked at first, and might accept what the chain refuses."""


class Listing(NamedTuple):
    """What of ours is in a filter now."""

    chains: dict[str, int]
    """The chains of all applications, and how many rules each has."""
    jumps: tuple[Jump, ...]


def application_of(chain: str) -> int:
    """Return the number of the process that a chain is named for."""
    found = _CHAIN.fullmatch(chain)
    if found is None:
        raise ValueError(f"{chain!r} is not a chain of an application")
    return int(found["pid"])


def jump(group: str, owner: Owner, chain: str) -> str:
    """Return the rule by which packets of a control group go through a chain."""
    return f'-m cgroup --path {_quoted(group)} -m comment --comment "{owner.comment}" -j {chain}'


def chain_rules(allowed: Iterable[Allow]) -> list[str]:
    """Return the rules of a chain, in order."""
    return [
        # Any user may send IPv6 from an address that is another's (IPV6_FREEBIND): two such packets look like a
        # question and its answer. Not rejected: the error, with the packet in it, would go to that other.
        "-m addrtype ! --src-type LOCAL -j DROP",
        # Answers to whoever connected to us. Only of that direction: what we have begun ourselves is asked anew with
        # every packet, so that a connection ends when its permission does.
        "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN",
        *(f"-d {each.address} -p {each.protocol} --dport {each.port} -j RETURN" for each in sorted(allowed)),
        # A reset ends a connection at once in both versions; in IPv6 an error of ICMP is noticed a second later.
        "-p tcp -j REJECT --reject-with tcp-reset",
        "-j REJECT",
    ]


class Change:
    """A transaction: all of its lines come into force in one moment, or none."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._chains: list[str] = []
        self._deleted: list[str] = []
        self._rules: list[str] = []
        self._inserted: list[str] = []
        self._dropped: list[str] = []

    def __bool__(self) -> bool:
        return any((self._chains, self._deleted, self._inserted, self._dropped))

    def define(self, chain: str, allowed: Iterable[Allow]) -> None:
        """Make a chain, or give one that exists other rules."""
        self._chains.append(f":{chain} - [0:0]")
        self._rules.extend(f"-A {chain} {rule}" for rule in chain_rules(allowed))

    def insert(self, spec: str) -> None:
        """Put a jump before all other rules: one of the host's might accept what the chain refuses."""
        self._inserted.append(f"-I OUTPUT 1 {spec}")

    def delete(self, spec: str) -> None:
        """Remove a jump. Deletions come before insertions, or an equal new one would be the first that is found."""
        self._deleted.append(f"-D OUTPUT {spec}")

    def drop(self, chain: str) -> None:
        """Remove a chain, to which nothing may lead any more."""
        self._dropped.extend((f"-F {chain}", f"-X {chain}"))

    def text(self) -> str:
        """Return what the tool reads."""
        lines = [*self._chains, *self._deleted, *self._rules, *self._inserted, *self._dropped]
        return "\n".join(["*filter", *lines, "COMMIT", ""])


class Table:
    """The filter of one version of IP."""

    def __init__(self, commands: Commands, family: Family) -> None:
        """Find the tools."""
        self.family = family
        self._commands = commands
        name = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}[family]
        self._save = self._found(f"{name}-save")
        self._restore = self._found(f"{name}-restore")

    def commit(self, change: Change) -> None:
        """Bring a change into force, whole or not at all."""
        done = self._commands.run((self._restore, "--noflush", "-w", _WAIT_SECONDS), change.text())
        if done.status:
            raise self._failed(self._restore, done.errors)

    def read(self) -> Listing:
        """Return what of ours is there."""
        done = self._commands.run((self._save, "-t", "filter"))
        if done.status:
            raise self._failed(self._save, done.errors)
        return parse(done.output)

    def _found(self, name: str) -> str:
        path = self._commands.find(name)
        if path is not None:
            return path
        places = ", ".join(self._commands.places)
        if self.family is Family.IPV4:
            raise Refused("no_iptables", f"{name} is in none of {places}", _INSTALL_FIX)
        fix = f"{_INSTALL_FIX}, or turn IPv6 off: sysctl net.ipv6.conf.all.disable_ipv6=1"
        raise Refused("no_ip6tables", f"the machine has IPv6, and {name} is in none of {places}", fix)

    def _failed(self, command: str, errors: str) -> Refused:
        lines = [line.strip() for line in errors.splitlines() if not _NOISE.search(line)]
        said = lines[-1][:300] if lines else "it did not say why"
        if "ermission denied" in errors:
            return Refused("not_privileged", f"{command}: {said}", "start the helper as root (CAP_NET_ADMIN)")
        return Refused("table_failed", f"{command}: {said}", _MODULES_FIX)


def tables(commands: Commands, network: Path = _NETWORK) -> tuple[tuple[Table, ...], list[str]]:
    """Return a filter for each version of IP that the machine speaks, and what there is to say about the others."""
    found = [Table(commands, Family.IPV4)]
    if not (network / "ipv6").is_dir():
        return tuple(found), ["IPv6: the kernel has none, so that nothing needs to be refused there"]
    try:
        found.append(Table(commands, Family.IPV6))
    except Refused:
        # Also for an interface that comes later: the helper would not notice it in time.
        states = [path.read_text().strip() for path in network.glob("ipv6/conf/*/disable_ipv6")]
        if not all(state == "1" for state in states):
            raise
        return tuple(found), ["IPv6: ip6tables is not installed; IPv6 is turned off here, so nothing gets out there"]
    return tuple(found), []


def parse(text: str) -> Listing:
    """Read what ``iptables-save`` prints; everything that is not ours is passed over."""
    chains: dict[str, int] = {}
    jumps: list[Jump] = []
    foreign = False
    for line in text.splitlines():
        if line.startswith(":") and _CHAIN.fullmatch(name := line[1:].split(" ", 1)[0]):
            chains[name] = 0
        elif line.startswith("-A OUTPUT "):
            found = _JUMP.fullmatch(line.rstrip())
            if found is None:
                foreign = True
            else:
                jumps.append(Jump(found["chain"], found["spec"], _owner(found["spec"]), foreign))
        elif line.startswith("-A ") and (name := line[3:].split(" ", 1)[0]) in chains:
            chains[name] += 1
    return Listing(chains, tuple(jumps))


def _owner(spec: str) -> Owner | None:
    found = _COMMENT.search(spec)
    return None if found is None else Owner(*map(int, found.groups()))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if "\n" in text or "\0" in text:
        raise ValueError(f"{text!r} cannot be the name of a control group")
    return f'"{escaped}"'
