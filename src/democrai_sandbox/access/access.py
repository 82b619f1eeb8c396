"""Access service with all its parts, and its asynchronous form."""

from __future__ import annotations

from asyncio import to_thread
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from democrai_sandbox.access.store.database import CONNECTIONS

from .administration import Administration
from .caller import UnguardedHost
from .checks import AccessService, PendingLimits
from .encryption import Sealer
from .events import open_bus
from .keyring import KeyFile
from .node import AccessNode
from .resumptions import ResumeRunner, ResumeSettings
from .store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Self

    from democrai_sandbox.policy import Subject

    from .caller import HostEnvironment
    from .resumptions import ResumeHandler


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Settings of the access service."""

    database: str = field(repr=False)
    """``sqlite:///path`` or ``postgresql://...``."""
    key_file: str
    """File with the keys that encrypt resume contexts; created if it is missing."""
    connections: int = CONNECTIONS
    """Maximum number of database connections of this process."""
    stream_type: str = "memory"
    """``network.stream.type``: memory, ipc or redis."""
    stream: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Other settings of ``network.stream``."""
    poll_seconds: float = 1.0
    pending_lifetime: timedelta = timedelta(days=30)
    """Time after which an unanswered request is dropped."""
    tidy_seconds: float = 10.0
    managers: tuple[Subject, ...] = ()
    limits: PendingLimits = field(default_factory=PendingLimits)
    resume: ResumeSettings = field(default_factory=ResumeSettings)


class Access:
    """Parts of the service, started and stopped together, also as a context manager."""

    def __init__(
        self,
        settings: AccessSettings,
        surroundings: HostEnvironment | None = None,
        handlers: Mapping[str, ResumeHandler] | None = None,
    ) -> None:
        """Open and validate the store and the key file. Nothing runs until ``start``."""
        around = surroundings or UnguardedHost()
        self.keys = KeyFile(settings.key_file)
        sealer = Sealer(self.keys.ring)
        self.settings = settings
        self.store = open_store(settings.database, connections=settings.connections)
        self.bus = open_bus(settings.stream_type, **settings.stream)
        self.node = AccessNode(self.store, self.bus, poll_seconds=settings.poll_seconds)
        self.service = AccessService(self.node, around, seal=sealer.seal, limits=settings.limits)
        self.administration = Administration(self.node, around, managers=settings.managers)
        self.resumes = ResumeRunner(
            # Keep the caller's mapping even if it is empty, because actions may be added later.
            self.store,
            sealer,
            {} if handlers is None else handlers,
            node=self.bus.node,
            clock=self.node.clock,
            settings=settings.resume,
        )
        self._tidied = monotonic()
        self.node.on_change(self.resumes.poke)
        self.node.add_chore(self._tidy)

    def start(self) -> None:
        """Load the decisions, follow changes, and run the resume actions of approved requests."""
        self.node.start()
        self.resumes.start()

    def stop(self) -> None:
        """Stop all parts and close the store. May be called twice."""
        self.resumes.stop()
        self.node.stop()
        self.store.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tidy(self) -> None:
        """End expired decisions periodically. Every node does this; the store ends each decision once."""
        if monotonic() - self._tidied >= self.settings.tidy_seconds:
            self._tidied = monotonic()
            self.administration.tidy(pending_lifetime=self.settings.pending_lifetime)


P = ParamSpec("P")
T = TypeVar("T")
_Method: TypeAlias = "Callable[Concatenate[AsyncAccess, P], Coroutine[Any, Any, T]]"


def _in_thread(part: str, method: Callable[Concatenate[Any, P], T]) -> _Method[P, T]:
    @wraps(method)
    async def call(self: AsyncAccess, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await to_thread(method, getattr(self, part), *args, **kwargs)

    return call


@dataclass(frozen=True)
class AsyncAccess:
    """Checks and decisions as coroutines. The request context is copied to the thread, so the identity is kept."""

    service: AccessService
    administration: Administration

    check_external_access = _in_thread("service", AccessService.check_external_access)
    require_external_access = _in_thread("service", AccessService.require_external_access)
    approve_for_session = _in_thread("administration", Administration.approve_for_session)
    approve_permanently = _in_thread("administration", Administration.approve_permanently)
    deny_external_access = _in_thread("administration", Administration.deny_external_access)
    revoke = _in_thread("administration", Administration.revoke)
    end_session = _in_thread("administration", Administration.end_session)
    pending_requests = _in_thread("administration", Administration.pending_requests)
    approvals = _in_thread("administration", Administration.approvals)
    denials = _in_thread("administration", Administration.denials)
    history = _in_thread("administration", Administration.history)
