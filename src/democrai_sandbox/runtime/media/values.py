"""Inputs and results of a fetch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.policy import AccessRule, Subject, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits of a host for sizes, times and numbers."""

    fetch_bytes: int = 32 * 1024 * 1024
    """Largest body that is held in memory; callers may set a lower limit."""
    stream_bytes: int = 2 * 1024 * 1024 * 1024
    """Largest body of a stream or the proxy."""
    header_bytes: int = 32 * 1024
    """Largest headers of a response, including interim responses and trailers."""
    fetch_seconds: float = 30.0
    """Timeout of a fetch from the first connection to the last byte, including all redirects."""
    stream_seconds: float = 3600.0
    connect_seconds: float = 10.0
    idle_seconds: float = 15.0
    """Longest time without data from the server."""
    unread_seconds: float = 120.0
    """Longest time that a stream may stay unread before its slot can be reassigned."""
    redirects: int = 5
    flows_per_subject: int = 8
    waiting_per_subject: int = 64
    """Maximum number of waiting fetches; further ones are refused immediately."""
    waiting_seconds: float = 10.0
    flows: int = 64
    """For all subjects together; each fetch uses a thread while it reads."""
    chunk_bytes: int = 256 * 1024
    cache_bytes: int = 64 * 1024 * 1024
    """Size of one module's cache; 0 turns it off."""
    cached_bytes: int = 8 * 1024 * 1024
    """Largest body that is cached."""


def rules_of(view: RawView) -> tuple[AccessRule, ...]:
    """Return the rules in force in a guard."""
    return tuple(rule for link in view.allow_chain for rule in link.rules)


class Asker(NamedTuple):
    """Subject and caller of a fetch. A tuple, so that it cannot change."""

    subject: Subject
    chain: tuple[str, ...]
    rules: tuple[AccessRule, ...]
    """Rules in force for it; targets they cover need no approval."""
    user_id: Any = None
    organization_id: Any = None
    session_key: Any = None
    view: RawView | None = None
    """View of its guard, if it asked from inside one."""

    @classmethod
    def of_view(cls, view: tuple[Any, ...]) -> Asker:
        """Return the subject that the core reports for a guarded caller."""
        raw = RawView(*view)
        kind, name = raw.actor
        return cls(Subject(SubjectKind(kind), name), raw.labels, rules_of(raw), *raw.identity, raw)

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
        """Return a module for which the host itself fetches, in an HTTP request of this user."""
        subject = Subject(SubjectKind.MODULE, name)
        return cls(subject, (str(subject),), tuple(rules), user_id, organization_id, session_key)

    @property
    def owner(self) -> tuple[object, ...]:
        """Identity that may continue a stream of this caller."""
        return (str(self.subject), self.user_id, self.organization_id, self.session_key)

    @property
    def module(self) -> str | None:
        """Name of the module whose data folder holds the cache: the innermost in the call chain."""
        for label in reversed(self.chain):
            kind, _, name = label.partition(":")
            if kind == SubjectKind.MODULE.value:
                return name
        return None


class MediaHead(NamedTuple):
    """Head of a response."""

    status: int
    headers: dict[str, str]
    """Headers that describe the content, with names in lower case; the others stay with the runtime."""
    url: str
    """Final URL after redirects."""
    session_only: bool
    """Whether a hop is approved only for this session, so that the response must not be cached."""


class MediaResult(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    """Headers that describe the content, with names in lower case."""
    body: bytes
    url: str
    """Final URL after redirects."""
    from_cache: bool
