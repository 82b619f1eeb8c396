"""One HTTP request with ``http.client``, which the guard checks by method and URL and again on the wire.

``http.client`` needs no further package and decodes no content. It blocks, so it runs in threads of a pool, one step at
a time. Every wait for the server is limited by the remaining time.
"""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors.media import (
    MediaBroken,
    MediaClosed,
    MediaError,
    MediaTimeout,
    MediaTooLarge,
    MediaUnreachable,
)
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from .hops import Hop

_USER_AGENT = "democrai-sandbox"
_MISSING_LENGTH = -1
_FIRST_FINAL = 200
_TOO_LONG = "the fetch exceeded its timeout"


class Bounds(NamedTuple):
    """Limits of one fetch, over all its hops."""

    deadline: float
    """On the monotonic clock."""
    idle: float
    connect: float
    header_bytes: int

    def wait(self, longest: float) -> float:
        """Return the timeout of the next wait."""
        left = self.deadline - monotonic()
        if left <= 0:
            raise MediaTimeout(_TOO_LONG)
        return min(left, longest)


class _Reader:
    """Reads from the connection in steps of one ``recv``, each with a timeout.

    A plain file object restarts its timeout for every byte; here, lines end at the deadline too. Bytes outside the body
    (heads, chunk lines, trailers) count against a separate limit.
    """

    def __init__(self, sock: socket.socket, bounds: Bounds) -> None:
        self._file: Any = sock.makefile("rb")
        self._sock = sock
        self._bounds = bounds
        self._lines = 0

    def _arm(self) -> None:
        self._sock.settimeout(self._bounds.wait(self._bounds.idle))

    def readline(self, limit: int = -1) -> bytes:
        """Return a line, up to the limit or the end of the stream."""
        line = bytearray()
        while not line.endswith(b"\n") and (limit < 0 or len(line) < limit):
            self._arm()
            ready: bytes = self._file.peek()
            if not ready:
                break
            end = ready.find(b"\n") + 1 or len(ready)
            size = end if limit < 0 else min(end, limit - len(line))
            line += self._file.read1(size)
            if self._lines + len(line) > self._bounds.header_bytes:
                raise MediaTooLarge(f"the headers are larger than {self._bounds.header_bytes} bytes")
        self._lines += len(line)
        return bytes(line)

    def read1(self, size: int = -1) -> bytes:
        """Return the data of one ``recv``."""
        self._arm()
        data: bytes = self._file.read1(size)
        return data

    def read(self, size: int = -1) -> bytes:
        """Return exactly the requested bytes, for the line ends between chunks."""
        data = bytearray()
        while size < 0 or len(data) < size:
            part = self.read1(size - len(data) if size >= 0 else -1)
            if not part:
                break
            data += part
        return bytes(data)

    def flush(self) -> None:
        """Do nothing, because the file is only read."""

    def close(self) -> None:
        """Close the connection."""
        self._file.close()


class _Response(http.client.HTTPResponse):
    """A response that is read with limits."""

    def __init__(self, sock: socket.socket, *args: Any, bounds: Bounds, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        plain, self.fp = self.fp, _Reader(sock, bounds)  # type: ignore[assignment] # as much of a file as is used
        plain.close()


class Exchange:
    """One HTTP request and its response. ``begin`` and ``read`` block; ``abort`` ends them from another thread."""

    def __init__(self, hop: Hop, method: str, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext) -> None:
        """Describe the HTTP request; nothing is connected yet."""
        self._hop, self._method, self._headers = hop, method, headers
        self._bounds, self._tls = bounds, tls
        self._response: http.client.HTTPResponse | None = None
        self._sock: socket.socket | None = None
        self._aborted = False
        self._received = 0
        self._length = _MISSING_LENGTH

    def begin(self) -> tuple[int, list[tuple[str, str]]]:
        """Connect, send the HTTP request, and return status and headers of the response."""
        try:
            response = self._ask()
        except SandboxError:
            raise  # a denial of the guard, or one of our own limits
        except TimeoutError as error:
            raise self._late("the server did not answer in time") from error
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise self._broken(error) from error
        except OSError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise self._broken(error) from error
        self._response = response
        if response.status < _FIRST_FINAL:
            raise self._broken(f"status {response.status} is not a final response")
        if self._method != "HEAD" and response.length is not None:
            self._length = response.length
        return response.status, response.getheaders()

    def read(self, size: int) -> bytes:
        """Return the next bytes of the body; empty at its end."""
        if self._response is None or self._aborted:
            raise MediaClosed("the fetch was canceled")
        try:
            data = self._response.read1(size)
        except SandboxError:
            raise
        except TimeoutError as error:
            raise self._late(f"the server sent no data for {self._bounds.idle:g} seconds") from error
        except (http.client.HTTPException, OSError, ValueError, AttributeError) as error:
            raise self._broken(error) from error
        self._received += len(data)
        if not data and self._received < self._length:
            raise self._broken(f"only {self._received} of {self._length} bytes arrived")
        return data

    @property
    def length(self) -> int | None:
        """Announced length of the body; None if the server does not announce it."""
        return None if self._length == _MISSING_LENGTH else self._length

    def abort(self) -> None:
        """End the exchange immediately, even while a thread waits in it."""
        self._aborted = True
        if self._sock is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which removes state that another thread uses.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._aborted = True
        response, self._response = self._response, None
        for part in (response, self._sock):
            if part is not None:
                with suppress(OSError):
                    part.close()

    def _ask(self) -> http.client.HTTPResponse:
        connection = self._connection()
        # Prevents a second HTTP request on this connection.
        connection.auto_open = 0
        connection.putrequest(self._method, self._hop.path, skip_accept_encoding=True)
        for name, value in self._all_headers().items():
            connection.putheader(name, value)
        connection.connect()
        self._sock = connection.sock
        if self._aborted:
            connection.close()
            raise MediaClosed("the fetch was canceled")
        self._sock.settimeout(self._bounds.wait(self._bounds.idle))
        connection.endheaders()
        return connection.getresponse()

    def _connection(self) -> http.client.HTTPConnection:
        target, timeout = self._hop.target, self._bounds.wait(self._bounds.connect)
        connection: http.client.HTTPConnection
        if self._hop.secure:
            connection = http.client.HTTPSConnection(target.host, target.port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout)
        connection.response_class = partial(_Response, bounds=self._bounds)  # type: ignore[assignment]
        return connection

    def _all_headers(self) -> dict[str, str]:
        # Identity: decoding could make the content larger than its limit.
        fixed = {"user-agent": _USER_AGENT, "accept-encoding": "identity", "connection": "close"}
        return {"accept": "*/*", **self._headers, **fixed}

    def _late(self, why: str) -> MediaError:
        over = monotonic() >= self._bounds.deadline
        return MediaClosed("the fetch was canceled") if self._aborted else MediaTimeout(_TOO_LONG if over else why)

    def _broken(self, error: object) -> MediaError:
        if self._aborted:
            return MediaClosed("the fetch was canceled")
        return MediaBroken(f"the response of {self._hop.site} is malformed: {_described(error)}")

    def _unreachable(self, error: OSError) -> MediaError:
        if self._aborted:
            return MediaClosed("the fetch was canceled")
        return MediaUnreachable(f"{self._hop.site} cannot be reached: {_described(error)}")


def _described(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
