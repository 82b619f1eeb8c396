"""Network targets: declared and requested targets in one canonical form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

from .hosts import bracketed, is_public_suffix, normalise_host, normalise_ipv6, normalise_network
from .paths import normalise_path
from .problems import InvalidInputError, NetworkTargetMissingError
from .text import exact_str, invisible_or_space, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# An encoded dot, slash or backslash, with the percent sign encoded any number of times, or a control character.
_ENCODED_SYNTAX = re.compile(r"%(?:25)*(?:2[eEfF]|5[cC])|%[01][0-9a-fA-F]|%7[fF]")
# Servers that support path parameters drop ";..." before they look for dots, and some clients decode an escaped ";".
_DOT_SEGMENT = re.compile(r"(?:^|/)\.\.?(?:(?:;|%(?:25)*3[bB])[^/]*)?(?=/|$)")
_SYNTAX = re.compile(r"%(?:2[eEfF]|5[cC])")
# A path that is still encoded after this many decodings is rejected.
_MOST_DECODINGS = 8
_UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~"
# Reserved characters that are valid in a segment. Clients that rewrite paths send them unescaped, except "+", which
# some read as a space.
_RESERVED = "!$&'()*,:;=@"
_DECODED = frozenset(_UNRESERVED + _RESERVED)
# Additionally the plus sign, the dot, and existing escapes.
_KEPT = _RESERVED + "+.%"


def is_ambiguous(path: str) -> bool:
    """Return whether servers and clients may interpret this path differently.

    This applies to dot segments and to encoded dots, slashes, backslashes and control characters, which some decode and
    collapse and others do not. It also applies to a percent sign without an escape, and to several leading slashes, of
    which some clients send only one.
    """
    if path.startswith("//") and path.strip("/"):
        return True
    found = _DOT_SEGMENT.search(path) or _ENCODED_SYNTAX.search(path) or _BROKEN_ESCAPE.search(path)
    return found is not None or ("%25" in path and _hides_syntax(path))


def _hides_syntax(path: str) -> bool:
    """Return whether repeated decoding reveals an encoded dot, slash or backslash, or a dot segment.

    Each character of an escape may be encoded: "%25%32%65" is "%2e" after one decoding.
    """
    for _ in range(_MOST_DECODINGS):
        if _DOT_SEGMENT.search(path) or _SYNTAX.search(path):
            return True
        path, number = _ESCAPE.subn(lambda escape: chr(int(escape.group(1), 16)), path)
        if number == 0:
            return False
    return True


def normalise_segments(path: str) -> tuple[str, ...]:
    """Return the canonical segments of a URL's path, without empty ones at the end.

    Escapes of characters that are valid in a segment are decoded, other escapes get upper-case digits, and invalid
    characters are escaped. An ambiguous path keeps its escapes.
    """
    plain = path if is_ambiguous(path) else _ESCAPE.sub(_canonical_escape, path)
    segments = quote(plain, safe="/" + _KEPT).rstrip("/").split("/")
    return tuple(segments[1:])


def _canonical_escape(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return character if character in _DECODED else match.group().upper()


LONGEST_TARGET = 64 * 1024 - 1

DEFAULT_PORTS: Mapping[str, int] = MappingProxyType(
    {
        "http": 80,
        "https": 443,
        "ws": 80,
        "wss": 443,
        "ftp": 21,
        "ftps": 990,
        "ssh": 22,
        "sftp": 22,
        "git": 9418,
        "postgres": 5432,
        "postgresql": 5432,
        "mysql": 3306,
        "mariadb": 3306,
        "mongodb": 27017,
        "redis": 6379,
        "rediss": 6379,
        "amqp": 5672,
        "amqps": 5671,
        "mqtt": 1883,
        "mqtts": 8883,
        "nats": 4222,
        "ldap": 389,
        "ldaps": 636,
        "smtp": 25,
        "smtps": 465,
        "imap": 143,
        "imaps": 993,
    }
)
"""Default port of each scheme; URLs of other schemes must name a port."""

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_HIGHEST_PORT = 65535
# Four bytes of UTF-8, three characters each.
_LONGEST_ESCAPE = 12


class TargetKind(StrEnum):
    """Form of a target. All except ``URL`` are host forms, which also cover sockets."""

    URL = "url"
    HOST = "host"
    WILDCARD = "wildcard"
    NETWORK = "network"
    UNIX = "unix"


@dataclass(frozen=True, slots=True)
class NetworkTarget:
    """Normalized target. Create it with a ``parse_...`` function of this module."""

    kind: TargetKind
    scheme: str | None = None
    """Lower-case scheme of a URL."""
    host: str = ""
    """Canonical host; the name after ``*.`` of a wildcard; the CIDR form of a network; empty for a Unix socket."""
    port: int | None = None
    """Always set for a URL; None in a host form means any port."""
    path: tuple[str, ...] = ()
    """Path segments of a URL, without empty ones at the end."""
    ambiguous: bool = False
    """Whether servers read the requested path differently (``..``, ``%2f``); only rules without a path cover it."""
    socket: str | None = None
    """Address of a Unix socket: an absolute path, or ``@name`` in the abstract namespace."""

    @property
    def normalized(self) -> str:
        """Canonical text, which is part of the identity of a decision."""
        if self.kind is TargetKind.URL:
            port = "" if self.port == DEFAULT_PORTS.get(self.scheme or "") else f":{self.port}"
            path = "".join(f"/{segment}" for segment in self.path)
            return f"{self.scheme}://{bracketed(self.host)}{port}{path}"
        if self.kind is TargetKind.UNIX:
            return f"unix:{self.socket}"
        name = f"*.{self.host}" if self.kind is TargetKind.WILDCARD else self.host
        return name if self.port is None else f"{bracketed(name)}:{self.port}"

    def __str__(self) -> str:
        """Return the canonical text."""
        return self.normalized


def parse_declaration(text: str) -> NetworkTarget:
    """Parse the target of a rule, in any form that rules allow."""
    target = _plain_text(text)
    if target[:5].lower() == "unix:":
        return _parse_unix(target[5:])
    if "://" in target:
        return _parse_url(target, declared=True)
    _refuse_broken_url(target)
    if "/" in target:
        return _parse_network(target)
    return _parse_host_form(target)


def parse_request_url(text: str) -> NetworkTarget:
    """Parse the URL of an HTTP request; query and fragment are dropped, because they are not matched."""
    return _parse_url(_plain_text(text), declared=False)


def parse_request(text: str) -> NetworkTarget:
    """Parse a requested target: a URL, or a single host or socket; patterns and ranges are rejected."""
    target = _plain_text(text)
    parsed = _parse_url(target, declared=False) if "://" in target else parse_declaration(target)
    if parsed.kind in (TargetKind.WILDCARD, TargetKind.NETWORK):
        raise InvalidInputError.of(f"a request needs one target, not a pattern: {shown(target)}")
    return parsed


def parse_socket(host: str, port: int | None) -> NetworkTarget:
    """Return the target of a socket call or, without a port, of a name lookup. IPv6 addresses have no brackets."""
    name = _plain_text(host)
    if port is not None and (type(port) is not int or not 1 <= port <= _HIGHEST_PORT):
        raise InvalidInputError.of(f"the port must be a number from 1 to {_HIGHEST_PORT}")
    canonical = normalise_ipv6(name) if ":" in name else normalise_host(name)
    return NetworkTarget(TargetKind.HOST, host=canonical, port=port)


def parse_unix_socket(address: str) -> NetworkTarget:
    """Return the target of an ``AF_UNIX`` address: an absolute path, or ``@name`` for the abstract namespace."""
    return _parse_unix(_plain_text(address))


def _plain_text(value: object) -> str:
    text = exact_str(value)
    if text is None:
        raise InvalidInputError.of(f"expected a network target, got {shown(value)}")
    if not text:
        raise NetworkTargetMissingError
    if len(text) > LONGEST_TARGET:
        raise InvalidInputError.of(f"the target is longer than {LONGEST_TARGET} characters")
    if character := invisible_or_space(text):
        raise InvalidInputError.of(f"the target contains white space or a control ({character}): {shown(text)}")
    if "\\" in text:
        raise InvalidInputError.of(f"the target contains a backslash: {shown(text)}")
    return text


def _parse_url(text: str, *, declared: bool) -> NetworkTarget:
    """Parse a URL. Two parsers that disagree about the host are a hole in a policy, so unclear URLs are rejected."""
    match = _URL.fullmatch(text)
    if match is None:
        raise InvalidInputError.of(f"not a URL of the form scheme://host: {shown(text)}")
    scheme, authority, path, query, fragment = match.groups()
    scheme = scheme.lower()
    if declared and (query is not None or fragment is not None):
        raise InvalidInputError.of("a rule has scheme, host, port and path; remove the query and the fragment")
    if fragment is not None and "#" in fragment[1:]:
        # Clients differ in which "#" ends the path (urllib.request takes the last).
        raise InvalidInputError.of(f"the URL has more than one '#': {shown(text)}")
    if not authority:
        raise InvalidInputError.of(f"the URL has no host: {shown(text)}")
    host, port = _split_port(authority)
    port = port or DEFAULT_PORTS.get(scheme)
    if port is None:
        raise InvalidInputError.of(f"the scheme {shown(scheme)} has no known port; write scheme://host:port")
    ambiguous = is_ambiguous(path)
    if declared and ambiguous:
        raise InvalidInputError.of(f"the path has '.', '..' or an encoded '/', '.', '\\' or control: {shown(path)}")
    if declared and "//" in path:
        raise InvalidInputError.of(f"the path has an empty segment: {shown(path)}")
    target = NetworkTarget(TargetKind.URL, scheme, host, port, normalise_segments(path), ambiguous)
    # The canonical text identifies decisions and must be parseable again.
    if len(text) > LONGEST_TARGET // _LONGEST_ESCAPE and len(target.normalized) > LONGEST_TARGET:
        raise InvalidInputError.of(f"the target is longer than {LONGEST_TARGET} characters in its canonical form")
    return target


def _refuse_broken_url(text: str) -> None:
    """Reject texts that some parsers complete to a URL: ``//host`` and ``http:host``."""
    if text.startswith("//"):
        raise InvalidInputError.of(f"the URL has no scheme: {shown(text)}", suggestion=f"https:{text}")
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in DEFAULT_PORTS and not rest[:1].isdecimal():
        suggestion = f"{scheme.lower()}://{rest.lstrip('/')}"
        raise InvalidInputError.of(f"expected a URL as scheme://host, got {shown(text)}", suggestion=suggestion)


def _parse_unix(address: str) -> NetworkTarget:
    if address.startswith("//"):
        suggestion = f"unix:/{address.lstrip('/')}"
        raise InvalidInputError.of("expected a Unix socket as unix:/path, without '//'", suggestion=suggestion)
    if address.startswith("@") and len(address) > 1:
        return NetworkTarget(TargetKind.UNIX, socket=address)
    if not address.startswith("/"):
        raise InvalidInputError.of(f"a Unix socket needs an absolute path or @name, got {shown(address)}")
    path = normalise_path(address)
    if path == "/":
        raise InvalidInputError.of("a Unix socket needs a path below '/'")
    return NetworkTarget(TargetKind.UNIX, socket=path)


def _parse_network(text: str) -> NetworkTarget:
    if not re.fullmatch(r"[0-9a-fA-F.:]+/[0-9]+", text):
        message = f"a host with a path needs a scheme, got {shown(text)}"
        raise InvalidInputError.of(message, suggestion=f"https://{text}")
    return NetworkTarget(TargetKind.NETWORK, host=normalise_network(text))


def _parse_host_form(text: str) -> NetworkTarget:
    if "*" in text:
        return _parse_wildcard(text)
    if text.count(":") > 1 and not text.startswith("["):
        return NetworkTarget(TargetKind.HOST, host=normalise_ipv6(text))
    host, port = _split_port(text)
    return NetworkTarget(TargetKind.HOST, host=host, port=port)


def _parse_wildcard(text: str) -> NetworkTarget:
    if not text.startswith("*.") or "*" in text[1:]:
        raise InvalidInputError.of(f"'*' can only replace the first labels, as in '*.example.com': {shown(text)}")
    host, port = _split_port(text[2:])
    if ":" in host or host.rpartition(".")[2].isdecimal():
        raise InvalidInputError.of(f"an address has no labels that '*' could replace: {shown(text)}")
    if is_public_suffix(host):
        raise InvalidInputError.of(f"anyone can get a name below {shown(host)}; name the host or a narrower pattern")
    return NetworkTarget(TargetKind.WILDCARD, host=host, port=port)


def _split_port(text: str) -> tuple[str, int | None]:
    """Return canonical host and port of ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``."""
    if "@" in text:
        raise InvalidInputError.of("the target contains user information ('@' before the host)")
    if text.startswith("["):
        inside, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidInputError.of(f"not an IPv6 address in brackets: {shown(text)}")
        return normalise_ipv6(inside), _parse_port(rest[1:], text) if rest else None
    name, colon, port = text.partition(":")
    return normalise_host(name), _parse_port(port, text) if colon else None


def _parse_port(digits: str, text: str) -> int:
    if not _PORT.fullmatch(digits) or int(digits) > _HIGHEST_PORT:
        raise InvalidInputError.of(f"the port must be a number from 1 to {_HIGHEST_PORT}: {shown(text)}")
    return int(digits)
