"""Access service with all its parts: store, events, snapshot, checks, administration and resumptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from .administration import Administration
from .events import open_bus
from .keyring import KeyFile
from .node import AccessNode
from .registrar import Limits
from .resumes import ResumeRunner, ResumeSettings
from .sealing import Sealer
from .service import AccessService, Unguarded
from .store import open_store
from .store.engines import CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from democrai_sandbox.policy import Subject

    from .interface import ResumeHandler, Surroundings


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
    limits: Limits = field(default_factory=Limits)
    resume: ResumeSettings = field(default_factory=ResumeSettings)


class Access:
    """Parts of the service, started and stopped together.

    Use it as a context manager, or call ``start`` and ``stop``.
    """

    def __init__(
        self,
        settings: AccessSettings,
        surroundings: Surroundings | None = None,
        handlers: Mapping[str, ResumeHandler] | None = None,
    ) -> None:
        """Open and validate the store and the key file. Nothing runs until ``start``."""
        around = surroundings or Unguarded()
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
