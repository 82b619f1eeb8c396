"""What goes into a fetch and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard.views import RawView
from democrai_sandbox.policy import Subject, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.policy import AccessRule


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What a host settles about sizes, times and numbers."""

    fetch_bytes: int = 32 * 1024 * 1024
    """The largest body that is held in memory as a whole; who fetches may ask for less."""
    stream_bytes: int = 2 * 1024 * 1024 * 1024
    """The largest body that passes through a stream or the proxy."""
    header_bytes: int = 32 * 1024
    """The largest head of an answer, with what may come before it and after the body."""
    fetch_seconds: float = 30.0
    """How long a fetch may take from the first connection to the last byte, all redirects included."""
    stream_seconds: float = 3600.0
    connect_seconds: float = 10.0
    idle_seconds: float = 15.0
    """How long a server may send nothing."""
    unread_seconds: float = 120.0
    """How long a stream may go unread before its place can be given to another."""
    redirects: int = 5
    flows_per_subject: int = 8
    waiting_per_subject: int = 64
    """How many more may wait for one of those to end; what comes on top is turned away at once."""
    waiting_seconds: float = 10.0
    flows: int = 64
    """Of all subjects together: each takes a thread while it reads."""
    chunk_bytes: int = 256 * 1024
    cache_bytes: int = 64 * 1024 * 1024
    """Of one module's cache; 0 turns it off."""
    cached_bytes: int = 8 * 1024 * 1024
    """The largest body that is kept."""


def rules_of(view: RawView) -> tuple[AccessRule, ...]:
    """Return the entries in force in a guard."""
    return tuple(rule for link in view.allow_chain for rule in link.rules)


class Asker(NamedTuple):
    """The subject for which something is fetched, and on whose behalf. A tuple: nobody can change it meanwhile."""

    subject: Subject
    chain: tuple[str, ...]
    rules: tuple[AccessRule, ...]
    """The entries in force for it: what they cover needs no approval."""
    user_id: Any = None
    organization_id: Any = None
    session_key: Any = None
    view: RawView | None = None
    """Of its guard, where it asked through one."""

    @classmethod
    def of_view(cls, view: tuple[Any, ...]) -> Asker:
        """Return the subject that the core says is guarded where a door was called."""
        raw = RawView(*view)
        kind, name = raw.actor
        subject = Subject(SubjectKind(kind), name)
        return cls(subject, raw.labels, rules_of(raw), raw.user_id, raw.organization_id, raw.session_key, raw)

    @classmethod
    def of_module(
        cls,
        name: str,
        rules: Iterable[AccessRule] = (),
        *,
        user_id: Any = None,
        organization_id: Any = None,
        session_key: Any = None,
    ) -> Asker:
        """Return a module for which the host itself fetches, in a request of this user."""
        subject = Subject(SubjectKind.MODULE, name)
        return cls(subject, (str(subject),), tuple(rules), user_id, organization_id, session_key)

    @property
    def owner(self) -> tuple[object, ...]:
        """Who may go on with what this asker began."""
        return (str(self.subject), self.user_id, self.organization_id, self.session_key)

    @property
    def module(self) -> str | None:
        """The name of the module in whose data the cache lies: the innermost of the chain."""
        for label in reversed(self.chain):
            kind, _, name = label.partition(":")
            if kind == SubjectKind.MODULE.value:
                return name
        return None


class MediaHead(NamedTuple):
    """What an answer begins with."""

    status: int
    headers: dict[str, str]
    """Those that describe the content, with names in lower case; the others stay with the runtime."""
    url: str
    """Where it came from in the end, after redirects."""
    session_only: bool
    """Part of the way is approved for this session only: what came is not to be kept."""


class MediaResult(NamedTuple):
    """An answer as a whole."""

    status: int
    headers: dict[str, str]
    body: bytes
    url: str
    from_cache: bool
