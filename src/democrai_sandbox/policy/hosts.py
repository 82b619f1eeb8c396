"""Canonical spelling of hosts. Hosts that parsers read differently are rejected."""

from __future__ import annotations

import ipaddress
import re

from .problems import InvalidInputError, NetworkTargetMissingError, Problem
from .text import shown

LONGEST_HOST = 253

LOOPBACK = "localhost"
"""Index key for all spellings of the loopback host."""

LOOPBACK_ADDRESSES = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

_MAPPED_PREFIX_LENGTH = 96
_LOOPBACK_SPELLINGS = frozenset({LOOPBACK, *map(str, LOOPBACK_ADDRESSES)})
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# Last part of an IPv4 address as the C library and browsers read it, in any old spelling.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# IDNA maps these characters to ".", which would silently split a label.
_LOOKALIKE_DOTS = re.compile("[\u3002\uff0e\uff61\u2024\ufe52]")
# The only letter whose lower case depends on its neighbors, so clients that lower labels or whole names differ.
_CAPITAL_SIGMA = "\u03a3"


def normalise_host(text: str) -> str:
    """Return a name or IPv4 address in canonical form.

    Case is folded, a non-ASCII name becomes its IDNA 2008 form, one trailing dot is removed. A host whose last label is
    a number must be a canonical IPv4 address: four decimal parts without leading zeros, and no trailing dot.
    """
    if not text:
        raise NetworkTargetMissingError([Problem("", "the host is missing")])
    if len(text) > LONGEST_HOST + 1:
        raise InvalidInputError.of(f"the host is longer than {LONGEST_HOST} characters")
    if "%" in text:
        raise InvalidInputError.of(f"the host contains a '%': {shown(text)}")
    name = (text if text.isascii() else _to_ascii(text)).lower()
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        return _normalise_ipv4(name)
    return _checked_name(name.removesuffix("."), text)


def normalise_ipv6(text: str) -> str:
    """Return an IPv6 address in compressed form, or the IPv4 address it maps. Scope ids are rejected."""
    if "%" in text:
        raise InvalidInputError.of(f"the host contains a '%': {shown(text)} (scope ids are not supported)")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise InvalidInputError.of(f"not an IPv6 address: {shown(text)}") from None
    return str(address.ipv4_mapped or address)


def normalise_network(text: str) -> str:
    """Return an address range in CIDR form; a range of IPv4-mapped addresses becomes the IPv4 range."""
    base, _, length = text.partition("/")
    if "%" in base or not re.fullmatch(r"0|[1-9][0-9]{0,2}", length):
        raise InvalidInputError.of(f"not an address range: {shown(text)}")
    try:
        network = ipaddress.ip_network(text, strict=False)
        first = ipaddress.ip_address(base)
    except ValueError:
        raise InvalidInputError.of(f"not an address range: {shown(text)}") from None
    if network.network_address != first:
        message = f"the address range {shown(text)} has bits set beyond its length"
        raise InvalidInputError.of(message, suggestion=str(network))
    mapped = getattr(first, "ipv4_mapped", None)
    # A mapped address has its 96th bit set, so a range that starts with one is never shorter than that.
    return str(network) if mapped is None else f"{mapped}/{network.prefixlen - _MAPPED_PREFIX_LENGTH}"


def is_address(host: str) -> bool:
    """Return whether a canonical host is an address, not a name."""
    return ":" in host or host[host.rfind(".") + 1 :].isdecimal()


def host_key(host: str) -> str:
    """Return the index key of a canonical host; the loopback spellings share one."""
    return LOOPBACK if host in _LOOPBACK_SPELLINGS else host


def bracketed(host: str) -> str:
    """Return the host as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def _normalise_ipv4(name: str) -> str:
    try:
        return str(ipaddress.IPv4Address(name))
    except ValueError:
        message = f"the host {shown(name)} is a number that is not a canonical IPv4 address (four decimal parts)"
        raise InvalidInputError.of(message) from None


def _checked_name(name: str, given: str) -> str:
    if len(name) > LONGEST_HOST:
        raise InvalidInputError.of(f"the host is longer than {LONGEST_HOST} characters")
    for label in name.split("."):
        if not _LABEL.fullmatch(label):
            raise InvalidInputError.of(f"not a host name: {shown(given)} (label {shown(label)})")
    return name


def _to_ascii(text: str) -> str:
    if _LOOKALIKE_DOTS.search(text):
        raise InvalidInputError.of(f"the host contains a character that looks like a dot: {shown(text)}")
    labels = [label if label.isascii() else _to_ascii_label(label, text) for label in text.split(".")]
    return ".".join(labels)


def _to_ascii_label(label: str, host: str) -> str:
    lowered = label.lower()
    # Lower case must not turn a foreign letter into an ASCII one (KELVIN SIGN becomes "k").
    if _CAPITAL_SIGMA in label or sum(map(str.isascii, lowered)) != sum(map(str.isascii, label)):
        raise InvalidInputError.of(f"the host contains a letter that becomes another one in lower case: {shown(host)}")
    try:
        import idna  # noqa: PLC0415  # only hosts that are not ASCII need it
    except ImportError:
        message = f"the host {shown(host)} is not ASCII and the idna package is missing; write its xn-- form"
        raise InvalidInputError.of(message) from None
    try:
        encoded = idna.alabel(lowered).decode("ascii")
    except UnicodeError as error:
        raise InvalidInputError.of(f"not an internationalized host name: {shown(host)} ({error})") from None
    # Check the original spelling too, because IDNA 2003 tables in some Python versions know only lower-case letters.
    for written in (label, lowered):
        _refuse_other_reading(written, encoded, host)
    return encoded


def _refuse_other_reading(label: str, encoded: str, host: str) -> None:
    """Reject a label that clients of the older IDNA 2003, such as ``socket``, send to another host (sharp s)."""
    try:
        older = label.encode("idna").decode("ascii")
    except UnicodeError:
        return  # such a client fails instead of connecting to another host
    if older != encoded:
        message = f"the host {shown(host)} means different hosts to different clients; write its xn-- form ({encoded})"
        raise InvalidInputError.of(message)
