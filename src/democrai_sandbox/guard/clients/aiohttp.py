"""``aiohttp``: each hop of a session requests a connection from the connector; websockets use one class."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .adapter import HTTP_PREFIXES, adapter, is_web, is_wrapped, permitted, raises_denials, unexpected, wrapped

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from .adapter import Method

_FIRST_CONTROL_FRAME = 8
_KEY_FIELD = "proxy_headers_hash"


def _ticket(request: Any, url: str) -> AbstractContextManager[Any] | None:
    if url[:2].lower() == "ws" or request.headers.get("Upgrade", "").lower() == "websocket":
        return _core.websocket(url)
    return _core.request(request.method, url)


def _connect(original: Method) -> Method:
    """Check each request. The permit is needed only if a connection is opened, which is rare."""
    own = original.__globals__.get("TCPConnector")

    async def connect_with_ticket(self: Any, req: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        with permitted(_ticket(req, url)):
            return await original(self, req, *args, **kwargs)

    # URLs are immutable, and yarl returns the same object for the same text.
    latest: tuple[Any, str] = (None, "")

    def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal latest
        target = req.url  # read once, because it may be another object each time
        known, url = latest
        if target is not known:
            url = str(target)
            latest = (target, url)
        if type(self) is own and url.startswith(HTTP_PREFIXES) and "Upgrade" not in req.headers:
            _core.request(req.method, url)  # the usual case, without further calls in Python
        elif is_web(url):
            if type(self) is not own:
                return connect_with_ticket(self, req, url, *args, **kwargs)
            _ticket(req, url)
        return original(self, req, *args, **kwargs)

    return connect


def _create_connection(original: Method) -> Method:
    own = original.__globals__.get("TCPConnector")

    async def _create_connection(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) is not own or not is_web(url := str(req.url)):
            return await original(self, req, *args, **kwargs)
        with permitted(_ticket(req, url)):
            return await original(self, req, *args, **kwargs)

    return _create_connection


# ---- names -----------------------------------------------------------------------------------------------------------


class _Uncached:
    """Connector without a DNS cache, because a subject may not use addresses that were looked up for others."""

    _use_dns_cache = False

    def __init__(self, connector: Any) -> None:
        self._connector = connector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)


def _resolve_host(original: Method) -> Method:
    async def _resolve_host(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await original(_Uncached(self), *args, **kwargs)

    return _resolve_host


# ---- websockets ------------------------------------------------------------------------------------------------------


def _use(socket: Any, direction: str) -> None:
    _core.websocket_use(str(socket._response.url), direction)  # noqa: SLF001 - it has no public name


def _send(original: Method) -> Method:
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        _use(self, "send")
        return await original(self, *args, **kwargs)

    return send


def _receive(original: Method) -> Method:
    async def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
        _use(self, "receive")
        return await original(self, *args, **kwargs)

    return receive


def _send_frame(original: Method) -> Method:
    async def send_frame(self: Any, message: Any, opcode: Any, *args: Any, **kwargs: Any) -> Any:
        if int(opcode) < _FIRST_CONTROL_FRAME:
            _use(self, "send")
        return await original(self, message, opcode, *args, **kwargs)

    return send_frame


# ---- connections by subject ------------------------------------------------------------------------------------------


def _keep_apart(module: ModuleType) -> None:
    """Add the subject to the key by which a connector finds idle connections."""
    requests: Any = getattr(module, "client_reqrep", None)
    request_class: Any = getattr(requests, "ClientRequest", None)
    key = getattr(request_class, "connection_key", None)
    fields = getattr(getattr(requests, "ConnectionKey", None), "_fields", ())
    if not isinstance(key, property) or key.fget is None or _KEY_FIELD not in fields:
        unexpected(f"{module.__name__}.ClientRequest.connection_key with a field {_KEY_FIELD}")
    elif not is_wrapped(key.fget):
        request_class.connection_key = property(wrapped(key.fget, partial(_connection_key, fields.index(_KEY_FIELD))))


def _connection_key(place: int, original: Method) -> Method:
    """Give each subject separate keys, so that it never reuses the connection of another subject."""

    def connection_key(self: Any) -> Any:
        # This field is only compared: None, or the hash of the headers sent to a proxy.
        return _core.subject_field(original(self), place)

    return connection_key


_install = adapter(
    ("connector.BaseConnector", "connect", _connect),
    ("TCPConnector", "_create_connection", _create_connection),
    ("TCPConnector", "_resolve_host", _resolve_host),
    ("ClientSession", "_request", raises_denials),  # instead of the ClientOSError around them
    ("ClientWebSocketResponse", "receive", _receive),
    ("ClientWebSocketResponse", "send_str", _send),
    ("ClientWebSocketResponse", "send_bytes", _send),
)
_install_frames = adapter(("ClientWebSocketResponse", "send_frame", _send_frame))


def install(module: ModuleType) -> bool:
    """Adapt connectors, sessions and websockets."""
    if not _install(module):
        return False
    if hasattr(getattr(module, "ClientWebSocketResponse", None), "send_frame"):  # older versions do not have it
        _install_frames(module)
    _keep_apart(module)
    return True
