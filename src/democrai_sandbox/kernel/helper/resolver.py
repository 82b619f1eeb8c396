"""Resolve endpoints to addresses. A name server that hangs delays an answer briefly, but never blocks the helper.

Addresses stay valid for a while after a name has stopped resolving to them: large services return a few of many
addresses each time, and the filter checks every packet of a connection, not only the first one.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .iptables import Allow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .policy import PolicyEndpoint

WAIT_SECONDS = 1.5
KEEP_SECONDS = 3600.0
FRESH_SECONDS = 30.0
_NEVER = float("-inf")
_WORKERS = 8
_MOST_ADDRESSES = 64
_MOST_NAMES = 20_000
_MOST_SERVERS = 8
_DNS_PORT = 53
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_LOOPBACK = ("127.0.0.1", "::1")


class Resolution(NamedTuple):
    """Resolved endpoints."""

    allowed: frozenset[Allow]
    unresolved: tuple[str, ...]
    """Names without any address."""
    withheld: tuple[str, ...]
    """Names that resolve to loopback or link-local addresses, which DNS may not open; see ``_acceptable``."""


@dataclass(slots=True)
class _Name:
    addresses: dict[str, float] = field(default_factory=dict)
    """Addresses with the time of the last answer that contained them."""
    tried: float = _NEVER
    """Time of the last answer or failure."""
    pending: bool = False


class Resolver:
    """Resolver with a few threads and a cache."""

    def __init__(
        self,
        lookup: Callable[[str], Iterable[str]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep_seconds: float = KEEP_SECONDS,
        hosts: str = "/etc/hosts",
    ) -> None:
        self._lookup = system_lookup if lookup is None else lookup
        self._clock = clock
        self._keep = keep_seconds
        self._hosts = hosts
        self._names: dict[str, _Name] = {}
        self._waiting: deque[str] = deque()
        self._workers = 0
        self._changed = threading.Condition()

    def ask(
        self,
        endpoints: Iterable[PolicyEndpoint],
        *,
        fresh: float = FRESH_SECONDS,
        seconds: float = WAIT_SECONDS,
        patient: bool = False,
    ) -> None:
        """Look up the names of endpoints, except those looked up within ``fresh`` seconds.

        Wait only for unknown names, and only once, unless ``patient`` is set: a name server that hangs must not delay
        new decisions. The next call uses answers that arrive later.
        """
        endpoints = tuple(endpoints)
        names = {each.host for each in endpoints if not _is_fixed(each.host)}
        told = {each.host for each in endpoints if each.addresses}
        now = self._clock()
        with self._changed:
            self._forget(names)
            asked = []
            for name in sorted(names):
                entry = self._names.setdefault(name, _Name())
                if entry.pending or now - entry.tried < fresh:
                    continue
                if patient or (entry.tried == _NEVER and name not in told):
                    asked.append(entry)
                entry.pending = True
                self._waiting.append(name)
            for _ in range(min(_WORKERS - self._workers, len(self._waiting))):
                self._workers += 1
                threading.Thread(target=self._work, name="resolver", daemon=True).start()
            end = time.monotonic() + seconds
            while any(entry.pending for entry in asked) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def resolve(self, endpoints: Iterable[PolicyEndpoint]) -> Resolution:
        """Return the destinations of endpoints with known names."""
        local = _local_names(self._hosts)
        allowed: set[Allow] = set()
        unresolved: dict[str, None] = {}
        withheld: dict[str, None] = {}
        for each in endpoints:
            found = {*self._known(each.host), *each.addresses}
            good = [address for address in found if _acceptable(each.host, address, local)]
            for address in good:
                allowed.add(Allow(each.protocol, address, each.port))
            if len(good) < len(found):
                withheld[each.host] = None
            if not good:
                unresolved[each.host] = None
        return Resolution(frozenset(allowed), tuple(unresolved), tuple(withheld))

    def _known(self, host: str) -> tuple[str, ...]:
        if host in _LOOPBACK_NAMES:
            return _LOOPBACK
        if _is_fixed(host):
            return (host,)
        oldest = self._clock() - self._keep
        with self._changed:
            entry = self._names.get(host)
            return () if entry is None else tuple(a for a, seen in entry.addresses.items() if seen >= oldest)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._workers -= 1
                    return
                name = self._waiting.popleft()
            try:
                found = tuple(self._lookup(name))
            except (OSError, UnicodeError):
                found = ()
            with self._changed:
                self._note(self._names.setdefault(name, _Name()), found)
                self._changed.notify_all()

    def _note(self, entry: _Name, found: tuple[str, ...]) -> None:
        now = self._clock()
        entry.pending, entry.tried = False, now
        entry.addresses.update(dict.fromkeys(found, now))
        newest = sorted(entry.addresses.items(), key=lambda item: -item[1])[:_MOST_ADDRESSES]
        entry.addresses = {address: seen for address, seen in newest if seen >= now - self._keep}

    def _forget(self, names: set[str]) -> None:
        """Limit the cache: remove names that have not been requested lately."""
        if len(self._names) + len(names) > _MOST_NAMES:
            for name in [name for name, entry in self._names.items() if name not in names and not entry.pending]:
                del self._names[name]


def system_lookup(name: str) -> tuple[str, ...]:
    """Resolve a name with the system's resolver, like the application."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_plain(str(entry[4][0])) for entry in found))


def name_servers(path: str = "/etc/resolv.conf") -> frozenset[Allow]:
    """Return the system's name servers, for both protocols."""
    try:
        lines = [line.split() for line in Path(path).read_text("utf-8", "replace").splitlines()]
    except OSError:
        lines = []
    found = [_plain(words[1]) for words in lines if words[:1] == ["nameserver"] and len(words) > 1]
    # The C library falls back to this machine.
    servers = [address for address in found if _is_fixed(address)][:_MOST_SERVERS] or ["127.0.0.1"]
    return frozenset(Allow(protocol, server, _DNS_PORT) for server in servers for protocol in ("tcp", "udp"))


def _plain(address: str) -> str:
    """Return an address without its interface, and convert an IPv4-mapped IPv6 address to IPv4."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=_MOST_NAMES)
def _is_fixed(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _acceptable(host: str, address: str, local: dict[str, set[str]]) -> bool:
    """Return whether an address may be opened for a host.

    The name server of a permitted name could answer with an address of this machine, and so open a local database.
    Loopback and link-local addresses are opened only if the policy or the machine's hosts file contains them.
    """
    is_near = _is_near(address)
    return is_near is False or (is_near is True and (_is_fixed(host) or address in local.get(host, ())))


@lru_cache(maxsize=_MOST_NAMES)
def _is_near(address: str) -> bool | None:
    """Whether an address is loopback or link-local; None for an address that cannot be a destination."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        return None
    return parsed.is_loopback or parsed.is_link_local


def _local_names(path: str) -> dict[str, set[str]]:
    """Return the loopback and link-local addresses in the hosts file, by name."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            found.setdefault(name.lower(), set()).add(_plain(address))
    return found
