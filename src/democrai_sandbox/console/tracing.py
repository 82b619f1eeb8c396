"""The number of each request: made here, in every answer and every line of the log, so that a ticket can be traced."""

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
"""Seconds after which a node that ends may have been started again."""
_log = logging.getLogger("democrai_sandbox.console")
_access = logging.getLogger("democrai_sandbox.console.access")
_present: ContextVar[str] = ContextVar("console_request", default="")


def request_id() -> str:
    """Return the number of the request that is being answered; empty outside any. For lines of the log."""
    return _present.get()


def log_fault(error: Exception) -> None:
    """Keep what went wrong inside, under the number that the visitor is shown."""
    number = request_id()
    _log.error("request %s failed", number, exc_info=error, extra={"request_id": number})


class RequestIds:
    """The outermost middleware: numbers each request, logs how it was answered, and answers what nobody caught.

    A number that comes from outside is not taken: it would let a stranger write into the log what is to be looked for.
    """

    def __init__(
        self, app: ASGIApp, *, failed: Callable[[Request, Exception], Response], is_ending: Callable[[], bool]
    ) -> None:
        """``failed`` makes the answer to a request that ended with an exception.

        ``is_ending`` tells whether the node ends: requests that take longer than it waits are cancelled then.
        """
        self._app = app
        self._failed = failed
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
                raise  # half an answer is out already: all that can be done is to cut it off
            await self._failed(Request(scope, receive), error)(scope, receive, numbered)
        except CancelledError:
            if not status and self._is_ending():  # else nobody waits for an answer
                await self._failed(Request(scope, receive), _cut_off())(scope, receive, numbered)
            raise
        finally:
            _tell(scope, number, status, perf_counter() - begun)
            _present.reset(token)


def _cut_off() -> HTTPException:
    """Return what becomes of a request that took longer than a node waits when it ends."""
    words = "This node ends, and did not wait for this any longer: what was asked for may have been done or not."
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, words, {"Retry-After": str(_AGAIN_AFTER)})


def _tell(scope: Scope, number: str, status: int, seconds: float) -> None:
    """Log one line. The path as it was sent, which is ASCII, and without the query: people search for anything."""
    path = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    client = (scope.get("client") or ("",))[0]
    facts = {"request_id": number, "method": scope["method"], "path": path, "status": status, "client": client}
    facts["milliseconds"] = round(seconds * 1000, 1)
    _access.info("%s %s %s %s", number, scope["method"], path, status, extra=facts)
