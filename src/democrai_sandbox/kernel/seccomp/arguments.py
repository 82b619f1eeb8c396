"""The parts of a filter that look at arguments. Each ends at one of the two labels, or falls into a jump to one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from .bpf import argument

if TYPE_CHECKING:
    from .bpf import Assembler

ALLOW = "allow"
REFUSE = "refuse"

CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET; clone cannot make -TIME: its bit is part of the signal there."""
MSG_FASTOPEN = 0x20000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# These are written out, since they are the kernel's numbers and not those of the machine a program is assembled on.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_ALG = 1, 2, 10, 16, 38
SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_PACKET = 1, 2, 3, 5, 10
SOCK_TYPES = 0xF
"""The bits of the type; those above are SOCK_CLOEXEC and SOCK_NONBLOCK."""
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SMC, IPPROTO_MPTCP = 6, 17, 256, 262
NETLINK_ROUTE = 0

LAST_SINGLE = {"setpriority": 0, "ioprio_set": 1}
"""The value for a single process; those above are for a group and a user."""
SEND_FLAGS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
"""Which argument has the flags."""


class Inet(StrEnum):
    """Which sockets towards other machines a program may make."""

    ALL = "all"
    NO_DATAGRAM = "no_datagram"
    """TCP only: nothing but the packet filter stops a datagram by its target."""
    NONE = "none"


def inspect_clone(code: Assembler) -> None:
    """Refuse new namespaces: in a user namespace of its own a program has every capability."""
    code.load(argument(0))
    code.if_any_bit(CLONE_NEW, REFUSE, ALLOW)


def inspect_itself(code: Assembler) -> None:
    """Allow what a program does to itself, by the number 0, as the C library does it for limits.

    A limit of no CPU time kills any process of the same user, and Landlock, which refuses signals, does not see it. By
    the others any can be slowed down. Other threads of its own a filter cannot tell from those of the application.
    """
    code.load(argument(0))
    code.if_equal(0, ALLOW, REFUSE)


def inspect_priority(code: Assembler, name: str) -> None:
    """Allow a program to put itself back, and nobody else: not by its number, its group or its user."""
    code.load(argument(0))
    code.if_at_least(LAST_SINGLE[name] + 1, REFUSE)
    code.load(argument(1))
    code.if_equal(0, ALLOW, REFUSE)


def inspect_ioctl(code: Assembler) -> None:
    """Refuse to type into a terminal: the shell from which the application was started would execute it."""
    code.load(argument(1))
    code.if_equal(TIOCSTI, REFUSE)
    code.if_equal(TIOCLINUX, REFUSE, ALLOW)


def inspect_send(code: Assembler, name: str) -> None:
    """Refuse to connect by sending, which Landlock does not see."""
    code.load(argument(SEND_FLAGS[name]))
    code.if_any_bit(MSG_FASTOPEN, REFUSE, ALLOW)


def inspect_socket(code: Assembler, *, child: bool, inet: Inet, unix: bool) -> None:
    """Allow the families that the packet filter and Landlock can see, and those that do not leave the machine.

    All others (AF_PACKET, AF_XDP, AF_VSOCK, AF_TIPC, AF_RXRPC ...) carry data past both.
    """
    internet = REFUSE if inet is Inet.NONE else "socket:inet"
    code.load(argument(0))
    code.if_equal(AF_UNIX, ALLOW if unix else REFUSE)
    code.if_equal(AF_INET, internet)
    code.if_equal(AF_INET6, internet)
    if child:
        code.if_equal(AF_NETLINK, "socket:netlink", REFUSE)
        _inspect_netlink(code)
    else:
        code.if_equal(AF_NETLINK, ALLOW)
        code.if_equal(AF_ALG, ALLOW, REFUSE)
    if inet is not Inet.NONE:
        code.label("socket:inet")
        code.load(argument(1))
        code.keep_bits(SOCK_TYPES)
        if child or inet is Inet.NO_DATAGRAM:
            _inspect_plain_internet(code, datagrams=inet is Inet.ALL)
        else:
            _inspect_any_internet(code)


def _inspect_netlink(code: Assembler) -> None:
    """Allow what names and addresses of interfaces are read by; other protocols configure, watch, or talk to others."""
    code.label("socket:netlink")
    code.load(argument(2))
    code.if_equal(NETLINK_ROUTE, ALLOW, REFUSE)


def _inspect_any_internet(code: Assembler) -> None:
    """Refuse packets of one's own making, and the protocols that are not on the wire what they seem.

    SOCK_PACKET with AF_INET is AF_PACKET by its oldest name. SMC goes on without IP once it is connected.
    """
    code.if_equal(SOCK_RAW, REFUSE)
    code.if_equal(SOCK_PACKET, REFUSE)
    code.load(argument(2))
    code.if_equal(IPPROTO_SMC, REFUSE)
    code.if_equal(IPPROTO_MPTCP, REFUSE, ALLOW)


def _inspect_plain_internet(code: Assembler, *, datagrams: bool) -> None:
    """Allow TCP and, where it may, UDP. Landlock's rules for ports hold for TCP alone, not for SCTP or MPTCP."""
    code.if_equal(SOCK_STREAM, "socket:stream", None if datagrams else REFUSE)
    if datagrams:
        code.if_equal(SOCK_DGRAM, None, REFUSE)
        code.load(argument(2))
        code.if_equal(0, ALLOW)
        code.if_equal(IPPROTO_UDP, ALLOW, REFUSE)
    code.label("socket:stream")
    code.load(argument(2))
    code.if_equal(0, ALLOW)
    code.if_equal(IPPROTO_TCP, ALLOW, REFUSE)


def inspect_socketpair(code: Assembler, *, unix: bool) -> None:
    """Allow pairs of local sockets, and without ``unix`` only those that stay connected to each other.

    A datagram socket of a pair sends to any other path, as if it had been made by socket(); SOCK_RAW becomes one.
    """
    code.load(argument(0))
    code.if_equal(AF_UNIX, ALLOW if unix else None, REFUSE)
    if not unix:
        code.load(argument(1))
        code.keep_bits(SOCK_TYPES)
        code.if_equal(SOCK_STREAM, ALLOW)
        code.if_equal(SOCK_SEQPACKET, ALLOW, REFUSE)
