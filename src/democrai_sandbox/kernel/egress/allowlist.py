"""Collect the endpoints of the egress allowlist from all sources."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from .endpoints import endpoints_of, without_user
from .interface import Endpoint, NotMaterialised, Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .interface import SourceEntry

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

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Start with these sources; you can add more later."""
        self._sources: tuple[Source, ...] = ()
        self._adding = threading.Lock()
        for source in sources:
            self.add(source)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Registered sources."""
        return self._sources

    def add(self, source: Source) -> None:
        """Add a source, starting with the next build."""
        with self._adding:
            self._sources = (*self._sources, source)

    def build(self) -> Allowlist:
        """Return the current allowlist. Errors of sources do not propagate."""
        gathering = _Gathering()
        for source in self._sources:
            gathering.take(source)
        return gathering.result()


class _Gathering:
    def __init__(self) -> None:
        self._wanted: dict[tuple[str, int, str], dict[str, None]] = {}
        self._addresses: dict[tuple[str, int, str], dict[str, None]] = {}
        self._patterns: dict[NotMaterialised, None] = {}
        self._failed: list[FailedSource] = []

    def take(self, source: Source) -> None:
        """Add all entries of a source, or none if it fails."""
        try:
            found = [_materialised(entry) for entry in source.endpoints()]
        except Exception as error:  # noqa: BLE001 - a failed source must not affect the others
            text = f"{type(error).__name__}: {without_user(error)}"
            self._failed.append(FailedSource(source.name, text))
            return
        for item in found:
            if isinstance(item, NotMaterialised):
                self._patterns[item] = None
                continue
            for endpoint in item:
                self._wanted.setdefault(endpoint.key, {})[endpoint.source] = None
                self._addresses.setdefault(endpoint.key, {}).update(dict.fromkeys(endpoint.addresses))

    def result(self) -> Allowlist:
        endpoints = (
            Endpoint(
                *key, source=_joined(sources), addresses=tuple(sorted(list(self._addresses[key])[-_MOST_ADDRESSES:]))
            )
            for key, sources in self._wanted.items()
        )
        return Allowlist(
            tuple(sorted(endpoints, key=lambda endpoint: endpoint.key)),
            tuple(sorted(self._patterns)),
            tuple(self._failed),
        )


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
