"""``http.client``, which ``urllib.request``, ``xmlrpc``, ``urllib3`` and their users are based on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core
from democrai_sandbox.policy import InvalidInputError

from .adapter import PermittedRequest, adapter, check, past, permitted, raises_denials, request_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import ModuleType

    from .adapter import Method

CHECKED = "_democrai_sandbox_subject"
"""Set by a pool on connections whose HTTP requests it has already checked for a subject."""
_PENDING = "_democrai_sandbox_ticket"
_HTTPS_PORT = 443


def origin_of(connection: Any) -> tuple[str, str, Any]:
    """Return scheme, host and port of the final server: behind a tunnel, not the proxy."""
    scheme = "https" if connection.default_port == _HTTPS_PORT else "http"
    if connection._tunnel_host:  # noqa: SLF001 - the only source of this value
        return scheme, connection._tunnel_host, connection._tunnel_port  # noqa: SLF001
    return scheme, connection.host, connection.port


def take_pending(connection: Any) -> AbstractContextManager[Any] | None:
    """Return the permit of the request for which this connection is about to be opened."""
    # Not through __dict__, because materializing it makes the object permanently slower.
    try:
        subject, ticket = object.__getattribute__(connection, _PENDING)
    except AttributeError:
        return None
    object.__delattr__(connection, _PENDING)
    return PermittedRequest(ticket) if subject == _core.subject_key() else None


@check
@past(CHECKED)
def _putrequest(original: Method) -> Method:
    del original

    def putrequest(self: Any, method: str, url: str, *_: Any, **__: Any) -> None:
        # An open connection knows its origin, so that the core needs no URL.
        if self.sock is not None and _core.request_on(self.sock, method, url):
            return
        # CONNECT has no URL but a host for a tunnel, which the core checks when it is sent.
        if method != "CONNECT":
            ticket = _core.request(method, request_url(*origin_of(self), url or "/"))
            if self.sock is None:
                # The connection is opened later, when the headers are sent.
                object.__setattr__(self, _PENDING, (_core.subject_key(), ticket))

    return putrequest


def _connect(original: Method) -> Method:
    def connect(self: Any) -> Any:
        with take_pending(self) or _origin_ticket(self):
            return original(self)

    return connect


def _origin_ticket(connection: Any) -> AbstractContextManager[Any]:
    """Return a permit for a connection that is opened before its first request is known."""
    scheme, host, port = origin_of(connection)
    try:
        number = int(port)
    except (TypeError, ValueError):
        raise InvalidInputError.of(f"the port must be a number: {port!r}") from None
    return permitted(_core.origin(scheme, host, number))


install = adapter(
    ("HTTPConnection", "putrequest", _putrequest),
    ("HTTPConnection", "connect", _connect),
)


_install = adapter(("OpenerDirector", "open", raises_denials))
_install_oldest = adapter(("URLopener", "open", raises_denials))


def install_urllib_request(module: ModuleType) -> bool:
    """Adapt the openers; new versions do not have the oldest one."""
    if not _install(module):
        return False
    return _install_oldest(module) if hasattr(module, "URLopener") else True
