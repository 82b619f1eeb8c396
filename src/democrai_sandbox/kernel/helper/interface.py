"""What the helper's process asks of the part that works on cgroups and packet filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .policy import Endpoint, Policy
    from .tables import Change, Family, Listing


class PacketFilter(Protocol):
    """The filter of one version of IP."""

    @property
    def family(self) -> Family:
        """Which one."""

    def read(self) -> Listing:
        """Return what of ours is there."""

    def commit(self, change: Change) -> None:
        """Bring a change into force, whole or not at all."""


class Enforcement(Protocol):
    """Keeps one application's rules in force. Not for several threads at once; whatever fails is ``Refused``."""

    def probe(self) -> list[str]:
        """Return warnings; refuse when nothing can be enforced on this machine at all."""

    def sweep(self) -> dict[str, Any]:
        """Remove what dead applications left, and take over what a killed predecessor did."""

    def apply(self, policy: Policy, pid: int) -> dict[str, Any]:
        """Put a policy in force, then move the process in; return the fields of the answer."""

    def refresh(self) -> dict[str, Any]:
        """Resolve the names again, and renew the rules when something changed."""

    def repair(self) -> bool:
        """Put the rules back where somebody has touched them; tell whether that was so."""

    def join(self, pid: int) -> dict[str, Any]:
        """Move one more process in."""

    def child(self, endpoints: Sequence[Endpoint]) -> tuple[dict[str, Any], int]:
        """Make a cgroup for a child; return the fields of the answer and its cgroup.procs, opened for writing."""

    def release(self, child: int) -> dict[str, Any]:
        """End what is left of a child and remove its cgroup."""

    def status(self) -> dict[str, Any]:
        """Say what is in force."""

    def clear(self) -> dict[str, Any]:
        """Remove the rules, and move the members out."""

    def remove(self) -> None:
        """End the members, then remove the rules and the cgroup."""
