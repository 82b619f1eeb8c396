"""Other forms of one address: mapped, unspecified, scoped, and addresses inside options."""

from __future__ import annotations

import socket
import struct

from tests.guard.attacks import namespaces
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    ask,
    dial,
    network_attack,
    network_attacks_of,
    one_path,
    peers,
    web,
)

SIX = socket.AF_INET6


def both_forms(ground: Ground) -> list[tuple[str, str]]:
    """The server's address may be dialled and read from."""
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).web}")]


def by_six(host: str, *rest: int):
    return lambda ground: ask(dial((host, peers(ground).web, *rest), SIX))


network_attacks_of(
    {
        "mapped": by_six("::ffff:127.0.0.2"),
        "mapped_hexadecimal": by_six("::ffff:7f00:2"),
        "mapped_long": by_six("0:0:0:0:0:ffff:127.0.0.2"),
        "mapped_upper_case": by_six("::FFFF:7F00:0002"),
        "mapped_with_flow": by_six("::ffff:127.0.0.2", 7, 0),
        "mapped_with_scope": by_six("::ffff:127.0.0.2", 0, 1),
        "mapped_bytes": lambda ground: ask(dial((b"::ffff:127.0.0.2", peers(ground).web), SIX)),
    },
    "an IPv4 address that no rule names is dialled in its IPv6 form: {}",
    expect=REFUSED,
    rules=both_forms,
    group="six_",
    needs=("IPv6",),
)
network_attacks_of(
    {
        "unspecified": lambda ground: ask(dial(("::", peers(ground).other), SIX)),
        "mapped_unspecified": lambda ground: ask(dial(("::ffff:0.0.0.0", peers(ground).other), SIX)),
        "loopback": lambda ground: ask(dial(("::1", peers(ground).other), SIX)),
        "loopback_scope": lambda ground: ask(dial(("::1", peers(ground).other, 0, 1), SIX)),
        "long": lambda ground: ask(dial(("0:0:0:0:0:0:0:1", peers(ground).other), SIX)),
    },
    "the machine itself is dialled over IPv6: {}",
    expect=REFUSED,
    group="own_",
    servers=("six",),
    needs=("IPv6",),
)


@network_attack("a rule for one loopback address does not open the others", rules=both_forms)
def loopback_is_wide(ground: Ground) -> object:
    return ask(dial(("127.0.0.2", peers(ground).web)))


@network_attack("the connection is taken apart and made anew to another address", rules=both_forms, servers=("udp",))
def connected_again(ground: Ground) -> object:
    sock = dial(web(ground), kind=socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", peers(ground).other))
    sock.send(b"x")
    return sock.recv(99)


@network_attack("a connected datagram socket sends to another address", rules=both_forms, servers=("udp",))
def connected_sends_elsewhere(ground: Ground) -> None:
    dial(web(ground), kind=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", peers(ground).other))


def watch(ground: Ground) -> None:
    """The host listens to the packets in a network of its own, where the address is one of the machine's."""
    namespaces.enter(ground.base, addresses=["fd00:4711::1"])
    ground.held.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    ground.held.wire.bind(("lo", 0))
    ground.held.wire.setblocking(False)


watch.first = True


def packets_to(target: bytes):
    """Whether a packet went to the address that no rule names."""

    def look(ground: Ground) -> bool | None:
        try:
            while True:
                packet = ground.held.wire.recv(65535)
                if target in packet[14:54] and b"exfiltrated" in packet:
                    return True
        except BlockingIOError:
            return None

    return look


ROUTE = struct.pack("!BBB", 131, 11, 4) + socket.inet_aton("127.0.0.2") + socket.inet_aton("127.0.0.3") + b"\0"


@network_attack(
    "the kernel is asked to route the packets over an address that no rule names",
    expect=REFUSED,
    rules=both_forms,
    needs=("root", "namespaces", "IPv6"),
    before=watch,
    then=packets_to(socket.inet_aton("127.0.0.3")),
)
def source_route(ground: Ground) -> None:
    """IP options of a socket: the packet goes to the first address of the list."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, ROUTE)
    sock.sendto(b"exfiltrated", web(ground))


@network_attack(
    "the kernel is asked by a message to route it over an address that no rule names",
    expect=REFUSED,
    rules=both_forms,
    needs=("root", "namespaces", "IPv6"),
    before=watch,
    then=packets_to(socket.inet_aton("127.0.0.3")),
)
def source_route_message(ground: Ground) -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.sendmsg([b"exfiltrated"], [(socket.IPPROTO_IP, 7, ROUTE)], 0, web(ground))


def six_rules(ground: Ground) -> list[tuple[str, str]]:
    return [("connect", "[::1]:9")]


def segments() -> bytes:
    """A routing header: next header, length, type 4, segments left, last entry, flags, tag, then the segments."""
    final, first = socket.inet_pton(SIX, "::1"), socket.inet_pton(SIX, "fd00:4711::1")
    return struct.pack("!BBBBBBH", 0, 4, 4, 1, 1, 0, 0) + final + first


def home_address() -> bytes:
    """A routing header of type 2, which has one address."""
    return struct.pack("!BBBB4x", 0, 2, 2, 1) + socket.inet_pton(SIX, "fd00:4711::1")


@network_attack(
    "an IPv6 routing header leads the packet to an address that no rule names",
    expect=REFUSED,
    rules=six_rules,
    needs=("root", "namespaces", "IPv6"),
    before=watch,
    then=packets_to(socket.inet_pton(SIX, "fd00:4711::1")),
)
def routing_header(ground: Ground) -> None:
    sock = socket.socket(SIX, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, segments())
    sock.sendto(b"exfiltrated", ("::1", 9))


@network_attack(
    "an IPv6 routing header in a message leads it to an address that no rule names",
    unguarded="only a kernel with mobile IPv6 takes it",
    expect=REFUSED,
    rules=six_rules,
    needs=("root", "namespaces", "IPv6"),
    before=watch,
    then=packets_to(socket.inet_pton(SIX, "fd00:4711::1")),
)
def routing_header_message(ground: Ground) -> None:
    sock = socket.socket(SIX, socket.SOCK_DGRAM)
    sock.sendmsg([b"exfiltrated"], [(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, home_address())], 0, ("::1", 9))


@network_attack(
    "an IPv6 routing header is set for all packets, by the older of two options",
    unguarded="only a kernel with mobile IPv6 takes it",
    expect=REFUSED,
    rules=six_rules,
    needs=("IPv6",),
)
def routing_header_older(ground: Ground) -> None:
    header = home_address()
    message = struct.pack("@Nii", 16 + len(header), socket.IPPROTO_IPV6, socket.IPV6_RTHDR) + header
    socket.socket(SIX, socket.SOCK_DGRAM).setsockopt(socket.IPPROTO_IPV6, 6, message)
