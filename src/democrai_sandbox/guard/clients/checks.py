"""Common functions of the adapters: build a URL from its parts, hold a permit, raise a wrapped denial.

The core is the authority: it checks each permit, and each HTTP request again on the wire. Adapters only raise the
denial earlier, with the caller's method and URL, and before the client wraps it in another error.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

_HTTPS_PORT = 443
_HTTP_PORT = 80
_SECURE = frozenset({"https", "wss"})
_SCHEMES = frozenset({"http", "https", "ws", "wss"})
_USUAL = ("http://", "https://")
_LONGEST_CHAIN = 64
_UPGRADE_LENGTH = 7

UNGUARDED: AbstractContextManager[Any] = nullcontext()


class Permitted:
    """HTTP request in progress: holds its permit, and raises a denial instead of the client's error."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: AbstractContextManager[Any]) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        self._ticket.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticket.__exit__(kind, error, trace)
        if error is not None:
            raise_denial(error)


def is_web(url: object) -> bool:
    """Return whether a URL has an HTTP or websocket scheme; clients may support others, which are not checked here."""
    if not isinstance(url, str):
        return False
    return url.startswith(_USUAL) or url.partition(":")[0].lower() in _SCHEMES


def asks_for_websocket(url: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> bool:
    """Return whether an HTTP request opens a websocket, according to its URL or its ``Upgrade`` header."""
    if url[:2].lower() == "ws":
        return True
    for name, value in headers:
        if len(name) == _UPGRADE_LENGTH and name.lower() == b"upgrade" and value.lower() == b"websocket":
            return True
    return False


def request_url(scheme: str, host: str, port: object, path: str) -> str:
    """Return the URL of a request line on a connection to this host.

    For a proxy, the request line contains a whole URL, which is returned. The port is always included, so that an
    invalid path cannot become part of the host; the core rejects it.
    """
    if path[:1] == "/" and port is not None and ":" not in host:
        return f"{scheme}://{host}:{port}{path}"  # the usual case, in one step
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


def raise_denial(error: BaseException) -> None:
    """Raise the denial that a client wrapped in another error, if it did."""
    denial = unwrap(error)
    if denial is None or denial is error:
        return
    try:
        raise denial
    finally:
        # The client's error references the denial. As its context it would form a cycle and keep all frames alive.
        denial.__context__ = None
        del denial, error


def unwrap(error: BaseException) -> SandboxError | None:
    """Return the sandbox error that this error wraps, or None.

    Contexts are ignored: an error that was being handled when the request was made is unrelated.
    """
    seen: set[int] = set()
    queue: list[BaseException] = [error] if isinstance(error, Exception) else []
    while queue and len(seen) < _LONGEST_CHAIN:
        found = queue.pop(0)
        if isinstance(found, SandboxError):
            return found
        if id(found) not in seen:
            seen.add(id(found))
            queue.extend(item for item in _inside(found) if isinstance(item, BaseException))
    return None


def _inside(error: BaseException) -> Iterator[object]:
    """Yield the causes of an error, the nearest first."""
    yield error.__cause__
    yield from error.args
    yield getattr(error, "reason", None)
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions
