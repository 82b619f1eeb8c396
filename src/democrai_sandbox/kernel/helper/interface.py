"""Interfaces between the helper's process and its work on cgroups and packet filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .policy import Endpoint, Policy
    from .tables import Change, Family, Listing


class PacketFilter(Protocol):
    """Packet filter of one IP version."""

    @property
    def family(self) -> Family:
        """IP version."""

    def read(self) -> Listing:
        """Return our chains and jumps."""

    def commit(self, change: Change) -> None:
        """Apply a change atomically."""


class Enforcement(Protocol):
    """Enforcer of one application's rules. Not thread-safe; failures raise ``Refused``."""

    def probe(self) -> list[str]:
        """Return warnings; raise if this machine cannot enforce anything."""

    def sweep(self) -> dict[str, Any]:
        """Remove leftovers of dead applications, and take over the rules of a killed predecessor."""

    def apply(self, policy: Policy, pid: int) -> dict[str, Any]:
        """Apply a policy, then move the process in; return the fields of the answer."""

    def refresh(self) -> dict[str, Any]:
        """Resolve the names again, and renew the rules if they changed."""

    def repair(self) -> bool:
        """Restore rules that another program modified; return whether that was necessary."""

    def join(self, pid: int) -> dict[str, Any]:
        """Move another process in."""

    def child(self, endpoints: Sequence[Endpoint]) -> tuple[dict[str, Any], int]:
        """Create a cgroup for a child; return the fields of the answer and its cgroup.procs, opened for writing."""

    def release(self, child: int) -> dict[str, Any]:
        """Kill the remaining processes of a child and remove its cgroup."""

    def status(self) -> dict[str, Any]:
        """Return the measured state."""

    def clear(self) -> dict[str, Any]:
        """Remove the rules, and move the members out."""

    def remove(self) -> None:
        """Kill the members, then remove the rules and the cgroup."""
