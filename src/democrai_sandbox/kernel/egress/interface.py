"""Types shared by the modules of the egress allowlist."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.policy import AccessRule, NetworkTarget

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
class Source(Protocol):
    """Provider of targets: manifests, approvals, a registry. Any thread may read it, at each rebuild."""

    @property
    def name(self) -> str:
        """Name used in error reports."""
        ...

    def endpoints(self) -> Iterable[SourceEntry]:
        """Return the current targets."""
        ...


class Observation(Protocol):
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
