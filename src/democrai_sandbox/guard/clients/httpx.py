"""``httpx`` and ``httpcore``: checks each hop as written and each HTTP request as sent, and separates pools.

The URL is checked here as the caller wrote it, unless a custom transport serves it. The library's transports use
``httpcore``, which has an adapter: there the request is checked as sent.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .adapter import (
    UNGUARDED,
    Apart,
    adapter,
    apart,
    asks_for_websocket,
    check,
    drained,
    for_everyone,
    is_web,
    permitted,
    raise_denial,
    request_url,
    unexpected,
    without_pools,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .adapter import Method


def _ticket(request: Any, url: str) -> AbstractContextManager[Any] | None:
    if asks_for_websocket(url, request.headers.raw):
        return _core.websocket(url)
    return _core.request(request.method, url)


def _checks_below(client: Any, own: Any, url: Any) -> bool:
    """Return whether all requests of the client go through ``httpcore``, where they are checked as sent.

    URLs with a user or a fragment, which do not reach it, are checked as written.
    """
    parts = getattr(url, "_uri_reference", url)  # there both are plain texts, which is faster
    if parts.userinfo or parts.fragment or type(client._transport) is not own:  # noqa: SLF001 - no other way to know
        return False
    return not client._mounts or set(map(type, client._mounts.values())) <= {own, type(None)}  # noqa: SLF001


def _dials_nothing(client: Any, own: Any, url: Any) -> bool:
    """Return whether a custom transport serves the request, such as an application in memory.

    Its use of the network is checked at the socket.
    """
    return own is not None and not issubclass(type(client._transport_for_url(url)), own)  # noqa: SLF001 - no other way


def _checked_elsewhere(client: Any, own: Any, url: Any) -> bool:
    """Return whether ``httpcore`` or the socket checks the request."""
    return _checks_below(client, own, url) or _dials_nothing(client, own, url)


@check
def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPTransport")

    def _send_single_request(self: Any, request: Any) -> Any:
        if _checked_elsewhere(self, own, request.url) or not is_web(url := str(request.url)):
            return None
        return _ticket(request, url)

    return _send_single_request


def _send_async(original: Method) -> Method:
    own = original.__globals__.get("AsyncHTTPTransport")

    async def send_with_ticket(self: Any, request: Any, url: str) -> Any:
        with permitted(_ticket(request, url)):
            return await original(self, request)

    def _send_single_request(self: Any, request: Any) -> Any:
        if _checked_elsewhere(self, own, request.url) or not is_web(url := str(request.url)):
            return original(self, request)
        return send_with_ticket(self, request, url)

    return _send_single_request


install = adapter(
    ("Client", "_send_single_request", _send),
    ("AsyncClient", "_send_single_request", _send_async),
)


# ---- websockets ------------------------------------------------------------------------------------------------------


def _is_message(event: Any) -> bool:
    """Return whether an event contains data, unlike pings and closing frames."""
    return hasattr(event, "message_finished")


def _use(session: Any, direction: str) -> None:
    if session.response is not None:
        _core.websocket_use(str(session.response.request.url), direction)


def _ws_send(original: Method) -> Method:
    def send(self: Any, event: Any) -> Any:
        if _is_message(event):
            _use(self, "send")
        return original(self, event)

    return send


def _ws_receive(original: Method) -> Method:
    def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
        _use(self, "receive")
        return original(self, *args, **kwargs)

    return receive


def _ws_send_async(original: Method) -> Method:
    async def send(self: Any, event: Any) -> Any:
        if _is_message(event):
            _use(self, "send")
        return await original(self, event)

    return send


def _ws_receive_async(original: Method) -> Method:
    async def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
        _use(self, "receive")
        return await original(self, *args, **kwargs)

    return receive


install_websockets = adapter(
    ("WebSocketSession", "send", _ws_send),
    ("WebSocketSession", "receive", _ws_receive),
    ("AsyncWebSocketSession", "send", _ws_send_async),
    ("AsyncWebSocketSession", "receive", _ws_receive_async),
)


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


def _httpcore_ticket(request: Any) -> Any:
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
            with _httpcore_ticket(request):
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
            with _httpcore_ticket(request):
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


install_httpcore = adapter(
    ("ConnectionPool", "handle_request", _handle),
    ("ConnectionPool", "close", _close),
    ("AsyncConnectionPool", "handle_async_request", _handle_async),
    ("AsyncConnectionPool", "aclose", _aclose),
)
