"""Interfaces of the kernel layer for the runtimes, and the rights of a process to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from democrai_sandbox.manifests.limits import NO_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.kernel import FlowLog
    from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder, ObservedEndpoints
    from democrai_sandbox.kernel.egress.endpoints import ChildCgroup, Endpoint, ObservedConnection
    from democrai_sandbox.kernel.spawn import SpawnedChild, SpawnOrder
    from democrai_sandbox.manifests import Limits
    from democrai_sandbox.policy import AccessRule


class Spawner(Protocol):
    """Starts confined programs: ``SpawnServer``."""

    def spawn(self, order: SpawnOrder) -> SpawnedChild:
        """Start one; raise ``OSError`` for a problem of the program, ``SpawnFailed`` if nothing can be started."""
        ...


class Egress(Protocol):
    """Controls which endpoints packets may reach: ``EgressControl``."""

    @property
    def builder(self) -> AllowlistBuilder:
        """Collects the entries of the sources."""
        ...

    @property
    def observed(self) -> ObservedEndpoints:
        """Source of the connections that the guard has permitted."""
        ...

    @property
    def policy_file(self) -> str:
        """File that the helper reads."""
        ...

    @property
    def socket(self) -> str:
        """Socket of the helper."""
        ...

    def observe(self, endpoint: ObservedConnection) -> None:
        """Permit a connection that is about to be opened, or raise."""
        ...

    def changed(self) -> None:
        """Schedule a new read of the sources. Thread-safe."""
        ...

    def refresh(self, reason: str, *, wait: bool = False) -> object:
        """Read the sources again, and optionally wait until they are in force."""
        ...

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, whose packets reach only these endpoints."""
        ...

    def release(self, child: ChildCgroup) -> None:
        """Stop the remaining processes in the cgroup of a child, and remove it."""
        ...


class KernelLayer(Protocol):
    """The part of the application's kernel layer that the runtimes need."""

    @property
    def spawn(self) -> Spawner | None:
        """Starts the children; None if they are started directly."""
        ...

    @property
    def egress(self) -> Egress | None:
        """Egress allowlist; None if it is disabled."""
        ...

    @property
    def abi(self) -> int:
        """Landlock ABI in use; 0 without Landlock."""
        ...

    @property
    def flow(self) -> FlowLog:
        """Debug log."""
        ...


class ProcessRights(NamedTuple):
    """Subject of a process to start, and its rights."""

    label: str
    """Label of the subject in call chains."""
    rules: tuple[AccessRule, ...] = ()
    """All its rights: declared and approved."""
    read: tuple[str, ...] = ()
    """Additional folders to read, also below protected paths: its code, its environment."""
    write: tuple[str, ...] = ()
    """Additional folders to write, also below protected paths: its data."""
    readable: tuple[str, ...] = ()
    """Additional paths that were checked for reading, unless they are protected."""
    execute: tuple[str, ...] = ()
    """Additional programs that were checked for execution."""
    written: tuple[str, ...] = ()
    """Further places where it may have created links: approved for writing, and not among the rules."""
    protected: tuple[str, ...] = ()
    """Paths that the host protects from all subjects, also below a folder that this one may use."""
    own_temp: bool = False
    """Whether it writes to a separate temp folder; then it cannot use the usual one."""
    limits: Limits = NO_LIMITS
    wall: bool = True
    """Whether the wall-clock limit applies to the whole process."""
