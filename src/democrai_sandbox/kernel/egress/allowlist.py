"""All that packets may go to, gathered from the sources that know of it."""

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
"""For one endpoint, which is what the helper takes: some names lead to ever new addresses."""


class FailedSource(NamedTuple):
    """A source that could not be read: nothing of it is let through until it can."""

    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Allowlist:
    """What is let through, what cannot be written as addresses and ports, and what could not be read."""

    endpoints: tuple[Endpoint, ...] = ()
    """Sorted, each host, port and protocol once."""
    not_materialised: tuple[NotMaterialised, ...] = ()
    failed_sources: tuple[FailedSource, ...] = ()

    def pairs(self) -> frozenset[tuple[str, int]]:
        """Return the addresses and ports that are known to be open for both protocols, without asking a resolver."""
        open_for: dict[tuple[str, int], set[str]] = {}
        for endpoint in self.endpoints:
            for address in (endpoint.host, *endpoint.addresses):
                open_for.setdefault((address, endpoint.port), set()).add(endpoint.protocol)
        return frozenset(pair for pair, protocols in open_for.items() if len(protocols) > 1)


class AllowlistBuilder:
    """Asks every source, each time anew. A source that fails costs what it would have added, and no more."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Begin with these; others may come later."""
        self._sources: tuple[Source, ...] = ()
        self._adding = threading.Lock()
        for source in sources:
            self.add(source)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Those that are asked."""
        return self._sources

    def add(self, source: Source) -> None:
        """Ask one more from the next time on."""
        with self._adding:
            self._sources = (*self._sources, source)

    def build(self) -> Allowlist:
        """Return what is wanted now. Never raises because of a source."""
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
        """Add what a source wants; all of it or, when it fails halfway, nothing."""
        try:
            found = [_materialised(entry) for entry in source.endpoints()]
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are not to be cut off with it
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
