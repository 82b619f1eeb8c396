"""The parts of a filter that look at arguments. Each ends at one of the two labels, or falls into a jump to one."""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import TYPE_CHECKING

from .bpf import RET_ERRNO, argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .bpf import Assembler

ALLOW = "allow"
REFUSE = "refuse"

CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET; clone cannot make -TIME: its bit is part of the signal there."""
MSG_FASTOPEN = 0x20000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
IOCTL_KINDS = 0xFF00
"""The bits of an ioctl that say what kind of file it is for."""
FILE_SYSTEMS = (0x6600, 0x5800, 0x7600, 0x9400, 0x7200, 0xF500, 0xBC00, 0xCF00)
"""The kinds that are for files and folders: of all file systems, XFS, versions, btrfs, FAT, F2FS, bcachefs, CIFS."""
FILE_READERS = (0x80086601, 0x80087601, 0x801C581F, 0xC020660B)
"""FS_IOC_GETFLAGS, -GETVERSION, -FSGETXATTR, -FIEMAP: they change nothing."""
FILE_CLONERS = (0x40049409, 0x4020940D, 0xC0189436)
"""FICLONE, FICLONERANGE, FIDEDUPERANGE: they need a file that is open for writing."""
INTERFACES = ((0x8910, 0x8A00), (0x8B00, 0x8C00))
"""The ioctls that any socket takes, a local pair too, to tell about the interfaces of the machine."""
F_SETLEASE, F_NOTIFY, F_NEWER = 1024, 1026, 1039
"""A lease, a notice of changes, and the first of those that were not looked at (delegations are among them)."""
MFD_NOEXEC_SEAL = 8
MEMBERSHIPS = {0: ((35, 49),), 41: ((20, 22), (27, 29), (42, 49))}
"""By level, the ranges of options by which groups are joined and left: of IP, and of IPv6."""

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


def inspect_ioctl(code: Assembler, *, child: bool, network: bool) -> None:
    """Refuse to type into a terminal: the shell from which the application was started would execute it.

    A child changes nothing about files by it: a descriptor that is opened for neither reading nor writing does for
    that, which Landlock lets pass. Without network rules it is not told about the interfaces of the machine.
    """
    code.load(argument(1))
    code.if_equal(TIOCSTI, REFUSE)
    code.if_equal(TIOCLINUX, REFUSE, None if child else ALLOW)
    if child:
        for harmless in (*FILE_READERS, *FILE_CLONERS):
            code.if_equal(harmless, ALLOW)
        if not network:
            _inspect_ranges(code, "ioctl", INTERFACES)
        code.keep_bits(IOCTL_KINDS)
        for kind in FILE_SYSTEMS:
            code.if_equal(kind, "ioctl:unknown")
        code.go(ALLOW)
        code.label("ioctl:unknown")
        code.give(RET_ERRNO | errno.ENOTTY)


def _inspect_ranges(code: Assembler, name: str, ranges: Iterable[tuple[int, int]]) -> None:
    """Refuse what lies in one of the ranges; go on with what does not."""
    for first, end in ranges:
        code.if_at_least(end, f"{name}:{end}")
        code.if_at_least(first, REFUSE)
        code.label(f"{name}:{end}")


def inspect_fcntl(code: Assembler) -> None:
    """Refuse leases, by which the opens of others wait, and notices, and what is newer than this."""
    code.load(argument(1))
    code.if_equal(F_SETLEASE, "fcntl:unknown")
    code.if_equal(F_NOTIFY, "fcntl:unknown")
    code.if_at_least(F_NEWER, "fcntl:unknown", ALLOW)
    code.label("fcntl:unknown")
    code.give(RET_ERRNO | errno.EINVAL)


def inspect_memfd_create(code: Assembler) -> None:
    """Allow memory files that can never be executed: Landlock has no say about files without a place.

    The answer to others is that of a kernel whose ``vm.memfd_noexec`` is 2.
    """
    code.load(argument(1))
    code.if_any_bit(MFD_NOEXEC_SEAL, ALLOW)
    code.give(RET_ERRNO | errno.EACCES)


def inspect_setsockopt(code: Assembler) -> None:
    """Refuse to join groups: the group is told to everybody on the link, and can be chosen to say something."""
    code.load(argument(1))
    for level in MEMBERSHIPS:
        code.if_equal(level, f"setsockopt:{level}")
    code.go(ALLOW)
    for level, ranges in MEMBERSHIPS.items():
        code.label(f"setsockopt:{level}")
        code.load(argument(2))
        _inspect_ranges(code, f"setsockopt:{level}", ranges)
        code.go(ALLOW)


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
    if child and inet is Inet.NONE:
        code.go(REFUSE)
    elif child:
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
    """Allow what names and addresses of interfaces are read by; other protocols configure, watch, or talk to others.

    Without network rules there is none of it: the C library finds names without, as where there is no netlink.
    """
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
