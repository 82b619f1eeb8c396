"""The one way in which the clients ask: a URL from its parts, a ticket held open, a denial that comes out as itself.

The core is the authority: it checks each ticket, and each request again on the wire. What is here only makes the
refusal come early, with the method and URL the caller meant, and before a client makes an error of its own of it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from democrai_sandbox.guard import _core
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

_HTTPS_PORT = 443
_HTTP_PORT = 80
_SECURE = frozenset({"https", "wss"})
_SCHEMES = frozenset({"http", "https", "ws", "wss"})
_LONGEST_CHAIN = 64

UNGUARDED: AbstractContextManager[Any] = nullcontext()


class Permitted:
    """A request under way: holds its ticket open, and lets a denial out as itself, not as the client's own error."""

    __slots__ = ("_handled", "_ticket")

    def __init__(self, ticket: AbstractContextManager[Any] = UNGUARDED) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        # An error that the caller is handling already is no part of this request, though it will be in the chain.
        self._handled = sys.exception()
        self._ticket.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticket.__exit__(kind, error, trace)
        if isinstance(error, Exception):
            denial = unwrap(error, self._handled)
            if denial is not None and denial is not error:
                raise_alone(denial)


def checked(method: str, url: str) -> AbstractContextManager[Any]:
    """Return a context in which this request may open its connection; raise when it is not permitted."""
    ticket = _core.request(method, url)
    return UNGUARDED if ticket is None else Permitted(ticket)


def checked_websocket(url: str) -> AbstractContextManager[Any]:
    """Return the same for the request that becomes a websocket."""
    ticket = _core.websocket(url)
    return UNGUARDED if ticket is None else Permitted(ticket)


def is_web(url: object) -> bool:
    """Tell whether a URL is one of HTTP or of a websocket; clients let others be added, which go their own ways."""
    return isinstance(url, str) and url.partition(":")[0].lower() in _SCHEMES


def asks_for_websocket(url: str, upgrade: str | bytes | None) -> bool:
    """Tell whether a request is the opening of a websocket, by its URL or its ``Upgrade`` header."""
    if upgrade is not None and upgrade.lower() in ("websocket", b"websocket"):
        return True
    return url[:2].lower() == "ws"


def request_url(scheme: str, host: str, port: object, path: str) -> str:
    """Return the URL that a request line stands for on a connection to this host.

    A proxy is asked for a whole URL, which then is what counts. The port is always written: what is neither a path nor
    a URL cannot become part of the host behind it, and is refused by the core.
    """
    if not path.startswith("/"):
        if path in ("", "*"):
            path = "/"
        elif path.partition("://")[0].isalnum() and "://" in path:
            return path
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if port is None:
        port = _HTTPS_PORT if scheme in _SECURE else _HTTP_PORT
    return f"{scheme}://{host}:{port}{path}"


def unwrap(error: BaseException, handled: BaseException | None = None, *, contexts: bool = True) -> SandboxError | None:
    """Return the sandbox's own error that a client wrapped into this one; None when there is none.

    ``handled`` is where the chain ends: what was being handled when the request began is not its doing. Without
    ``contexts`` only what a client refers to on purpose counts.
    """
    seen: set[int] = set() if handled is None else {id(handled)}
    queue = [error]
    while queue and len(seen) < _LONGEST_CHAIN:
        found = queue.pop(0)
        if id(found) in seen:
            continue
        if isinstance(found, SandboxError):
            return found
        seen.add(id(found))
        queue.extend(_inside(found, contexts=contexts))
    return None


def raise_alone(denial: SandboxError) -> NoReturn:
    """Raise a denial in place of the client's error that refers to it: as its context, that would make a cycle."""
    try:
        raise denial
    finally:
        denial.__context__ = None
        del denial


def _inside(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """Yield the errors that this one was made of, the nearest first."""
    given = (error.__cause__, *error.args, getattr(error, "reason", None), error.__context__ if contexts else None)
    for item in given:
        if isinstance(item, BaseException):
            yield item
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions
