"""Models of how the clients of subjects read a URL: each returns the destination, or raises.

A reader models its client up to the wire, not only its parser: a host that urllib keeps as text reaches the C library,
which accepts more spellings of an address than any URL parser.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import urllib.parse
import urllib.request
from typing import NamedTuple

import can_ada
import httpx
import httpx2
import idna
import requests
import yarl
from requests.adapters import HTTPAdapter
from urllib3.util import parse_url

ESCAPED_PLUS = re.compile(r"%2[bB]")


class Reading(NamedTuple):
    """Destination of a client. No port means the default port of its protocol."""

    scheme: str
    host: str
    port: int | None
    path: str


def dialled(host: str, *, older: bool = False) -> str:
    """Return the host as the resolver understands it: a canonical address, or a name in lower-case ASCII.

    `older` is for clients that pass other scripts to the socket module, which encodes them with IDNA 2003.
    """
    host = host.removeprefix("[").removesuffix("]")
    if ":" in host:
        address = ipaddress.IPv6Address(host)
        return str(address.ipv4_mapped or address)
    if not host.isascii():
        host = (host.encode("idna") if older else idna.encode(host, uts46=True)).decode()
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host.lower().removesuffix(".")


def with_user(user: str | None, host: str) -> str:
    """Return the host, or an invalid one if the client found a user name before it."""
    return f"{user}@{host}" if user else host


def read_urlsplit(text: str) -> Reading:
    parts = urllib.parse.urlsplit(text)
    return Reading(parts.scheme, with_user(parts.username, dialled(parts.hostname, older=True)), parts.port, parts.path)


def read_urllib_request(text: str) -> Reading:
    request = urllib.request.Request(text)
    host, port = re.fullmatch(r"(.*?)(?::([0-9]+))?", request.host, re.DOTALL).groups()
    path = request.selector.partition("?")[0]
    return Reading(request.type, dialled(host, older=True), int(port) if port else None, path)


ADAPTER = HTTPAdapter()


def read_requests(text: str) -> Reading:
    prepared = requests.PreparedRequest()
    prepared.prepare_url(text, None)
    if not text.lower().startswith("http"):
        raise ValueError("requests has no adapter for this scheme")
    parts = parse_url(prepared.url)
    path = ADAPTER.request_url(prepared, None).partition("?")[0]
    return Reading(parts.scheme, with_user(parts.auth, dialled(parts.host)), parts.port, path)


def read_httpx(text: str, module=httpx) -> Reading:
    url = module.URL(text)
    host = with_user(url.userinfo.decode(), dialled(url.raw_host.decode()))
    return Reading(url.scheme, host, url.port, url.raw_path.decode().partition("?")[0])


def read_httpx2(text: str) -> Reading:
    return read_httpx(text, httpx2)


def read_yarl(text: str) -> Reading:
    url = yarl.URL(text)
    return Reading(url.scheme, with_user(url.raw_user, dialled(url.raw_host)), url.port, url.raw_path)


def read_whatwg(text: str) -> Reading:
    url = can_ada.parse(text)
    # Only the schemes that browsers know have real hosts there; for others the host is text with escapes.
    host = with_user(url.username, dialled(urllib.parse.unquote(url.hostname)))
    return Reading(url.protocol.removesuffix(":"), host, int(url.port) if url.port else None, url.pathname)


READERS = {
    "urllib.parse": read_urlsplit,
    "urllib.request": read_urllib_request,
    "requests": read_requests,
    "httpx": read_httpx,
    "httpx2": read_httpx2,
    "yarl": read_yarl,
    "WHATWG": read_whatwg,
}


def decoded(path: str) -> tuple[bytes, ...]:
    """Return the decoded segments of a path.

    An escaped "+" stays escaped, because some read a plain one as a space.
    """
    marked = ESCAPED_PLUS.sub("%01", path)
    return tuple(urllib.parse.unquote_to_bytes(segment) for segment in marked.rstrip("/").split("/")[1:])
