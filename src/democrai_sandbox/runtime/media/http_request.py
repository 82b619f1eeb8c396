"""One HTTP request for external media: its URL and redirect target, the headers that pass, and the transfer."""

from __future__ import annotations

import http.client
import re
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from democrai_sandbox import policy
from democrai_sandbox.errors import services as errors
from democrai_sandbox.errors.services import MediaClosed, MediaError, MediaRedirectRefused, MediaTimeout, MediaTooLarge

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    from .values import MediaHead

LONGEST_URL = 8192
"""Limit of URLs, because longer ones cannot be approved."""
_SCHEMES = frozenset({"http", "https"})
# Characters that stay as they are in a path or a query; all others are escaped, as in browsers.
_KEPT = "%/:=&?~+!$,;'@()*[]"


class Hop(NamedTuple):
    """A URL that is about to be requested."""

    url: str
    """Form that is shown and stored: absolute, escaped, without its fragment."""
    target: policy.NetworkTarget
    path: str
    """Path and query, as they are sent."""

    @property
    def secure(self) -> bool:
        """Whether it uses TLS."""
        return self.target.scheme == "https"

    @property
    def scope(self) -> str:
        """Target that limits the fetch itself: this URL.

        Rules cannot name an ambiguous path, so only a rule without a path can permit it; then the target is the site.
        """
        return self.target.normalized if not self.target.ambiguous else self.site

    @property
    def site(self) -> str:
        """Scheme, host and port."""
        return replace(self.target, path=(), ambiguous=False).normalized


def read_url(url: object) -> Hop:
    """Return the hop to a URL, or refuse it: only http and https URLs without user information."""
    if type(url) is not str:
        raise policy.InvalidInputError.of(f"expected a URL, got {type(url).__name__}", pointer="/url")
    if len(url) > LONGEST_URL:
        raise policy.InvalidInputError.of(f"the URL is longer than {LONGEST_URL} characters", pointer="/url")
    target = policy.parse_request_url(url)
    if target.scheme not in _SCHEMES:
        raise policy.InvalidInputError.of(f"expected an http or https URL, got {target.scheme}", pointer="/url")
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_KEPT)
    if parts.query:
        path = f"{path}?{quote(parts.query, safe=_KEPT)}"
    hop = Hop("", target, path)
    return hop._replace(url=f"{hop.site}{path}")


def follow(here: Hop, location: str) -> Hop:
    """Return the hop of a redirect; refuse one that gives up the TLS of this hop."""
    text = _as_sent(location).strip(" \t")
    if not text or not text.isprintable():
        raise MediaRedirectRefused("the redirect has an empty or unprintable location")
    try:
        parts = urlsplit(urljoin(here.url, text))
        query = f"?{quote(parts.query, safe=_KEPT)}" if parts.query else ""
        there = read_url(f"{parts.scheme}://{parts.netloc}{quote(parts.path, safe=_KEPT)}{query}")
    except ValueError as error:
        raise MediaRedirectRefused(f"the redirect has an invalid URL: {error}") from None
    if here.secure and not there.secure:
        raise MediaRedirectRefused("the redirect leads from https to http")
    return there


def _as_sent(value: str) -> str:
    """Return a header as the server meant it: the client decodes bytes as Latin-1, but servers send UTF-8."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


CONDITIONS = frozenset({"range", "if-range", "if-none-match", "if-modified-since"})
"""Headers of partial or conditional HTTP requests, whose responses are neither cached nor served from the cache."""
SENT = frozenset({"accept", *CONDITIONS})
"""Headers that a caller may add to an HTTP request."""
_DESCRIBING = frozenset(
    {
        *("accept-ranges", "age", "cache-control", "content-encoding", "content-language", "content-length"),
        *("content-range", "content-type", "date", "etag", "expires", "last-modified", "retry-after", "vary"),
    }
)
_PASSED_ON = _DESCRIBING - {"age", "cache-control", "date", "expires", "vary"}
_LONGEST_VALUE = 1024
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_ONE_RANGE = re.compile(r"bytes=(?:[0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})")
_MEDIA_TYPE = re.compile(r"([a-z]+/[a-z0-9][a-z0-9!#$&^_.+-]*)((?:\s*;[\t\x20-\x7e]*)?)", re.IGNORECASE)
_SHOWN_KINDS = ("image/", "audio/", "video/")
# An image that can contain scripts: opened as a page, it would run them on the application's site.
_ACTIVE = frozenset({"image/svg+xml"})
_ISOLATION = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


def request_headers(given: object) -> dict[str, str]:
    """Return the caller's headers with names in lower case, or refuse headers that it may not set."""
    if type(given) is not dict:
        raise policy.InvalidInputError.of(f"expected a dict, got {type(given).__name__}", pointer="/headers")
    headers: dict[str, str] = {}
    for name, value in given.items():
        pointer = policy.pointer_to("/headers", str(name))
        if type(name) is not str or name.lower() not in SENT:
            message = f"this header is not allowed in a media request: {name!r}"
            raise policy.InvalidInputError.of(message, pointer=pointer, suggestion=policy.nearest(str(name), SENT))
        if type(value) is not str or len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
            raise policy.InvalidInputError.of(
                f"expected at most {_LONGEST_VALUE} printable ASCII characters", pointer=pointer
            )
        headers[name.lower()] = value.strip()
    if "range" in headers and not _ONE_RANGE.fullmatch(headers["range"]):
        raise policy.InvalidInputError.of("expected one range, as in 'bytes=0-499'", pointer="/headers/range")
    return headers


def forwarded(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a browser's HTTP request to forward to the server; drop malformed ones."""
    kept = {}
    for name, value in given.items():
        lowered = name.lower()
        fits = lowered in SENT and len(value) <= _LONGEST_VALUE and _VALUE.fullmatch(value) is not None
        if fits and (lowered != "range" or _ONE_RANGE.fullmatch(value.strip())):
            kept[lowered] = value.strip()
    if "range" not in kept:
        kept.pop("if-range", None)
    return kept


def describing(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers of a response that describe the content, with names in lower case."""
    kept: dict[str, str] = {}
    for name, value in headers:
        text = value.strip()
        if name.lower() in _DESCRIBING and len(text) <= _LONGEST_VALUE and _VALUE.fullmatch(text):
            kept.setdefault(name.lower(), text)
    if not kept.get("content-length", "0").isdecimal():
        del kept["content-length"]
    return kept


def proxied(head: MediaHead) -> dict[str, str]:
    """Return the headers with which a host passes a response on to a browser, on its own site.

    The content is untrusted there: its type is not guessed, it runs no scripts, and only images, audio and video are
    displayed. Browsers revalidate it each time, so that a revocation takes effect.
    """
    headers = {name: value for name, value in head.headers.items() if name in _PASSED_ON}
    kind = headers.get("content-type", "")
    kind = headers["content-type"] = kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream"
    plain = kind.partition(";")[0].lower()
    if not plain.startswith(_SHOWN_KINDS) or plain in _ACTIVE:
        headers["content-disposition"] = "attachment"
    kept = head.session_only or "no-store" in head.headers.get("cache-control", "").lower()
    return {**headers, **_ISOLATION, "cache-control": "no-store" if kept else "private, no-cache"}


_USER_AGENT = "democrai-sandbox"
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


class _BodyReader:
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
        plain, self.fp = self.fp, _BodyReader(sock, bounds)  # type: ignore[assignment] # as much of a file as is used
        plain.close()


class MediaExchange:
    """One HTTP request and its response. ``begin`` and ``read`` block; ``abort`` ends them from another thread.

    ``http.client`` needs no further package and decodes no content. It blocks, so it runs in threads of a pool, one
    step at a time. Every wait for the server is limited by the remaining time.
    """

    def __init__(self, hop: Hop, method: str, headers: Mapping[str, str], bounds: Bounds, tls: ssl.SSLContext) -> None:
        self._hop, self._method, self._headers = hop, method, headers
        self._bounds, self._tls = bounds, tls
        self._response: http.client.HTTPResponse | None = None
        self._sock: socket.socket | None = None
        self._aborted = False
        self._received = 0
        self.length: int | None = None
        """Announced length of the body; None if the server does not announce it."""

    def begin(self) -> tuple[int, list[tuple[str, str]]]:
        """Connect, send the HTTP request, and return status and headers of the response."""
        try:
            response = self._ask()
        except policy.SandboxError:
            raise  # a denial of the guard, or one of our own limits
        except TimeoutError as error:
            raise self._late("the server did not answer in time") from error
        except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
            raise self._broken(error) from error
        except OSError as error:
            unreachable = errors.MediaUnreachable(f"{self._hop.site} cannot be reached: {_described(error)}")
            raise self._failed(unreachable) from error
        except ValueError as error:
            raise self._broken(error) from error
        self._response = response
        if response.status < _FIRST_FINAL:
            raise self._broken(f"status {response.status} is not a final response")
        if self._method != "HEAD":
            self.length = response.length
        return response.status, response.getheaders()

    def read(self, size: int) -> bytes:
        """Return the next bytes of the body; empty at its end."""
        if self._response is None or self._aborted:
            raise MediaClosed("the fetch was canceled")
        try:
            data = self._response.read1(size)
        except policy.SandboxError:
            raise
        except TimeoutError as error:
            raise self._late(f"the server sent no data for {self._bounds.idle:g} seconds") from error
        except (http.client.HTTPException, OSError, ValueError, AttributeError) as error:
            raise self._broken(error) from error
        self._received += len(data)
        if not data and self._received < (self.length or 0):
            raise self._broken(f"only {self._received} of {self.length} bytes arrived")
        return data

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
        # Identity: decoding could make the content larger than its limit.
        fixed = {"user-agent": _USER_AGENT, "accept-encoding": "identity", "connection": "close"}
        for name, value in {"accept": "*/*", **self._headers, **fixed}.items():
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

    def _late(self, why: str) -> MediaError:
        return self._failed(MediaTimeout(_TOO_LONG if monotonic() >= self._bounds.deadline else why))

    def _broken(self, error: object) -> MediaError:
        return self._failed(errors.MediaBroken(f"the response of {self._hop.site} is malformed: {_described(error)}"))

    def _failed(self, error: MediaError) -> MediaError:
        return MediaClosed("the fetch was canceled") if self._aborted else error


def _described(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
