"""Endpoints of the egress allowlist: from rules, configured addresses, and connections that the guard permitted."""

from __future__ import annotations

import ipaddress
import os
import re
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.policy.hosts import LOOPBACK, LOOPBACK_ADDRESSES, host_key
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    StillPermitted = Callable[[str, str, str, int], bool]
    """Whether a subject (kind, name) may connect to a host and port now."""

_PROTOCOLS = ("tcp", "udp")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Host, port and protocol that packets may go to."""

    host: str
    """Canonical name or address."""
    port: int
    protocol: str = "tcp"
    source: str = ""
    """Origins, separated by commas: ``module:reports``, ``config.database``."""
    addresses: tuple[str, ...] = ()
    """Addresses that the application has resolved; the helper adds its results."""

    def __post_init__(self) -> None:
        """Reject values that the helper rejects, so that one bad entry does not invalidate the whole list."""
        if not self.host or type(self.host) is not str:
            raise policy.InvalidInputError.of(
                f"host must be a host name or address, got {shown(self.host)}", pointer="/host"
            )
        if type(self.port) is not int or not 1 <= self.port <= _HIGHEST_PORT:
            raise policy.InvalidInputError.of(f"port must be a number from 1 to {_HIGHEST_PORT}", pointer="/port")
        if self.protocol not in _PROTOCOLS:
            raise policy.InvalidInputError.of(
                f"protocol must be tcp or udp, got {shown(self.protocol)}", pointer="/protocol"
            )

    @property
    def key(self) -> tuple[str, int, str]:
        """Identity of the endpoint, without its origins."""
        return self.host, self.port, self.protocol

    def as_dict(self) -> dict[str, object]:
        """Return the endpoint in the format of the policy file."""
        entry: dict[str, object] = {"host": self.host, "port": self.port, "protocol": self.protocol}
        if self.source:
            entry["source"] = self.source
        if self.addresses:
            entry["addresses"] = list(self.addresses)
        return entry


class NotMaterialised(NamedTuple):
    """Target without a fixed address and port: the guard decides about it, but the packet filter has no entry."""

    target: str
    source: str
    why: str


class SourceEntry(NamedTuple):
    """Target of a source, with the origin to report."""

    target: str | policy.AccessRule | policy.NetworkTarget | Endpoint
    source: str


class EndpointSource(NamedTuple):
    """Provider of targets: manifests, approvals, a registry. Any thread may read it, at each rebuild."""

    name: str
    """Name used in error reports."""
    endpoints: Callable[[], Iterable[SourceEntry]]


class ObservedConnection(NamedTuple):
    """Permitted connection that is about to be opened, as reported by the guard."""

    subject: str
    subject_kind: str
    host: str
    addresses: tuple[str, ...]
    port: int


@dataclass(slots=True)
class ChildCgroup:
    """Cgroup of one child. A process that writes ``0`` to the descriptor joins it. Return it with ``release``."""

    descriptor: int
    id: int
    path: str

    def close(self) -> None:
        """Close the descriptor; the cgroup stays. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_TCP = ("tcp",)
_LOOPBACK = tuple(map(str, LOOPBACK_ADDRESSES))
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*)")
_USER = re.compile(r"(?<=://)[^/?#]*@")
_LONGEST_SHOWN = 200

_WHY = {
    policy.TargetKind.WILDCARD: (
        "a pattern has no fixed addresses; each permitted host is added on its first connection"
    ),
    policy.TargetKind.NETWORK: "a range is not opened as a whole; each address is added on its first connection",
    policy.TargetKind.UNIX: "the packet filter does not apply to unix sockets",
}
_NO_PORT = "it has no port; each port is added on its first connection"


def endpoints_of(
    target: str | policy.AccessRule | policy.NetworkTarget, source: str
) -> tuple[Endpoint, ...] | NotMaterialised:
    """Return the endpoints that the packet filter must permit for a target.

    ``host:port`` covers both protocols, a URL covers TCP. Only scheme, host and port of a configured URL are used, so
    passwords in it are not stored. Rules about other resource types give no endpoints.
    """
    if isinstance(target, policy.AccessRule):
        if target.resource_type is not policy.ResourceType.NETWORK:
            return ()
        target = target.normalized_target
    if isinstance(target, policy.NetworkTarget):
        return _of_parsed(target, source)
    try:
        place = _place(target)
        return _of_parsed(_parsed(place), source) if place else ()
    except policy.InvalidInputError as error:
        why = "; ".join(problem.message for problem in error.problems)
        return NotMaterialised(without_user(target), source, without_user(why))


def without_user(text: object) -> str:
    """Return a target for display: without user and password, and shortened."""
    return _USER.sub("", str(text))[:_LONGEST_SHOWN]


def _of_parsed(target: policy.NetworkTarget, source: str) -> tuple[Endpoint, ...] | NotMaterialised:
    why = _WHY.get(target.kind)
    if why is not None:
        return NotMaterialised(target.normalized, source, why)
    if target.port is None:
        return NotMaterialised(target.normalized, source, _NO_PORT)
    protocols = _TCP if target.kind is policy.TargetKind.URL else _PROTOCOLS
    return _endpoints(target.host, target.port, protocols, source, ())


def _endpoints(
    host: str, port: int, protocols: tuple[str, ...], source: str, addresses: tuple[str, ...]
) -> tuple[Endpoint, ...]:
    if host_key(host) == LOOPBACK:
        # The matcher treats three spellings as one host, so they are one host here, independent of the hosts file.
        host, addresses = LOOPBACK, _LOOPBACK
    return tuple(Endpoint(host, port, protocol, source, addresses) for protocol in protocols)


@lru_cache(maxsize=8192)
def _parsed(place: str) -> policy.NetworkTarget:
    """Parse a target; cached, because each rebuild parses the same targets."""
    return policy.parse_declaration(place)


def _place(text: str) -> str:
    """Return ``scheme://host:port`` of a URL, empty text for one without a host, and other text unchanged."""
    match = _URL.match(text) if type(text) is str else None
    if match is None:
        return text
    scheme, authority = match.groups()
    host = authority.rpartition("@")[2]
    # The port depends on one part of "postgresql+driver" or "git+ssh".
    scheme = scheme.lower()
    first, _, last = scheme.partition("+")
    known = next((part for part in (scheme, last, first) if part in policy.DEFAULT_PORTS), scheme)
    return f"{known}://{host}" if host else ""


_LONGEST_SOURCE = 200
_MOST_ADDRESSES = 256
"""Addresses per endpoint, the helper's limit: some names resolve to ever new addresses."""


class FailedSource(NamedTuple):
    """Source that could not be read. It contributes nothing until it can be read again."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Allowed endpoints, targets without addresses and ports, and failed sources."""

    endpoints: tuple[Endpoint, ...] = ()
    """Sorted; each host, port and protocol occurs once."""
    not_materialised: tuple[NotMaterialised, ...] = ()
    failed_sources: tuple[FailedSource, ...] = ()

    def pairs(self) -> frozenset[tuple[str, int]]:
        """Return the known addresses and ports that are open for both protocols, without resolving names."""
        open_for: dict[tuple[str, int], set[str]] = {}
        for endpoint in self.endpoints:
            for address in (endpoint.host, *endpoint.addresses):
                open_for.setdefault((address, endpoint.port), set()).add(endpoint.protocol)
        return frozenset(pair for pair, protocols in open_for.items() if len(protocols) > 1)


class AllowlistBuilder:
    """Builder of the allowlist, which reads every source at each build. A failed source only loses its own entries."""

    def __init__(self, sources: Iterable[EndpointSource] = ()) -> None:
        self.sources = tuple(sources)
        self._adding = threading.Lock()

    def add(self, source: EndpointSource) -> None:
        """Add a source, starting with the next build."""
        with self._adding:
            self.sources = (*self.sources, source)

    def build(self) -> Allowlist:
        """Return the current allowlist. Errors of sources do not propagate."""
        sources: dict[tuple[str, int, str], dict[str, None]] = {}
        addresses: dict[tuple[str, int, str], dict[str, None]] = {}
        patterns: dict[NotMaterialised, None] = {}
        failed: list[FailedSource] = []
        for source in self.sources:
            try:
                found = [_materialised(entry) for entry in source.endpoints()]
            except Exception as error:  # noqa: BLE001 - a failed source must not affect the others
                failed.append(FailedSource(source.name, f"{type(error).__name__}: {without_user(error)}"))
                continue
            for item in found:
                if isinstance(item, NotMaterialised):
                    patterns[item] = None
                    continue
                for endpoint in item:
                    sources.setdefault(endpoint.key, {})[endpoint.source] = None
                    addresses.setdefault(endpoint.key, {}).update(dict.fromkeys(endpoint.addresses))
        endpoints = tuple(
            Endpoint(*key, source=_joined(names), addresses=tuple(sorted(list(addresses[key])[-_MOST_ADDRESSES:])))
            for key, names in sorted(sources.items())
        )
        return Allowlist(endpoints, tuple(sorted(patterns)), tuple(failed))


def _materialised(entry: SourceEntry) -> tuple[Endpoint, ...] | NotMaterialised:
    target, source = entry
    if isinstance(target, Endpoint):
        return (target if target.source else replace(target, source=source),)
    return endpoints_of(target, source)


def _joined(sources: Iterable[str]) -> str:
    names = sorted(filter(None, sources))
    text = ",".join(names)
    if len(text) <= _LONGEST_SOURCE:
        return text
    kept = text[:_LONGEST_SOURCE].rpartition(",")[0] or text[:_LONGEST_SOURCE]
    return f"{kept},..."


EXPIRY = 600.0
"""Seconds that an address stays after its last connection."""
CAPACITY = 4096
"""Maximum number of addresses. One subject may use a quarter, so that it cannot displace the others."""
_SHARES = 4
_LOOPBACK_OF_VERSION = {4: "127.0.0.1", 6: "::1"}


class _ObservedTarget(NamedTuple):
    kind: str
    subject: str
    host: str
    port: int


class _ObservedAddress(NamedTuple):
    place: _ObservedTarget
    address: str
    """Empty if only the name is known."""


class ObservedEndpoints:
    """Source of the allowlist that the guard fills. Limited in size; unused entries expire."""

    def __init__(
        self,
        *,
        expiry: float = EXPIRY,
        capacity: int = CAPACITY,
        still_permitted: StillPermitted | None = None,
        in_use: Callable[[], frozenset[tuple[str, int]]] = frozenset,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Call ``still_permitted`` for each endpoint at each rebuild, and ``in_use`` for the open connections.

        Without ``still_permitted``, a permission counts until it expires.
        """
        self.still_permitted = still_permitted
        self._expiry = expiry
        self._capacity = capacity
        self._in_use = in_use
        self._clock = clock
        self._lock = threading.Lock()
        self._until: OrderedDict[_ObservedAddress, float] = OrderedDict()
        """In the order of their expiry."""
        self._shares: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._until)

    def observe(self, endpoint: ObservedConnection) -> bool:
        """Record a connection; return whether it goes to a new address."""
        place = _ObservedTarget(endpoint.subject_kind, endpoint.subject, endpoint.host, endpoint.port)
        new = False
        with self._lock:
            for address in addresses_of(endpoint) or ("",):
                new = self._note(_ObservedAddress(place, address)) or new
        return new

    def endpoints(self) -> Iterator[SourceEntry]:
        """Yield observed endpoints that have not expired and are permitted now.

        An endpoint that is not permitted now is skipped but kept, because the guard does not report the same endpoint
        twice within a minute. If permitted again, it is open immediately.
        """
        self._expire()
        found: dict[_ObservedTarget, list[str]] = {}
        with self._lock:
            for place, address in self._until:
                found.setdefault(place, []).extend(filter(None, (address,)))
        permitted = self.still_permitted
        for place, addresses in found.items():
            if permitted is None or permitted(*place):
                source = f"observed:{place.kind}:{place.subject}"
                for endpoint in _endpoints(place.host, place.port, _PROTOCOLS, source, tuple(addresses)):
                    yield SourceEntry(endpoint, source)

    def next_expiry(self) -> float | None:
        """Return the seconds until the first expiry."""
        with self._lock:
            first = next(iter(self._until.values()), None)
        return None if first is None else max(0.0, first - self._clock())

    def _note(self, seen: _ObservedAddress) -> bool:
        new = seen not in self._until
        self._until[seen] = self._clock() + self._expiry
        self._until.move_to_end(seen)
        if new:
            self._shares[seen.place[:2]] += 1
            self._make_room(seen.place[:2])
        return new

    def _make_room(self, subject: tuple[str, str]) -> None:
        if self._shares[subject] > max(1, self._capacity // _SHARES):
            self._drop(next(seen for seen in self._until if seen.place[:2] == subject))
        if len(self._until) > self._capacity:
            self._drop(next(iter(self._until)))

    def _drop(self, seen: _ObservedAddress) -> None:
        del self._until[seen]
        self._shares[seen.place[:2]] -= 1
        if not self._shares[seen.place[:2]]:
            del self._shares[seen.place[:2]]

    def _expire(self) -> None:
        """Remove expired endpoints, except those with open connections, which the removal would interrupt."""
        now = self._clock()
        with self._lock:
            over = [seen for seen, until in self._until.items() if until <= now]
        if not over:
            return
        in_use = self._in_use()
        with self._lock:
            for seen in over:
                if self._until.get(seen, now + 1) > now:
                    continue  # observed again in the meantime, or removed
                if (seen.address, seen.place.port) in in_use:
                    self._note(seen)
                else:
                    self._drop(seen)


def addresses_of(endpoint: ObservedConnection) -> tuple[str, ...]:
    """Return the canonical addresses of a connection, as they occur in packets."""
    host = _address(endpoint.host)
    if host is not None and host.is_unspecified:
        # A connection to the unspecified address goes to this machine.
        return (_LOOPBACK_OF_VERSION[host.version],)
    found = (host, *map(_address, endpoint.addresses))
    # Name servers return the unspecified address for names that they block.
    return tuple(dict.fromkeys(str(address) for address in found if address is not None and not address.is_unspecified))


@lru_cache(maxsize=4096)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
