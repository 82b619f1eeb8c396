"""Network rules as flat keys, the form in which the native core looks them up.

One dictionary from key to mask answers every question of a check: the first letter of a key says which question.

* ``U<scheme>|<host>|<port>|<path>`` a URL, with the path ``""`` or ``/seg/seg``; ``O<scheme>|<host>|<port>`` its origin
* ``H<host>|<port>`` a host, with the port ``*`` for any; ``P<host>`` the same host on whatever port
* ``W<suffix>|<port>`` the names below a suffix; ``P*.<suffix>`` the same names on whatever port
* ``N<4 or 6>|<prefix length>|<hex>`` a network, its address in lower-case hex digits without separators
* ``S<socket>`` a unix socket
* ``R<host>`` and ``R*.<suffix>`` a name that may be looked up
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from .hosts import host_key
from .operations import NetworkAccess, ResourceType, network_access
from .targets import NetworkTarget, TargetKind, parse_declaration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .rules import AccessRule


def network_entries(rules: Iterable[AccessRule]) -> tuple[tuple[bytes, int], ...]:
    """Return the keys of the network rules among ``rules`` with their masks; a key comes once, in sorted order."""
    masks: dict[str, NetworkAccess] = {}
    for rule in rules:
        if rule.resource_type is ResourceType.NETWORK:
            bit = network_access(rule.operation)
            for key in _keys(parse_declaration(rule.normalized_target)):
                masks[key] = masks.get(key, bit) | bit
    return tuple(sorted((key.encode(), int(mask)) for key, mask in masks.items()))


def _keys(target: NetworkTarget) -> tuple[str, ...]:
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
