"""Packet filter as text: chains, jumps and transactions for ``iptables-restore``, and the parser for their listing.

A chain rejects connections that are not permitted and *returns* for the others, so that the host's rules still apply. A
process in two nested cgroups is restricted by both.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PLACES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_SECONDS = 15.0
# Not inherited: the user who started the helper controls the environment.
_ENVIRONMENT = {"PATH": ":".join(PLACES), "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Commands:
    """Runner of programs. It does not use ``PATH``, which the user who started the helper controls."""

    places: tuple[str, ...] = PLACES
    seconds: float = _SECONDS

    def find(self, name: str) -> str | None:
        """Return the path of a program."""
        candidates = (Path(place, name) for place in self.places)
        return next((str(path) for path in candidates if os.access(path, os.X_OK)), None)

    def run(self, argv: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program until it ends or the timeout passes."""
        try:
            return subprocess.run(  # noqa: S603 - a path from fixed folders, no shell, no client input
                argv,
                input=text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.seconds,
                check=False,
                env=_ENVIRONMENT,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            error = f"{argv[0]} did not finish within {self.seconds:g} seconds"
            raise RequestRefused(
                "table_failed", error, "check which process holds the lock /run/xtables.lock"
            ) from None
        except OSError as error:
            raise RequestRefused(
                "table_failed", f"{argv[0]} cannot be run: {error.strerror}", "reinstall iptables"
            ) from None


_NETWORK = Path("/proc/sys/net")
_WAIT_SECONDS = "10"
_INSTALL_FIX = "install iptables (the packages iptables or iptables-nft)"
_MODULES_FIX = (
    "load the kernel modules that the rules need: xt_cgroup, xt_addrtype, xt_comment, nf_conntrack, ipt_REJECT"
)
_CHAIN = re.compile(r"DEMOCRAI_OS_(?P<pid>[0-9]+)_(?P<part>A|B|S[0-9]+)")
_JUMP = re.compile(rf"-A OUTPUT (?P<spec>(?:.* )?-j (?P<chain>{_CHAIN.pattern}))")
_COMMENT = re.compile(r'--comment "democrai (?P<pid>[0-9]+) (?P<start>[0-9]+) (?P<space>[0-9]+)"')
# Lines that the tools print after the error message.
_NOISE = re.compile(r"Try `|Error occurred at line|^\s*$|^#")


class IpVersion(StrEnum):
    """IP versions, each with a separate packet filter."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"


class Owner(NamedTuple):
    """Identity of an application: process ids are reused, so only all fields together identify it."""

    pid: int
    start_time: int
    namespace: int
    """Pid namespace, because containers may share a network."""

    def chain(self, part: str) -> str:
        """Return the name of a chain: ``A`` or ``B`` for the application, ``S<n>`` for a set of its children."""
        return f"DEMOCRAI_OS_{self.pid}_{part}"


class Allow(NamedTuple):
    """One destination."""

    protocol: str
    address: str
    port: int

    @property
    def family(self) -> IpVersion:
        """Packet filter to which it belongs."""
        return IpVersion.IPV6 if ":" in self.address else IpVersion.IPV4


class Jump(NamedTuple):
    """Rule of ``OUTPUT`` that jumps to a chain of an application."""

    chain: str
    spec: str
    """Rule as printed by the tool, for deleting it."""
    owner: Owner | None
    """Owner from its comment; None without one."""
    foreign_before: bool
    """Whether a rule of another program comes first, which may accept packets that the chain rejects."""


class FilterListing(NamedTuple):
    """Our chains and jumps in a packet filter."""

    chains: dict[str, int]
    """Chains of all applications with their number of rules."""
    jumps: tuple[Jump, ...]


def application_of(chain: str) -> int:
    """Return the process id in the name of a chain."""
    found = _CHAIN.fullmatch(chain)
    if found is None:
        raise ValueError(f"{chain!r} is not a chain of an application")
    return int(found["pid"])


def jump(group: str, owner: Owner, chain: str) -> str:
    """Return the rule that sends the packets of a cgroup through a chain."""
    comment = f"democrai {owner.pid} {owner.start_time} {owner.namespace}"
    return f'-m cgroup --path {_quoted(group)} -m comment --comment "{comment}" -j {chain}'


def chain_rules(allowed: Iterable[Allow]) -> list[str]:
    """Return the rules of a chain, in order."""
    return [
        # Any user may send IPv6 from a foreign address (IPV6_FREEBIND); two such packets look like a request and its
        # answer. Dropped, because a rejection would be sent, with the packet, to that foreign address.
        "-m addrtype ! --src-type LOCAL -j DROP",
        # Answers on incoming connections. Outgoing connections are checked with every packet, so that they end when
        # their permission ends.
        "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN",
        *(f"-d {each.address} -p {each.protocol} --dport {each.port} -j RETURN" for each in sorted(allowed)),
        # A TCP reset ends a connection immediately in both versions; an ICMPv6 error takes a second.
        "-p tcp -j REJECT --reject-with tcp-reset",
        "-j REJECT",
    ]


class FilterChange:
    """Atomic transaction of packet filter changes."""

    def __init__(self) -> None:
        self._chains: list[str] = []
        self._deleted: list[str] = []
        self._rules: list[str] = []
        self._inserted: list[str] = []
        self._dropped: list[str] = []

    def __bool__(self) -> bool:
        return any((self._chains, self._deleted, self._inserted, self._dropped))

    def define(self, chain: str, allowed: Iterable[Allow]) -> None:
        """Create a chain, or replace its rules."""
        self._chains.append(f":{chain} - [0:0]")
        self._rules.extend(f"-A {chain} {rule}" for rule in chain_rules(allowed))

    def insert(self, spec: str) -> None:
        """Insert a jump before all other rules, which might accept packets that the chain rejects."""
        self._inserted.append(f"-I OUTPUT 1 {spec}")

    def delete(self, spec: str) -> None:
        """Delete a jump. Deletions precede insertions; otherwise they would remove an identical new jump."""
        self._deleted.append(f"-D OUTPUT {spec}")

    def drop(self, chain: str) -> None:
        """Delete a chain without references."""
        self._dropped.extend((f"-F {chain}", f"-X {chain}"))

    def text(self) -> str:
        """Return the input for the tool."""
        lines = [*self._chains, *self._deleted, *self._rules, *self._inserted, *self._dropped]
        return "\n".join(["*filter", *lines, "COMMIT", ""])


class FilterTable:
    """Packet filter of one IP version."""

    def __init__(self, commands: Commands, family: IpVersion) -> None:
        self.family = family
        self._commands = commands
        name = {IpVersion.IPV4: "iptables", IpVersion.IPV6: "ip6tables"}[family]
        self._save = self._found(f"{name}-save")
        self._restore = self._found(f"{name}-restore")

    def commit(self, change: FilterChange) -> None:
        """Apply a change atomically."""
        done = self._commands.run((self._restore, "--noflush", "-w", _WAIT_SECONDS), change.text())
        if done.returncode:
            raise self._failed(self._restore, done.stderr)

    def read(self) -> FilterListing:
        """Return our chains and jumps."""
        done = self._commands.run((self._save, "-t", "filter"))
        if done.returncode:
            raise self._failed(self._save, done.stderr)
        return parse(done.stdout)

    def _found(self, name: str) -> str:
        path = self._commands.find(name)
        if path is not None:
            return path
        places = ", ".join(self._commands.places)
        if self.family is IpVersion.IPV4:
            raise RequestRefused("no_iptables", f"{name} was not found in {places}", _INSTALL_FIX)
        fix = f"{_INSTALL_FIX}, or disable IPv6: sysctl net.ipv6.conf.all.disable_ipv6=1"
        raise RequestRefused("no_ip6tables", f"IPv6 is enabled, but {name} was not found in {places}", fix)

    def _failed(self, command: str, errors: str) -> RequestRefused:
        lines = [line.strip() for line in errors.splitlines() if not _NOISE.search(line)]
        said = lines[-1][:300] if lines else "no error message"
        if "ermission denied" in errors:
            return RequestRefused("not_privileged", f"{command}: {said}", "start the helper as root (CAP_NET_ADMIN)")
        return RequestRefused("table_failed", f"{command}: {said}", _MODULES_FIX)


def tables(commands: Commands, network: Path = _NETWORK) -> tuple[tuple[FilterTable, ...], list[str]]:
    """Return a filter for each IP version of the machine, and remarks about the others."""
    found = [FilterTable(commands, IpVersion.IPV4)]
    if not (network / "ipv6").is_dir():
        return tuple(found), ["IPv6: not supported by this kernel, so it needs no filter"]
    try:
        found.append(FilterTable(commands, IpVersion.IPV6))
    except RequestRefused:
        # Check all interfaces and the default for new ones, which the helper would notice too late.
        states = [path.read_text().strip() for path in network.glob("ipv6/conf/*/disable_ipv6")]
        if not all(state == "1" for state in states):
            raise
        return tuple(found), ["IPv6: ip6tables is not installed, but IPv6 is disabled, so it needs no filter"]
    return tuple(found), []


def parse(text: str) -> FilterListing:
    """Parse the output of ``iptables-save``; skip rules of other programs."""
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
    return FilterListing(chains, tuple(jumps))


def _owner(spec: str) -> Owner | None:
    found = _COMMENT.search(spec)
    return None if found is None else Owner(*map(int, found.groups()))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if "\n" in text or "\0" in text:
        raise ValueError(f"{text!r} is not a valid cgroup name")
    return f'"{escaped}"'


_NETFILTER = 12  # NETLINK_NETFILTER
_RULES = 1 << 7 - 1  # NFNLGRP_NFTABLES, as the bit of a group
_AT_ONCE = 0.1
"""Seconds to wait for the rest of a change, which consists of many messages."""
_BETWEEN = 1.0
"""Minimum seconds between two notices: each causes the rules to be read, and our changes are reported too."""


class FilterChangeListener:
    """Listener for changes by other programs, such as a firewall reload, which removes our rules.

    The kernel reports changes by ``nft`` and ``iptables-nft``, but not by ``iptables-legacy``.
    """

    def __init__(self) -> None:
        """Start listening; without permission, never report a change."""
        self._last = 0.0
        self._socket: socket.socket | None = None
        try:
            listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        except OSError:
            return
        try:
            listening.bind((0, _RULES))
        except OSError:
            listening.close()
        else:
            self._socket = listening

    def wait(self) -> bool:
        """Wait for a change; return False when changes cannot be detected."""
        if self._socket is None:
            return False
        self._socket.settimeout(None)
        if not self._receive():
            return False
        time.sleep(max(_AT_ONCE, self._last + _BETWEEN - time.monotonic()))
        self._socket.settimeout(0)
        with suppress(BlockingIOError):
            while self._receive():
                pass
        self._last = time.monotonic()
        return True

    def _receive(self) -> bool:
        try:
            return self._socket is not None and bool(self._socket.recv(65536))
        except BlockingIOError:
            raise
        except OSError as error:
            return error.errno == errno.ENOBUFS  # messages were lost, so there was a change
