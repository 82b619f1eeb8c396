"""What goes into the allowlist and what the parts of its application side ask of each other."""

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
    """Whether a subject (kind, name) may connect to a host and port at this moment."""

_PROTOCOLS = ("tcp", "udp")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One concrete place that packets may go to."""

    host: str
    """A canonical name or address."""
    port: int
    protocol: str = "tcp"
    source: str = ""
    """Who wants it: ``module:reports``, ``config.database``; several are separated by commas."""
    addresses: tuple[str, ...] = ()
    """What the application itself has found the name to lead to; the helper adds what it finds."""

    def __post_init__(self) -> None:
        """Refuse what the helper would refuse: one bad entry must not cost all the others."""
        if not self.host or type(self.host) is not str:
            raise InvalidInputError.of(f"an endpoint needs a host, got {shown(self.host)}", pointer="/host")
        if type(self.port) is not int or not 1 <= self.port <= _HIGHEST_PORT:
            raise InvalidInputError.of(f"the port must be a number from 1 to {_HIGHEST_PORT}", pointer="/port")
        if self.protocol not in _PROTOCOLS:
            raise InvalidInputError.of(f"the protocol is tcp or udp, not {shown(self.protocol)}", pointer="/protocol")

    @property
    def key(self) -> tuple[str, int, str]:
        """What it allows, whoever wants it."""
        return self.host, self.port, self.protocol

    def as_dict(self) -> dict[str, object]:
        """Return it as the helper reads it."""
        entry: dict[str, object] = {"host": self.host, "port": self.port, "protocol": self.protocol}
        if self.source:
            entry["source"] = self.source
        if self.addresses:
            entry["addresses"] = list(self.addresses)
        return entry


class NotMaterialised(NamedTuple):
    """A target that no address and port can stand for; the guard goes on to decide about it, packet by packet none."""

    target: str
    source: str
    why: str


class SourceEntry(NamedTuple):
    """One target that a source wants reachable, and the name under which that is told."""

    target: str | AccessRule | NetworkTarget | Endpoint
    source: str


@runtime_checkable
class Source(Protocol):
    """Something that knows targets: manifests, approvals, a registry. Asked anew at each rebuild, by any thread."""

    @property
    def name(self) -> str:
        """How it is called when it fails."""
        ...

    def endpoints(self) -> Iterable[SourceEntry]:
        """Return what is wanted now."""
        ...


class Observation(Protocol):
    """A permitted connection that is about to be made, as the guard tells of it."""

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
    """The cgroup of one child: whoever writes ``0`` to the descriptor is in it. Give it back with ``release``."""

    descriptor: int
    id: int
    path: str

    def close(self) -> None:
        """Close the descriptor; the cgroup stays. May be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
