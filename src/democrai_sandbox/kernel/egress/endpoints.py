"""Endpoints of the packet filter, and their computation from rules and configured addresses."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from democrai_sandbox.policy import (
    DEFAULT_PORTS,
    AccessRule,
    InvalidInputError,
    NetworkTarget,
    ResourceType,
    TargetKind,
    parse_declaration,
)
from democrai_sandbox.policy.hosts import LOOPBACK, LOOPBACK_ADDRESSES, host_key
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
            raise InvalidInputError.of(f"host must be a host name or address, got {shown(self.host)}", pointer="/host")
        if type(self.port) is not int or not 1 <= self.port <= _HIGHEST_PORT:
            raise InvalidInputError.of(f"port must be a number from 1 to {_HIGHEST_PORT}", pointer="/port")
        if self.protocol not in _PROTOCOLS:
            raise InvalidInputError.of(f"protocol must be tcp or udp, got {shown(self.protocol)}", pointer="/protocol")

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

    target: str | AccessRule | NetworkTarget | Endpoint
    source: str


@runtime_checkable
class EndpointSource(Protocol):
    """Provider of targets: manifests, approvals, a registry. Any thread may read it, at each rebuild."""

    @property
    def name(self) -> str:
        """Name used in error reports."""
        ...

    def endpoints(self) -> Iterable[SourceEntry]:
        """Return the current targets."""
        ...


class ObservedConnection(Protocol):
    """Permitted connection that is about to be opened, as reported by the guard."""

    @property
    def subject(self) -> str: ...  # noqa: D102 - these repeat the guard's value
    @property
    def subject_kind(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def addresses(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def port(self) -> int: ...  # noqa: D102


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


BOTH = ("tcp", "udp")
_TCP = ("tcp",)
_LOOPBACK = tuple(map(str, LOOPBACK_ADDRESSES))
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*)")
_USER = re.compile(r"(?<=://)[^/?#]*@")
_LONGEST_SHOWN = 200

_WHY = {
    TargetKind.WILDCARD: "a pattern has no fixed addresses; each permitted host is added on its first connection",
    TargetKind.NETWORK: "a range is not opened as a whole; each address is added on its first connection",
    TargetKind.UNIX: "the packet filter does not apply to unix sockets",
}
_NO_PORT = "it has no port; each port is added on its first connection"


def endpoints_of(target: str | AccessRule | NetworkTarget, source: str) -> tuple[Endpoint, ...] | NotMaterialised:
    """Return the endpoints that the packet filter must permit for a target.

    ``host:port`` covers both protocols, a URL covers TCP. Only scheme, host and port of a configured URL are used, so
    passwords in it are not stored. Rules about other resource types give no endpoints.
    """
    if isinstance(target, AccessRule):
        if target.resource_type is not ResourceType.NETWORK:
            return ()
        target = target.normalized_target
    if isinstance(target, NetworkTarget):
        return _of_parsed(target, source)
    try:
        place = _place(target)
        return _of_parsed(_parsed(place), source) if place else ()
    except InvalidInputError as error:
        why = "; ".join(problem.message for problem in error.problems)
        return NotMaterialised(without_user(target), source, without_user(why))


def endpoints_at(host: str, port: int, addresses: Iterable[str], source: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of a host with known addresses, for both protocols."""
    return _endpoints(host, port, BOTH, source, tuple(addresses))


def without_user(text: object) -> str:
    """Return a target for display: without user and password, and shortened."""
    return _USER.sub("", str(text))[:_LONGEST_SHOWN]


def _of_parsed(target: NetworkTarget, source: str) -> tuple[Endpoint, ...] | NotMaterialised:
    why = _WHY.get(target.kind)
    if why is not None:
        return NotMaterialised(target.normalized, source, why)
    if target.port is None:
        return NotMaterialised(target.normalized, source, _NO_PORT)
    protocols = _TCP if target.kind is TargetKind.URL else BOTH
    return _endpoints(target.host, target.port, protocols, source, ())


def _endpoints(
    host: str, port: int, protocols: tuple[str, ...], source: str, addresses: tuple[str, ...]
) -> tuple[Endpoint, ...]:
    if host_key(host) == LOOPBACK:
        # The matcher treats three spellings as one host, so they are one host here, independent of the hosts file.
        host, addresses = LOOPBACK, _LOOPBACK
    return tuple(Endpoint(host, port, protocol, source, addresses) for protocol in protocols)


@lru_cache(maxsize=8192)
def _parsed(place: str) -> NetworkTarget:
    """Parse a target; cached, because each rebuild parses the same targets."""
    return parse_declaration(place)


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
    known = next((part for part in (scheme, last, first) if part in DEFAULT_PORTS), scheme)
    return f"{known}://{host}" if host else ""
