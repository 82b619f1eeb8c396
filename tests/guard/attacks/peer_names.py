"""The name server of the attacks: in a network of its own, where every name is made up."""

from __future__ import annotations

import socket
import struct

GOOD, BAD, METADATA = "203.0.113.5", "203.0.113.6", "169.254.169.254"
NAT64, TUNNEL = "64:ff9b::7f00:1", "2002:7f00:1::1"
ADDRESSES = (GOOD, BAD, METADATA, NAT64, TUNNEL)

PERMITTED: dict[str, tuple[str, ...]] = {
    "api.test": (GOOD,),
    "db.corp.test": (GOOD,),
    "rebound.test": (GOOD, "127.0.0.1"),
    "metadata.test": (METADATA,),
    "loopback.test": ("127.0.0.1",),
    "loopback-high.test": ("127.0.0.2",),
    "unspecified.test": ("0.0.0.0",),
    "six.test": ("::1",),
    "mapped.test": ("::ffff:127.0.0.1",),
    "nat64.test": (NAT64,),
    "tunnel.test": (TUNNEL,),
    "both.test": (f"{BAD},127.0.0.1",),
}
"""What a name leads to; the answers of one name come one after the other, and the last one stays."""
HIJACKED = {"db.evil.test": BAD, "evil.test": BAD}
"""Names that no rule names: asking for them is a hit, and so is what they lead to."""

asked: dict[str, int] = {}


def answer(listener: socket.socket, query: bytes, sender: object) -> list[str]:
    """Answer one query; returns what should not have been asked."""
    name, end = _name_of(query)
    kind = struct.unpack_from("!H", query, end)[0]
    known = name.lower() in PERMITTED
    addresses = _addresses(name.lower(), kind)
    wanted = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
    records = b""
    count = 0
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if family == wanted:
            packed = socket.inet_pton(family, address)
            records += struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed
            count += 1
    flags = 0x8180 if known or name.lower() in HIJACKED else 0x8183
    head = query[:2] + struct.pack("!HHHHH", flags, 1, count, 0, 0)
    listener.sendto(head + query[12 : end + 4] + records, sender)
    return [] if known else [f"names: a query for {name}"]


def _name_of(query: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
        at += 1 + query[at]
    return ".".join(labels), at + 1


def _addresses(name: str, kind: int) -> list[str]:
    if name in HIJACKED:
        return [HIJACKED[name]]
    answers = PERMITTED.get(name)
    if answers is None:
        return []
    if kind == 1 and len(answers) > 1:
        turn = asked.get(name, 0)
        asked[name] = turn + 1
        return [answers[min(turn, len(answers) - 1)]]
    return answers[0].split(",")
