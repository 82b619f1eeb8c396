"""Lookup of network rules: an index for Python, and flat keys for the native core and the decision store."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from .hosts import LOOPBACK, LOOPBACK_ADDRESSES, host_key, is_address
from .operations import NetworkAccess, Operation, ResourceType, network_access
from .targets import DEFAULT_PORTS, NetworkTarget, TargetKind, parse_declaration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from .rules import AccessRule


def implied_connection(target: NetworkTarget) -> NetworkTarget:
    """Return the connection that an allowed HTTP request to this URL needs, in host form with its port."""
    if target.kind is not TargetKind.URL:
        raise ValueError(f"expected a URL target, got {target}")
    return NetworkTarget(TargetKind.HOST, host=target.host, port=target.port)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class NetworkIndex:
    """Network rules by target. Immutable.

    * A URL rule covers URLs with its scheme, host and port, and its path or one below it by whole segments. It never
      covers a socket.
    * A host, wildcard or network rule covers sockets and URLs of its hosts, on its port or on any.
    * A Unix rule covers that socket.
    * An operation is covered only by a rule that names it. ``receive`` and ``send`` do not imply ``connect`` here;
      the caller that permits an HTTP request opens the connection that ``implied_connection`` returns.

    If several rules cover a target, the most specific one is returned: URL before host form, longer path, exact port,
    longer wildcard, longer network prefix; among equals the first declared one.
    """

    _rules: dict[tuple[str, Operation], AccessRule]
    _names: dict[str, AccessRule]
    _depth: int
    _prefixes: frozenset[tuple[int, int]]

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        found: dict[tuple[str, Operation], AccessRule] = {}
        names: dict[str, AccessRule] = {}
        depth, prefixes = 0, set()
        for rule in rules:
            if rule.resource_type is not ResourceType.NETWORK:
                continue
            target = parse_declaration(rule.normalized_target)
            key, *others = _keys(target)
            found.setdefault((key, rule.operation), rule)
            names.update((other, rule) for other in others if other[0] == "R" and other not in names)
            depth = max(depth, len(target.path))
            if target.kind is TargetKind.NETWORK:
                prefixes.add(prefix_of(key))
        values = (("_rules", found), ("_names", names), ("_depth", depth), ("_prefixes", frozenset(prefixes)))
        for name, value in values:
            object.__setattr__(self, name, value)

    def find(self, operation: Operation, target: NetworkTarget) -> AccessRule | None:
        """Return the rule that allows ``operation`` on the URL, host or Unix socket, or None."""
        if target.kind in (TargetKind.WILDCARD, TargetKind.NETWORK):
            return None
        # The declared depth limits the keys, so that a request with thousands of segments costs no more than any other.
        for key in covering_keys(target, self._depth, self._prefixes):
            rule = self._rules.get((key, operation))
            if rule is not None:
                return rule
        return None

    def allows(self, operation: Operation, target: NetworkTarget) -> bool:
        """Return whether a rule allows ``operation`` on the URL, host or Unix socket."""
        return self.find(operation, target) is not None

    def find_name(self, host: str) -> AccessRule | None:
        """Return a rule, of any operation and form, that permits the lookup of this canonical host name."""
        rule = self._names.get(f"R{host_key(host)}")
        if rule is not None or is_address(host):
            return rule
        rules = (self._names.get(f"R*.{name}") for name in _parents(host))
        return next((rule for rule in rules if rule is not None), None)


def _parents(name: str) -> Iterator[str]:
    """Yield the parent domains of a host name, the longest first."""
    dot = name.find(".")
    while dot != -1:
        yield name[dot + 1 :]
        dot = name.find(".", dot + 1)


def network_entries(rules: Iterable[AccessRule]) -> tuple[tuple[bytes, int], ...]:
    """Return the keys of the network rules among ``rules`` with their masks, unique and sorted."""
    masks: dict[str, NetworkAccess] = {}
    for rule in rules:
        if rule.resource_type is ResourceType.NETWORK:
            bit = network_access(rule.operation)
            for key in _keys(parse_declaration(rule.normalized_target)):
                masks[key] = masks.get(key, bit) | bit
    return tuple(sorted((key.encode(), int(mask)) for key, mask in masks.items()))


def rule_key(normalized: str) -> str:
    """Return the key of a rule with this canonical target. URLs, the most frequent ones, are split without parsing."""
    scheme, separator, rest = normalized.partition("://")
    if not separator or rest.startswith("["):
        return _keys(parse_declaration(normalized))[0]
    authority, slash, path = rest.partition("/")
    host, _, port = authority.partition(":")
    return f"U{scheme}|{host_key(host)}|{port or DEFAULT_PORTS[scheme]}|{slash}{path}"


def prefix_of(key: str) -> tuple[int, int]:
    """Return IP version and prefix length of an address range's key."""
    version, length, _ = key[1:].split("|", 2)
    return int(version), int(length)


def covering_keys(target: NetworkTarget, depth: int, prefixes: Collection[tuple[int, int]] = ()) -> Iterator[str]:
    """Yield the keys of every rule that would cover a URL, host or Unix socket, the most specific first.

    ``depth`` is the longest path of any rule, in segments, and ``prefixes`` are the (version, prefix length) pairs of
    all network rules, so that keys without rules are not looked up.
    """
    if target.kind is TargetKind.UNIX:
        yield f"S{target.socket}"
        return
    host = host_key(target.host)
    if target.kind is TargetKind.URL:
        yield from _covering_urls(target, f"{target.scheme}|{host}|{target.port}", depth)
    ports = ("*",) if target.port is None else (str(target.port), "*")
    for port in ports:
        yield f"H{host}|{port}"
    if host == LOOPBACK or is_address(host):
        yield from _covering_networks(host, prefixes)
        return
    for name in _parents(host):
        for port in ports:
            yield f"W{name}|{port}"


def _covering_urls(target: NetworkTarget, origin: str, depth: int) -> Iterator[str]:
    # Servers disagree about the target of an ambiguous path, so only a rule for all paths covers it.
    for length in range(0 if target.ambiguous else min(depth, len(target.path)), -1, -1):
        path = "".join(f"/{segment}" for segment in target.path[:length])
        yield f"U{origin}|{path}"


def _covering_networks(host: str, prefixes: Collection[tuple[int, int]]) -> Iterator[str]:
    addresses = LOOPBACK_ADDRESSES if host == LOOPBACK else (ipaddress.ip_address(host),)
    for address in addresses:
        for version, length in sorted(prefixes, reverse=True):
            if version == address.version:
                shift = address.max_prefixlen - length
                network = int(address) >> shift << shift
                yield f"N{version}|{length}|{network.to_bytes(address.max_prefixlen // 8).hex()}"


def _keys(target: NetworkTarget) -> tuple[str, ...]:
    """Return the keys of a rule with this target, its own key first.

    One dictionary from key to mask answers every question of a check. The first letter of a key is its type:

    * ``U<scheme>|<host>|<port>|<path>`` a URL, with the path ``""`` or ``/seg/seg``
    * ``O<scheme>|<host>|<port>`` the origin of a URL
    * ``H<host>|<port>`` a host, with the port ``*`` for any; ``P<host>`` the same host on any port
    * ``W<suffix>|<port>`` the names below a suffix; ``P*.<suffix>`` the same names on any port
    * ``N<4 or 6>|<prefix length>|<hex>`` a network, its address in lower-case hex digits without separators
    * ``S<socket>`` a Unix socket
    * ``R<host>`` and ``R*.<suffix>`` a name that may be looked up
    """
    if target.kind is TargetKind.URL:
        host = host_key(target.host)
        origin = f"{target.scheme}|{host}|{target.port}"
        path = "".join(f"/{segment}" for segment in target.path)
        return f"U{origin}|{path}", f"O{origin}", f"R{host}"
    if target.kind is TargetKind.UNIX:
        return (f"S{target.socket}",)
    if target.kind is TargetKind.NETWORK:
        network = ipaddress.ip_network(target.host)
        return (f"N{network.version}|{network.prefixlen}|{network.network_address.packed.hex()}",)
    port = "*" if target.port is None else str(target.port)
    if target.kind is TargetKind.WILDCARD:
        return f"W{target.host}|{port}", f"P*.{target.host}", f"R*.{target.host}"
    host = host_key(target.host)
    return f"H{host}|{port}", f"P{host}", f"R{host}"
