"""What the runtimes need of the kernel layer, and how they say whose process is to be started."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from democrai_sandbox.manifests.limits import NO_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.kernel import FlowLog
    from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder
    from democrai_sandbox.kernel.egress.interface import ChildCgroup, Endpoint, Observation
    from democrai_sandbox.kernel.egress.observed import ObservedEndpoints
    from democrai_sandbox.kernel.spawn import SpawnedChild, SpawnOrder
    from democrai_sandbox.manifests import Limits
    from democrai_sandbox.policy import AccessRule


class Spawner(Protocol):
    """Starts programs, confined as ordered: ``SpawnServer``."""

    def spawn(self, order: SpawnOrder) -> SpawnedChild:
        """Start one; ``OSError`` for what is wrong with the program, ``SpawnFailed`` when nothing can be started."""
        ...


class Egress(Protocol):
    """Follows what packets may go to: ``EgressControl``."""

    @property
    def builder(self) -> AllowlistBuilder:
        """Gathers what the sources want."""
        ...

    @property
    def observed(self) -> ObservedEndpoints:
        """The source of what the guard has permitted."""
        ...

    @property
    def policy_file(self) -> str:
        """The file that the helper reads."""
        ...

    @property
    def socket(self) -> str:
        """Where the helper is spoken to."""
        ...

    def observe(self, endpoint: Observation) -> None:
        """Let a connection through that is about to be made, or raise."""
        ...

    def changed(self) -> None:
        """Look at the sources again soon. From any thread."""
        ...

    def refresh(self, reason: str, *, wait: bool = False) -> object:
        """Look at the sources again, and wait until that is in force if asked to."""
        ...

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, out of which packets go to these endpoints only."""
        ...

    def release(self, child: ChildCgroup) -> None:
        """End what is left in the cgroup of a child, and remove it."""
        ...


class KernelLayer(Protocol):
    """The kernel layer of this application, as far as the runtimes need it."""

    @property
    def spawn(self) -> Spawner | None:
        """Starts the children; None where they are started directly."""
        ...

    @property
    def egress(self) -> Egress | None:
        """The allowlist; None where there is none."""
        ...

    @property
    def abi(self) -> int:
        """The Landlock ABI in use; 0 when there is none."""
        ...

    @property
    def flow(self) -> FlowLog:
        """Where the flow is told."""
        ...


class Whose(NamedTuple):
    """Whose process is to be started, and what it may do."""

    label: str
    """The subject, as chains name it."""
    rules: tuple[AccessRule, ...] = ()
    """All that it may do: declared and approved."""
    read: tuple[str, ...] = ()
    """What the runtime gives it besides, also below what is protected: its code, its environment."""
    write: tuple[str, ...] = ()
    """Likewise: its data."""
    readable: tuple[str, ...] = ()
    """What was checked for it to read besides its rules, as far as it is not protected."""
    execute: tuple[str, ...] = ()
    """Programs that were checked for it, besides those of the system."""
    written: tuple[str, ...] = ()
    """Where it may have put links besides: what was approved for it to write, and is not among the rules."""
    protected: tuple[str, ...] = ()
    """What the host keeps from all subjects, also where it lies below something that is open to this one."""
    own_temp: bool = False
    """Whether a temp folder of its own is among what it writes: then the usual one is not open to it."""
    limits: Limits = NO_LIMITS
    wall: bool = True
    """Whether the limit of time by the clock is for the whole process."""
