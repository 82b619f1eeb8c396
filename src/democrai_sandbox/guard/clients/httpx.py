"""``httpx`` and ``httpx2``: each hop of ``request``, ``stream`` and ``send`` passes one method, before any transport.

The URL is checked here as the caller wrote it, unless a custom transport serves it. The library's transports use
``httpcore``, which has an adapter: there the request is checked as sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .checks import UNGUARDED, Permitted, asks_for_websocket, is_web
from .patching import adapter, check

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from .patching import Method


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


@check
def _send(original: Method) -> Method:
    own = original.__globals__.get("HTTPTransport")

    def _send_single_request(self: Any, request: Any) -> Any:
        if _checks_below(self, own, request.url) or not is_web(url := str(request.url)):
            return None
        return None if _dials_nothing(self, own, request.url) else _ticket(request, url)

    return _send_single_request


def _send_async(original: Method) -> Method:
    own = original.__globals__.get("AsyncHTTPTransport")

    async def send_with_ticket(self: Any, request: Any, url: str) -> Any:
        ticket = _ticket(request, url)
        with UNGUARDED if ticket is None else Permitted(ticket):
            return await original(self, request)

    def _send_single_request(self: Any, request: Any) -> Any:
        if _checks_below(self, own, request.url) or not is_web(url := str(request.url)):
            return original(self, request)
        if _dials_nothing(self, own, request.url):
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
