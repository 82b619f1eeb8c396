"""Policy file: read once from one descriptor that was opened as its owner, and validated completely."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import stat
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .protocol import Reason, RequestRefused, strict_json

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
LARGEST_FILE = 4 * 1024 * 1024
MOST_ENDPOINTS = 16384
MOST_ADDRESSES = 256
PROTOCOLS = ("tcp", "udp")
_LONGEST_HOST = 253
_LONGEST_ADDRESS = 64
_LONGEST_SOURCE = 1024
_HIGHEST_PORT = 65535
_PROBLEMS_TOLD = 10
_KEPT = 32768
"""Number of cached texts: the file is read again at every change, and most of it stays the same."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REPLACED_AT_MOST = 5
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
# Numbers that getaddrinfo accepts as addresses although they do not look like one: "2130706433", "0x7f.1".
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_KEYS = frozenset({"host", "port", "protocol", "source", "addresses"})


class PolicyEndpoint(NamedTuple):
    """Permitted destination: a name or address, a port, and tcp or udp."""

    host: str
    port: int
    protocol: str = "tcp"
    source: str = ""
    addresses: tuple[str, ...] = ()
    """Addresses to which the application has resolved the name."""


class Policy(NamedTuple):
    """Parsed policy file with the digest of its bytes."""

    endpoints: tuple[PolicyEndpoint, ...]
    digest: str = ""


def read_policy(path: str, owner: int, opened: Callable[[str], int]) -> Policy:
    """Read the policy file. ``opened`` opens it with the owner's rights, without following a link at its end.

    All checks and reads use this descriptor, independent of later changes to the path.
    """
    for _ in range(_REPLACED_AT_MOST):
        descriptor = _open(path, opened)
        try:
            before = os.fstat(descriptor)
            if before.st_nlink == 0:
                continue  # replaced between the two calls: read the newer one
            _check(path, before, owner)
            data = _read(descriptor)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or len(data) != after.st_size:
            raise _torn(path, "it changed while it was read")
        return parse_policy(data, path)
    raise RequestRefused("busy", f"the policy file {path} was replaced repeatedly while it was read", "try again")


def parse_policy(data: bytes, path: str = "") -> Policy:
    """Parse the content; raise one error with all problems."""
    try:
        value = strict_json(data)
    except ValueError as error:
        raise _torn(path, f"it is not complete JSON ({error})") from None
    if not isinstance(value, dict):
        raise _invalid(path, ["the file does not contain a JSON object"])
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise _invalid(path, [f"/version: expected {VERSION}, got {_shown(version)}"])
    problems = [f"/{_shown(key)}: unknown key" for key in value if key not in {"version", "endpoints"}]
    endpoints = _endpoints(value.get("endpoints"), "/endpoints", problems)
    if problems:
        raise _invalid(path, problems)
    return Policy(endpoints, hashlib.sha256(data).hexdigest())


def requested_endpoints(value: object) -> tuple[PolicyEndpoint, ...]:
    """Parse the endpoints of a request, with the same checks."""
    problems: list[str] = []
    endpoints = _endpoints(value, "/endpoints", problems)
    if problems:
        raise RequestRefused("bad_request", _told(problems), "send endpoints with a host, a port and a protocol")
    return endpoints


@lru_cache(_KEPT)
def canonical_host(text: str) -> str:
    """Return a name in lower case, or an address in its usual notation; raise ``ValueError`` otherwise."""
    address = _address(text)
    if address is not None:
        # A connection to the unspecified address goes to this machine, so the rule needs the loopback address.
        loopback = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - the two versions of IP
        return loopback if address.is_unspecified else str(address)
    host = text.lower().removesuffix(".")
    if "*" in host:
        raise ValueError("a wildcard is not a single host; remove it from the file")
    labels = host.split(".")
    if len(host) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("neither a host name in ASCII nor an IP address")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("an address in an unusual notation; use the usual one")
    return host


def _open(path: str, opened: Callable[[str], int]) -> int:
    fix = "write the file from the application before you send the request"
    try:
        return opened(path)
    except FileNotFoundError:
        raise RequestRefused("policy_missing", f"the policy file {path} does not exist", fix) from None
    except PermissionError:
        error = f"the application's user may not read the policy file {path}"
        raise RequestRefused("policy_mode", error, "make the file and its folders readable by that user") from None
    except OSError as error:
        text = f"the policy file {path} cannot be opened as a file: {error.strerror or error}"
        raise RequestRefused("policy_type", text, "put a regular file there, not a link or a device") from None


def _check(path: str, found: os.stat_result, owner: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _refused("policy_type", path, "is not a regular file", "put a regular file there")
    if found.st_uid != owner:
        text = f"belongs to user {found.st_uid}, not to user {owner}"
        raise _refused("policy_owner", path, text, "write the file from the application")
    if found.st_mode & _OTHERS_WRITE:
        text = f"is writable for other users (mode {stat.S_IMODE(found.st_mode):04o})"
        raise _refused("policy_mode", path, text, f"chmod 0600 {path}")
    if found.st_nlink > 1:
        text = "has a second name (a hard link)"
        raise _refused("policy_type", path, text, "remove the file; the application creates it again")
    if found.st_size > LARGEST_FILE:
        text = f"is larger than {LARGEST_FILE} bytes"
        raise _refused("policy_too_large", path, text, "declare fewer endpoints")


def _read(descriptor: int) -> bytes:
    parts: list[bytes] = []
    left = LARGEST_FILE + 1
    while left and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _endpoints(value: object, pointer: str, problems: list[str]) -> tuple[PolicyEndpoint, ...]:
    if not isinstance(value, list):
        problems.append(f"{pointer}: expected a list, got {_shown(value)}")
        return ()
    if len(value) > MOST_ENDPOINTS:
        problems.append(f"{pointer}: {len(value)} endpoints are more than {MOST_ENDPOINTS}")
        return ()
    found = [_endpoint(entry, f"{pointer}/{number}", problems) for number, entry in enumerate(value)]
    return tuple(entry for entry in found if entry is not None)


def _endpoint(value: object, pointer: str, problems: list[str]) -> PolicyEndpoint | None:
    if not isinstance(value, dict):
        problems.append(f"{pointer}: expected an object, got {_shown(value)}")
        return None
    before = len(problems)
    problems.extend(f"{pointer}/{_shown(key)}: unknown key" for key in value if key not in _KEYS)
    port = value.get("port")
    if type(port) is not int or not 1 <= port <= _HIGHEST_PORT:
        problems.append(f"{pointer}/port: expected a number from 1 to {_HIGHEST_PORT}, got {_shown(port)}")
    protocol = value.get("protocol", "tcp")
    if protocol not in PROTOCOLS:
        problems.append(f"{pointer}/protocol: expected tcp or udp, got {_shown(protocol)}")
    source = value.get("source", "")
    if not isinstance(source, str) or len(source) > _LONGEST_SOURCE:
        problems.append(f"{pointer}/source: expected a short text, got {_shown(source)}")
    host = _host(value.get("host"), f"{pointer}/host", problems)
    addresses = _addresses(value.get("addresses", []), f"{pointer}/addresses", problems)
    if len(problems) > before:
        return None
    return PolicyEndpoint(host, int(port or 0), str(protocol), str(source), addresses)


def _host(value: object, pointer: str, problems: list[str]) -> str:
    try:
        if not isinstance(value, str):
            raise ValueError("expected a host name or an IP address")  # noqa: TRY004, TRY301 - a problem like the others
        return canonical_host(value)
    except ValueError as error:
        problems.append(f"{pointer}: {_shown(value)}: {error}")
        return ""


def _addresses(value: object, pointer: str, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MOST_ADDRESSES:
        problems.append(f"{pointer}: expected a list of at most {MOST_ADDRESSES} addresses, got {_shown(value)}")
        return ()
    found: dict[str, None] = {}
    for number, text in enumerate(value):
        address = _canonical_address(text) if isinstance(text, str) and len(text) <= _LONGEST_ADDRESS else None
        if address is None:
            problems.append(f"{pointer}/{number}: expected an IP address, got {_shown(text)}")
        elif address:
            found[address] = None
    return tuple(found)


@lru_cache(_KEPT)
def _canonical_address(text: str) -> str | None:
    """Return an address in its usual notation; None for the unspecified one, with which name servers block names."""
    address = _address(text)
    if address is None:
        return None
    return "" if address.is_unspecified else str(address)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address; convert an IPv4-mapped IPv6 address to IPv4, as it is sent."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return None
        return address.ipv4_mapped or address
    return address


def _shown(value: object) -> str:
    """Return an untrusted value as a short ASCII text for logs."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - what fits a line


def _told(problems: list[str]) -> str:
    rest = len(problems) - _PROBLEMS_TOLD
    return "; ".join(problems[:_PROBLEMS_TOLD]) + (f"; and {rest} more" if rest > 0 else "")


def _refused(reason: Reason, path: str, text: str, fix: str) -> RequestRefused:
    return RequestRefused(reason, f"the policy file {path} {text}", fix)


def _torn(path: str, why: str) -> RequestRefused:
    return _refused("policy_torn", path, f"is incomplete: {why}", "write a new file and rename it over the old one")


def _invalid(path: str, problems: list[str]) -> RequestRefused:
    return _refused(
        "policy_invalid", path, f"is invalid: {_told(problems)}", "correct these entries; nothing was applied"
    )
