"""Endpoints of the egress allowlist from all sources, including the connections that the guard permitted."""

from __future__ import annotations

import ipaddress
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from .endpoints import Endpoint, EndpointSource, NotMaterialised, SourceEntry, endpoints_at, endpoints_of, without_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .endpoints import ObservedConnection, StillPermitted

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
        self._sources: tuple[EndpointSource, ...] = ()
        self._adding = threading.Lock()
        for source in sources:
            self.add(source)

    @property
    def sources(self) -> tuple[EndpointSource, ...]:
        """Registered sources."""
        return self._sources

    def add(self, source: EndpointSource) -> None:
        """Add a source, starting with the next build."""
        with self._adding:
            self._sources = (*self._sources, source)

    def build(self) -> Allowlist:
        """Return the current allowlist. Errors of sources do not propagate."""
        sources: dict[tuple[str, int, str], dict[str, None]] = {}
        addresses: dict[tuple[str, int, str], dict[str, None]] = {}
        patterns: dict[NotMaterialised, None] = {}
        failed: list[FailedSource] = []
        for source in self._sources:
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
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class _ObservedTarget(NamedTuple):
    kind: str
    subject: str
    host: str
    port: int


class _ObservedUse(NamedTuple):
    place: _ObservedTarget
    address: str
    """Empty if only the name is known."""


class ObservedEndpoints:
    """Source of the allowlist that the guard fills. Limited in size; unused entries expire."""

    name = "observed"

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
        self._until: OrderedDict[_ObservedUse, float] = OrderedDict()
        """In the order of their expiry."""
        self._shares: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._until)

    def observe(self, endpoint: ObservedConnection) -> bool:
        """Record a connection; return whether it goes to a new address."""
        place = _ObservedTarget(str(endpoint.subject_kind), str(endpoint.subject), endpoint.host, endpoint.port)
        new = False
        with self._lock:
            for address in addresses_of(endpoint) or ("",):
                new = self._note(_ObservedUse(place, address)) or new
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
                for endpoint in endpoints_at(place.host, place.port, addresses, source):
                    yield SourceEntry(endpoint, source)

    def next_expiry(self) -> float | None:
        """Return the seconds until the first expiry."""
        with self._lock:
            first = next(iter(self._until.values()), None)
        return None if first is None else max(0.0, first - self._clock())

    def _note(self, seen: _ObservedUse) -> bool:
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

    def _drop(self, seen: _ObservedUse) -> None:
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
        return (_LOOPBACK[host.version],)
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
