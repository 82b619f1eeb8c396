"""``httpcore`` and ``httpcore2``, the transports of ``httpx``: checks the HTTP request as sent, and separates pools."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .checks import UNGUARDED, asks_for_websocket, raise_denial, request_url
from .patching import adapter, for_everyone, unexpected
from .pools import Apart, apart, drained, without_pools

if TYPE_CHECKING:
    from .patching import Method

# Lists that hold the state of a pool; the first had another name in older versions.
_CONNECTIONS = {"_connections", "_pool"}
_REQUESTS = "_requests"
_SCHEMES = frozenset({b"http", b"https", b"ws", b"wss"})
_EMPTY = b"/"
"""Path that ``httpx`` sets for an empty URL, or one without a host."""


def _text(value: bytes | str) -> str:
    # Non-ASCII characters are not valid in a URL; the core rejects them.
    return value if isinstance(value, str) else value.decode("latin-1")


def _address(url: Any) -> str:
    scheme, host, port, target = url.scheme, url.host, url.port, url.target
    if port is None or type(target) is not bytes or target[:1] != b"/" or b":" in host:
        return request_url(_text(scheme), _text(host), port, _text(target))
    return (b"%b://%b:%d%b" % (scheme, host, port, target)).decode("latin-1")  # the usual case, in one step


def _ticket(request: Any) -> Any:
    url = request.url
    if url.scheme not in _SCHEMES:
        if not url.scheme and not url.host and url.target == _EMPTY:
            return _core.request("GET", "") or UNGUARDED  # raises in a guard, because the target is missing
        return UNGUARDED  # the pool raises its error, and a connection has no permit
    address = _address(url)
    method = request.method
    if asks_for_websocket(address, request.headers):
        return _core.websocket(address) or UNGUARDED
    return _core.request(method.decode("latin-1") if type(method) is bytes else method, address) or UNGUARDED


class _Pools(Apart[Any]):
    def is_busy(self, pool: Any) -> bool:
        return bool(getattr(pool, _REQUESTS, ()))


def _own_pool(pool: Any) -> Any:
    """Return a copy of this pool without its connections."""
    made = copy.copy(pool)
    without_pools(made)
    if pool.__dict__.keys().isdisjoint(_CONNECTIONS):
        unexpected(f"{type(pool).__module__}.{type(pool).__qualname__}._connections")
    for name, value in pool.__dict__.items():
        if name in _CONNECTIONS or name == _REQUESTS:
            setattr(made, name, [])
        elif type(value).__name__.endswith("Lock"):
            setattr(made, name, type(value)())
    return made


def _handle(original: Method) -> Method:
    def handle_request(self: Any, request: Any) -> Any:
        try:
            with _ticket(request):
                pool, surplus = apart(self, _Pools).get(_core.subject_key(), _own_pool, self)
                for old in surplus:
                    old.close()
                return original(pool, request)
        except Exception as error:
            raise_denial(error)
            raise

    return handle_request


def _handle_async(original: Method) -> Method:
    async def handle_async_request(self: Any, request: Any) -> Any:
        try:
            with _ticket(request):
                pool, surplus = apart(self, _Pools).get(_core.subject_key(), _own_pool, self)
                for old in surplus:
                    await old.aclose()
                return await original(pool, request)
        except Exception as error:
            raise_denial(error)
            raise

    return handle_async_request


@for_everyone
def _close(original: Method) -> Method:
    def close(self: Any) -> Any:
        for pool in drained(self):
            pool.close()
        return original(self)

    return close


@for_everyone
def _aclose(original: Method) -> Method:
    async def aclose(self: Any) -> Any:
        for pool in drained(self):
            await pool.aclose()
        return await original(self)

    return aclose


install = adapter(
    ("ConnectionPool", "handle_request", _handle),
    ("ConnectionPool", "close", _close),
    ("AsyncConnectionPool", "handle_async_request", _handle_async),
    ("AsyncConnectionPool", "aclose", _aclose),
)
