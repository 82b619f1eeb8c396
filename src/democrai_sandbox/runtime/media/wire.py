"""One request over the guarded client: ``http.client``, which the guard checks by method and URL and again on the wire.

It is in the standard library, so media need no further package, it decodes no content, and it blocks: it runs in
threads of a pool, one step at a time. Every single wait for the server is bounded by what is left of the time.
"""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import SandboxError

from .errors import MediaBroken, MediaClosed, MediaError, MediaTimeout, MediaTooLarge, MediaUnreachable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from .hops import Hop

_USER_AGENT = "democrai-sandbox"
_MISSING_LENGTH = -1
_FIRST_FINAL = 200
_TOO_LONG = "the fetch took too long"


class Bounds(NamedTuple):
    """What one flow is held to, over all its hops."""

    deadline: float
    """On the monotonic clock."""
    idle: float
    connect: float
    header_bytes: int

    def wait(self, longest: float) -> float:
        """Return how long the next wait may take."""
        left = self.deadline - monotonic()
        if left <= 0:
            raise MediaTimeout(_TOO_LONG)
        return min(left, longest)


class _Reader:
    """Reads from the connection in steps of one ``recv``, each with its own bound in time.

    A plain file object waits anew for every byte that trickles in; by this one, lines end at the deadline too. What is
    not body (heads, the lines between chunks, what follows them) is counted: it has a limit of its own.
    """

    def __init__(self, sock: socket.socket, bounds: Bounds) -> None:
        self._file: Any = sock.makefile("rb")
        self._sock = sock
        self._bounds = bounds
        self._lines = 0

    def _arm(self) -> None:
        self._sock.settimeout(self._bounds.wait(self._bounds.idle))

    def readline(self, limit: int = -1) -> bytes:
        """Return a line, which ends where the limit or the stream does."""
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
        """Return what one ``recv`` brings."""
        self._arm()
        data: bytes = self._file.read1(size)
        return data

    def read(self, size: int = -1) -> bytes:
        """Return as many bytes as asked for: the line ends between chunks."""
        data = bytearray()
        while size < 0 or len(data) < size:
            part = self.read1(size - len(data) if size >= 0 else -1)
            if not part:
                break
            data += part
        return bytes(data)

    def flush(self) -> None:
        """Do nothing: it is only read from."""

    def close(self) -> None:
        """Let the connection go."""
        self._file.close()


class _Response(http.client.HTTPResponse):
    """An answer that is read with bounds."""

    def __init__(self, sock: socket.socket, *args: Any, bounds: Bounds, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        plain, self.fp = self.fp, _Reader(sock, bounds)  # type: ignore[assignment] # as much of a file as is used
        plain.close()


class Exchange:
    """One request and its answer. ``begin`` and ``read`` block; ``abort`` ends them from another thread."""

    def __init__(self, hop: Hop, method: str, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext) -> None:
        """Describe the request; nothing is connected yet."""
        self._hop, self._method, self._headers = hop, method, headers
        self._bounds, self._tls = bounds, tls
        self._response: http.client.HTTPResponse | None = None
        self._sock: socket.socket | None = None
        self._aborted = False
        self._received = 0
        self._length = _MISSING_LENGTH

    def begin(self) -> tuple[int, list[tuple[str, str]]]:
        """Connect, ask, and return status and headers of the answer."""
        try:
            response = self._ask()
        except SandboxError:
            raise  # a denial of the guard's, or one of our own limits
        except TimeoutError as error:
            raise self._late("no answer came in time") from error
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise self._broken(error) from error
        except OSError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise self._broken(error) from error
        self._response = response
        if response.status < _FIRST_FINAL:
            raise self._broken(f"status {response.status} is no answer")
        if self._method != "HEAD" and response.length is not None:
            self._length = response.length
        return response.status, response.getheaders()

    def read(self, size: int) -> bytes:
        """Return the next bytes of the body; none at its end."""
        if self._response is None or self._aborted:
            raise MediaClosed("the fetch was ended")
        try:
            data = self._response.read1(size)
        except SandboxError:
            raise
        except TimeoutError as error:
            raise self._late(f"nothing came for {self._bounds.idle:g} seconds") from error
        except (http.client.HTTPException, OSError, ValueError, AttributeError) as error:
            raise self._broken(error) from error
        self._received += len(data)
        if not data and self._received < self._length:
            raise self._broken(f"{self._received} of {self._length} bytes came")
        return data

    @property
    def length(self) -> int | None:
        """How long the body is going to be, if the server says so."""
        return None if self._length == _MISSING_LENGTH else self._length

    def abort(self) -> None:
        """End the exchange at once, whoever waits in it."""
        self._aborted = True
        if self._sock is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which takes its state away from the thread that is using it.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Let the connection go."""
        self._aborted = True
        response, self._response = self._response, None
        for part in (response, self._sock):
            if part is not None:
                with suppress(OSError):
                    part.close()

    def _ask(self) -> http.client.HTTPResponse:
        connection = self._connection()
        # A connection that outlives this call keeps no place for a second request.
        connection.auto_open = 0
        connection.putrequest(self._method, self._hop.path, skip_accept_encoding=True)
        for name, value in self._all_headers().items():
            connection.putheader(name, value)
        connection.connect()
        self._sock = connection.sock
        if self._aborted:
            connection.close()
            raise MediaClosed("the fetch was ended")
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
        # Identity: nothing is decoded here, so nothing can grow by being decoded.
        fixed = {"user-agent": _USER_AGENT, "accept-encoding": "identity", "connection": "close"}
        return {"accept": "*/*", **self._headers, **fixed}

    def _late(self, why: str) -> MediaError:
        over = monotonic() >= self._bounds.deadline
        return MediaClosed("the fetch was ended") if self._aborted else MediaTimeout(_TOO_LONG if over else why)

    def _broken(self, error: object) -> MediaError:
        if self._aborted:
            return MediaClosed("the fetch was ended")
        return MediaBroken(f"the answer of {self._hop.site} is broken: {_described(error)}")

    def _unreachable(self, error: OSError) -> MediaError:
        if self._aborted:
            return MediaClosed("the fetch was ended")
        return MediaUnreachable(f"{self._hop.site} cannot be reached: {_described(error)}")


def _described(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
