"""Request ids: one per HTTP request, in the answer and in every log line."""

from __future__ import annotations

import logging
import secrets
from asyncio import CancelledError
from contextvars import ContextVar
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
_AGAIN_AFTER = 5
"""Seconds after which a stopping node may have restarted."""
_log = logging.getLogger("democrai_sandbox.console")
_access = logging.getLogger("democrai_sandbox.console.access")
_present: ContextVar[str] = ContextVar("console_request", default="")


def request_id() -> str:
    """Return the id of the current HTTP request for log lines, or an empty text."""
    return _present.get()


def log_fault(error: Exception) -> None:
    """Log an error under the request id that the user sees."""
    number = request_id()
    _log.error("request %s failed", number, exc_info=error, extra={"request_id": number})


class RequestIds:
    """Outermost middleware: assigns request ids, logs answers, and handles uncaught errors.

    An id sent by the client is ignored, because it would let strangers write into the log.
    """

    def __init__(
        self, app: ASGIApp, *, failed: Callable[[Request, Exception], Response], is_ending: Callable[[], bool]
    ) -> None:
        """Take ``failed``, which returns the answer for an exception, and ``is_ending``.

        ``is_ending`` returns whether the node is stopping, which cancels long HTTP requests.
        """
        self._app = app
        self._failed = failed
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = secrets.token_hex(8)
        token = _present.set(number)
        begun = perf_counter()
        status = 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = number
            await send(message)

        try:
            await self._app(scope, receive, numbered)
        except Exception as error:
            if status:
                log_fault(error)
                raise  # the answer has been sent in part and can only be cut off
            await self._failed(Request(scope, receive), error)(scope, receive, numbered)
        except CancelledError:
            if not status and self._is_ending():  # otherwise the client has disconnected
                await self._failed(Request(scope, receive), _cut_off())(scope, receive, numbered)
            raise
        finally:
            _tell(scope, number, status, perf_counter() - begun)
            _present.reset(token)


def _cut_off() -> HTTPException:
    """Return the answer to an HTTP request that outlived a stopping node."""
    words = "This node is stopping and did not wait for the answer. The operation may or may not have completed."
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, words, {"Retry-After": str(_AGAIN_AFTER)})


def _tell(scope: Scope, number: str, status: int, seconds: float) -> None:
    """Log one line, with the path as sent (ASCII) and without the query, which can contain private data."""
    path = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    client = (scope.get("client") or ("",))[0]
    facts = {"request_id": number, "method": scope["method"], "path": path, "status": status, "client": client}
    facts["milliseconds"] = round(seconds * 1000, 1)
    _access.info("%s %s %s %s", number, scope["method"], path, status, extra=facts)
