"""The service as a whole: store, events, snapshot, checks, administration and resumptions, put together and started."""

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
    """What a host settles about the service."""

    database: str = field(repr=False)
    """``sqlite:///path`` or ``postgresql://...``."""
    key_file: str
    """Keys for what requests go on with; made when it is missing."""
    connections: int = CONNECTIONS
    """To the database, of this process, at most."""
    stream_type: str = "memory"
    """``network.stream.type``: memory, ipc or redis."""
    stream: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further settings of ``network.stream``."""
    poll_seconds: float = 1.0
    pending_lifetime: timedelta = timedelta(days=30)
    """How long a request waits for somebody to decide."""
    tidy_seconds: float = 10.0
    managers: tuple[Subject, ...] = ()
    limits: Limits = field(default_factory=Limits)
    resume: ResumeSettings = field(default_factory=ResumeSettings)


class Access:
    """The parts of the service, which live and end together. A context manager, or ``start`` and ``stop``."""

    def __init__(
        self,
        settings: AccessSettings,
        surroundings: Surroundings | None = None,
        handlers: Mapping[str, ResumeHandler] | None = None,
    ) -> None:
        """Open the store and the keys, and refuse what is wrong with them; nothing runs yet."""
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
            # One that is empty now may know actions later.
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
        """Load the decisions, follow changes, and go on with what was approved."""
        self.node.start()
        self.resumes.start()

    def stop(self) -> None:
        """Stop everything and let the store go. May be called twice."""
        self.resumes.stop()
        self.node.stop()
        self.store.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tidy(self) -> None:
        """End what has expired, now and then; every node does, and what one has ended the others leave alone."""
        if monotonic() - self._tidied >= self.settings.tidy_seconds:
            self._tidied = monotonic()
            self.administration.tidy(pending_lifetime=self.settings.pending_lifetime)
