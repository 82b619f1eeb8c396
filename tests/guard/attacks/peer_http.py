"""How a server of the network attacks reads HTTP: leniently, and in the one odd way that an attack is about."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

HARMLESS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Reading:
    """Where servers differ. The default is what most of them do; an attack names what its victim does instead."""

    length: str = "last"
    """Which Content-Length counts: the first, the last, or none (the body is taken for the next request)."""
    chunked: str = "exact"
    """When a body is chunked: never, when that is the exact coding, or when the word is in the header."""
    target: str = "second"
    """Which word of the request line is the target: the second, or the last before the version."""
    host: str = "first"
    """Which Host header counts."""
    breaks: str = "\r?\n"
    """What ends a line."""
    folds: bool = True
    """Whether a line that begins with white space goes on with the header before it."""
    decodes: bool = False
    """Whether dots and escapes in the path are resolved before the path means anything."""
    refuses_expectation: bool = False
    """Whether `Expect` is answered with 417 at once, and the body taken for the next request."""
    hasty: bool = False
    """Whether the server acts as soon as it has the first line."""
    sends: bool = False
    """Whether the rules of the attack let it send to the path, too."""
    routes_by: str = "host"
    """What picks the virtual host under TLS: the Host header, or the name of the handshake."""


@dataclass(slots=True)
class Request:
    """One request as the server understood it."""

    method: str
    target: str
    version: str
    host: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.fields if key == name]


def take_request(data: bytearray, reading: Reading) -> tuple[Request, bytes] | None:
    """Take one request with its body off the front of `data`; None when it is not all there yet."""
    while data[:1] in (b"\r", b"\n"):
        del data[:1]
    line_break = reading.breaks.encode()
    end = re.search(rb"(?>%s){2}" % line_break, data)
    if end is None:
        return _take_simple(data, reading)
    lines = re.split(line_break, bytes(data[: end.start()]))
    request = _read_head([line.decode("latin-1") for line in lines], reading)
    rest = bytes(data[end.end() :])
    body = _read_body(request, rest, reading)
    if body is None:
        return None
    content, used = body
    del data[: end.end() + used]
    return request, content


def _take_simple(data: bytearray, reading: Reading) -> tuple[Request, bytes] | None:
    """HTTP/0.9: a line without a version has no headers."""
    line, found, _ = data.partition(b"\n")
    words = bytes(line).decode("latin-1").split()
    if not found or len(words) < 2 or (len(words) > 2 and not reading.hasty):
        return None
    del data[: len(line) + 1]
    return Request(words[0], words[1], "HTTP/0.9", ""), b""


def _read_head(lines: list[str], reading: Reading) -> Request:
    words = lines[0].split()
    version = words[-1] if len(words) > 2 else "HTTP/0.9"
    target = words[-2] if reading.target == "last" and len(words) > 2 else (words + ["", ""])[1]
    request = Request((words + [""])[0], target, version, "")
    for line in lines[1:]:
        if line[:1] in (" ", "\t") and reading.folds and request.fields:
            name, value = request.fields[-1]
            request.fields[-1] = name, f"{value} {line.strip()}".strip()
            continue
        name, _, value = line.partition(":")
        request.fields.append((name.strip().lower(), value.strip()))
    hosts = request.values("host") or [""]
    request.host = hosts[0] if reading.host == "first" else hosts[-1]
    return request


def _read_body(request: Request, rest: bytes, reading: Reading) -> tuple[bytes, int] | None:
    """The body and how much of `rest` it took."""
    if reading.refuses_expectation and request.values("expect"):
        return b"", 0
    codings = " ".join(request.values("transfer-encoding")).lower()
    if (reading.chunked == "contains" and "chunked" in codings) or (
        reading.chunked == "exact" and codings == "chunked"
    ):
        return _read_chunks(rest)
    lengths = [_number(value) for value in request.values("content-length")]
    if reading.length == "none" or not lengths:
        return b"", 0
    size = lengths[0] if reading.length == "first" else lengths[-1]
    return (rest[:size], size) if len(rest) >= size else None


def _number(text: str) -> int:
    """A length as lenient servers read it: the digits at the front, in 32 bits."""
    match = re.match(r"\+?([0-9]+)", text)
    return int(match[1]) % 2**32 if match else 0


def _read_chunks(rest: bytes) -> tuple[bytes, int] | None:
    content, at = b"", 0
    while True:
        end = rest.find(b"\n", at)
        if end < 0:
            return None
        match = re.match(rb"(?:0x)?([0-9a-fA-F]*)", rest[at:end].strip())
        size = int(match[1] or b"0", 16) % 2**32
        if size == 0:
            closing = re.compile(rb"\r?\n(?:[^\r\n]+\r?\n)*?\r?\n|\n\r?\n").search(rest, max(end - 1, 0))
            return (content, closing.end()) if closing else None
        start = end + 1
        if len(rest) < start + size:
            return None
        content += rest[start : start + size]
        at = start + size
        at += len(re.match(rb"\r?\n?", rest[at:])[0])


def path_of(target: str, reading: Reading) -> str:
    """The path a target means to this server."""
    path = re.sub(r"^[a-zA-Z]+://[^/?#]*", "", target) if "://" in target else target
    path = path.partition("?")[0]
    if not reading.decodes:
        return path.partition("#")[0]
    for _ in range(2):
        path = unquote(path)
    parts: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        name = part.partition(";")[0]
        if name == ".." and parts:
            parts.pop()
        elif name not in ("", ".", ".."):
            parts.append(part)
    return "/" + "/".join(parts)


def is_permitted(request: Request, reading: Reading, hosts: frozenset[str]) -> bool:
    """Whether the rule that the attacks usually get, reading below /allowed, covers the request."""
    path = path_of(request.target, reading)
    below = path == "/allowed" or path.startswith("/allowed/")
    host = re.sub(r":[0-9]*$", "", request.host.lower())
    harmless = request.method in HARMLESS or (reading.sends and request.method == "POST")
    return harmless and below and (host in hosts or not host)
