"""Policy: its file, validated completely, and its endpoints, resolved to addresses.

The file is read once, from one descriptor that was opened as its owner. A name server that hangs delays an answer
briefly, but never blocks the helper. Addresses stay valid for a while after a name has stopped resolving to them: large
services return a few of many addresses each time, and the filter checks every packet of a connection.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import socket
import stat
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .iptables import Allow
from .protocol import Reason, RequestRefused, strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


WAIT_SECONDS = 1.5
KEEP_SECONDS = 3600.0
FRESH_SECONDS = 30.0
_NEVER = float("-inf")
_WORKERS = 8
_MOST_RESOLVED = 64
_MOST_NAMES = 20_000
_MOST_SERVERS = 8
_DNS_PORT = 53
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_LOOPBACK = ("127.0.0.1", "::1")


class Resolution(NamedTuple):
    """Resolved endpoints."""

    allowed: frozenset[Allow]
    unresolved: tuple[str, ...]
    """Names without any address."""
    withheld: tuple[str, ...]
    """Names that resolve to loopback or link-local addresses, which DNS may not open; see ``_acceptable``."""


@dataclass(slots=True)
class _Name:
    addresses: dict[str, float] = field(default_factory=dict)
    """Addresses with the time of the last answer that contained them."""
    tried: float = _NEVER
    """Time of the last answer or failure."""
    pending: bool = False


class Resolver:
    """Resolver with a few threads and a cache."""

    def __init__(
        self,
        lookup: Callable[[str], Iterable[str]] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep_seconds: float = KEEP_SECONDS,
        hosts: str = "/etc/hosts",
    ) -> None:
        self._lookup = system_lookup if lookup is None else lookup
        self._clock = clock
        self._keep = keep_seconds
        self._hosts = hosts
        self._names: dict[str, _Name] = {}
        self._waiting: deque[str] = deque()
        self._workers = 0
        self._changed = threading.Condition()

    def ask(
        self,
        endpoints: Iterable[PolicyEndpoint],
        *,
        fresh: float = FRESH_SECONDS,
        seconds: float = WAIT_SECONDS,
        patient: bool = False,
    ) -> None:
        """Look up the names of endpoints, except those looked up within ``fresh`` seconds.

        Wait only for unknown names, and only once, unless ``patient`` is set: a name server that hangs must not delay
        new decisions. The next call uses answers that arrive later.
        """
        endpoints = tuple(endpoints)
        names = {each.host for each in endpoints if not _is_fixed(each.host)}
        told = {each.host for each in endpoints if each.addresses}
        now = self._clock()
        with self._changed:
            self._forget(names)
            asked = []
            for name in sorted(names):
                entry = self._names.setdefault(name, _Name())
                if entry.pending or now - entry.tried < fresh:
                    continue
                if patient or (entry.tried == _NEVER and name not in told):
                    asked.append(entry)
                entry.pending = True
                self._waiting.append(name)
            for _ in range(min(_WORKERS - self._workers, len(self._waiting))):
                self._workers += 1
                threading.Thread(target=self._work, name="resolver", daemon=True).start()
            end = time.monotonic() + seconds
            while any(entry.pending for entry in asked) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def resolve(self, endpoints: Iterable[PolicyEndpoint]) -> Resolution:
        """Return the destinations of endpoints with known names."""
        local = _local_names(self._hosts)
        allowed: set[Allow] = set()
        unresolved: dict[str, None] = {}
        withheld: dict[str, None] = {}
        for each in endpoints:
            found = {*self._known(each.host), *each.addresses}
            good = [address for address in found if _acceptable(each.host, address, local)]
            allowed.update(Allow(each.protocol, address, each.port) for address in good)
            if len(good) < len(found):
                withheld[each.host] = None
            if not good:
                unresolved[each.host] = None
        return Resolution(frozenset(allowed), tuple(unresolved), tuple(withheld))

    def _known(self, host: str) -> tuple[str, ...]:
        if host in _LOOPBACK_NAMES:
            return _LOOPBACK
        if _is_fixed(host):
            return (host,)
        oldest = self._clock() - self._keep
        with self._changed:
            entry = self._names.get(host)
            return () if entry is None else tuple(a for a, seen in entry.addresses.items() if seen >= oldest)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._workers -= 1
                    return
                name = self._waiting.popleft()
            try:
                found = tuple(self._lookup(name))
            except (OSError, UnicodeError):
                found = ()
            with self._changed:
                self._note(self._names.setdefault(name, _Name()), found)
                self._changed.notify_all()

    def _note(self, entry: _Name, found: tuple[str, ...]) -> None:
        now = self._clock()
        entry.pending, entry.tried = False, now
        entry.addresses.update(dict.fromkeys(found, now))
        newest = sorted(entry.addresses.items(), key=lambda item: -item[1])[:_MOST_RESOLVED]
        entry.addresses = {address: seen for address, seen in newest if seen >= now - self._keep}

    def _forget(self, names: set[str]) -> None:
        """Limit the cache: remove names that have not been requested lately."""
        if len(self._names) + len(names) > _MOST_NAMES:
            for name in [name for name, entry in self._names.items() if name not in names and not entry.pending]:
                del self._names[name]


def system_lookup(name: str) -> tuple[str, ...]:
    """Resolve a name with the system's resolver, like the application."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_plain(str(entry[4][0])) for entry in found))


def name_servers(path: str = "/etc/resolv.conf") -> frozenset[Allow]:
    """Return the system's name servers, for both protocols."""
    try:
        lines = [line.split() for line in Path(path).read_text("utf-8", "replace").splitlines()]
    except OSError:
        lines = []
    found = [_plain(words[1]) for words in lines if words[:1] == ["nameserver"] and len(words) > 1]
    # The C library falls back to this machine.
    servers = [address for address in found if _is_fixed(address)][:_MOST_SERVERS] or ["127.0.0.1"]
    return frozenset(Allow(protocol, server, _DNS_PORT) for server in servers for protocol in ("tcp", "udp"))


def _plain(address: str) -> str:
    """Return an address without its interface, and convert an IPv4-mapped IPv6 address to IPv4."""
    return str(_address(address.partition("%")[0]) or address)


@lru_cache(maxsize=_MOST_NAMES)
def _is_fixed(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _acceptable(host: str, address: str, local: dict[str, set[str]]) -> bool:
    """Return whether an address may be opened for a host.

    The name server of a permitted name could answer with an address of this machine, and so open a local database.
    Loopback and link-local addresses are opened only if the policy or the machine's hosts file contains them.
    """
    is_near = _is_near(address)
    return is_near is False or (is_near is True and (_is_fixed(host) or address in local.get(host, ())))


@lru_cache(maxsize=_MOST_NAMES)
def _is_near(address: str) -> bool | None:
    """Whether an address is loopback or link-local; None for an address that cannot be a destination."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified or parsed.is_multicast:
        return None
    return parsed.is_loopback or parsed.is_link_local


def _local_names(path: str) -> dict[str, set[str]]:
    """Return the loopback and link-local addresses in the hosts file, by name."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            found.setdefault(name.lower(), set()).add(_plain(address))
    return found
