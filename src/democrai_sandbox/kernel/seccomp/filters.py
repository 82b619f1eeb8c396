"""Filter profiles, their programs with the parts that inspect arguments, and the assembler for classic BPF."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import KernelUnsupported

from . import syscalls
from .syscalls import TABLE, Action, Architecture, Group, this_architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

NUMBER = 0
"""Offset of the system call number in the data of a filter."""
ARCHITECTURE = 4
RET_ERRNO = 0x00050000
"""Return value that refuses a call, with the error number in its lower half."""

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_GO = 0x05  # BPF_JMP | BPF_JA
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_LONGEST = 4096  # BPF_MAXINSNS
_FARTHEST = 255  # a conditional jump has one byte per branch


class Instruction(NamedTuple):
    """One ``struct sock_filter``."""

    code: int
    jt: int
    jf: int
    k: int

    def packed(self) -> bytes:
        """Return its eight bytes."""
        return struct.pack("=HBBI", *self)


class _LabeledInstruction(NamedTuple):
    """Instruction with named jump targets; ``None`` continues with the next one."""

    code: int
    value: int
    then: str | None = None
    otherwise: str | None = None


def argument(index: int) -> int:
    """Return the offset of the lower half of an argument; both architectures are little-endian.

    Only that half is compared: the kernel uses these arguments as 32-bit numbers, so a 64-bit comparison could be
    bypassed by setting an upper bit.
    """
    return 16 + 8 * index


class Assembler:
    """Assembler that collects instructions and labels."""

    def __init__(self) -> None:
        self._steps: list[_LabeledInstruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Label the next instruction."""
        if name in self._labels:
            raise ValueError(f"duplicate label {name!r}")
        self._labels[name] = len(self._steps)

    def load(self, offset: int) -> None:
        """Load a word of the call's data."""
        self._steps.append(_LabeledInstruction(_LOAD, offset))

    def keep_bits(self, mask: int) -> None:
        """Clear all other bits of the loaded word."""
        self._steps.append(_LabeledInstruction(_AND, mask))

    def if_equal(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on equality."""
        self._steps.append(_LabeledInstruction(_EQUAL, value, then, otherwise))

    def if_at_least(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on an unsigned comparison: this value or greater."""
        self._steps.append(_LabeledInstruction(_AT_LEAST, value, then, otherwise))

    def if_any_bit(self, mask: int, then: str | None = None, otherwise: str | None = None) -> None:
        """Jump depending on whether one of the bits is set."""
        self._steps.append(_LabeledInstruction(_ANY_BIT, mask, then, otherwise))

    def go(self, label: str) -> None:
        """Jump over any distance."""
        self._steps.append(_LabeledInstruction(_GO, 0, label))

    def give(self, value: int) -> None:
        """Return this value."""
        self._steps.append(_LabeledInstruction(_RETURN, value))

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the program with numeric jumps; reject one that the kernel would not accept."""
        if not 0 < len(self._steps) <= _LONGEST:
            raise ValueError(f"a program has 1 to {_LONGEST} instructions, this one has {len(self._steps)}")
        return tuple(self._resolved(index, step) for index, step in enumerate(self._steps))

    def assemble(self) -> bytes:
        """Return the program in the kernel's binary format."""
        return b"".join(map(Instruction.packed, self.instructions()))

    def _resolved(self, index: int, step: _LabeledInstruction) -> Instruction:
        if step.code == _GO:
            return Instruction(step.code, 0, 0, self._distance(index, step.then))
        then, otherwise = (self._distance(index, label) for label in (step.then, step.otherwise))
        if max(then, otherwise) > _FARTHEST:
            raise ValueError(f"instruction {index} would jump over more than {_FARTHEST} others: use go()")
        return Instruction(step.code, then, otherwise, step.value)

    def _distance(self, index: int, label: str | None) -> int:
        """Return the number of instructions to skip; backward jumps are impossible."""
        if label is None:
            return 0
        if label not in self._labels:
            raise ValueError(f"instruction {index} jumps to {label!r}, which does not exist")
        distance = self._labels[label] - index - 1
        if distance < 0:
            raise ValueError(f"instruction {index} would jump backward to {label!r}")
        return distance


ALLOW = "allow"
REFUSE = "refuse"
CONNECTED = "connected"
"""Part that inspects the type of a local socket."""

CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET; not -TIME, whose bit is part of the signal in clone."""
MSG_FASTOPEN = 0x20000000
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
IOCTL_KINDS = 0xFF00
"""Bits of an ioctl number with the kind of file."""
FILE_SYSTEMS = (0x6600, 0x5800, 0x7600, 0x9400, 0x7200, 0xF500, 0xBC00, 0xCF00)
"""Kinds for files and folders: all file systems, XFS, versions, btrfs, FAT, F2FS, bcachefs, CIFS."""
FILE_READERS = (0x80086601, 0x80087601, 0x801C581F, 0xC020660B)
"""FS_IOC_GETFLAGS, -GETVERSION, -FSGETXATTR, -FIEMAP: read-only."""
FILE_CLONERS = (0x40049409, 0x4020940D, 0xC0189436)
"""FICLONE, FICLONERANGE, FIDEDUPERANGE: they need a file that is open for writing."""
INTERFACES = ((0x8910, 0x8A00), (0x8B00, 0x8C00))
"""ioctls that report the machine's network interfaces on any socket, even of a local pair."""
F_SETLEASE, F_NOTIFY, F_NEWER = 1024, 1026, 1039
"""Leases, change notifications, and the first command that was not reviewed (delegations are among these)."""
MFD_NOEXEC_SEAL = 8
NEW_LISTENER = 8
"""SECCOMP_FILTER_FLAG_NEW_LISTENER."""
MEMBERSHIPS = {0: ((35, 49),), 41: ((20, 22), (27, 29), (42, 49))}
"""Ranges of options for joining and leaving multicast groups, by level: IP and IPv6."""

# Kernel constants, written as numbers: those of the machine that assembles a program may differ.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_ALG = 1, 2, 10, 16, 38
SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_PACKET = 1, 2, 3, 5, 10
SOCK_TYPES = 0xF
"""Bits of the socket type; the bits above are SOCK_CLOEXEC and SOCK_NONBLOCK."""
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SMC, IPPROTO_MPTCP = 6, 17, 256, 262
NETLINK_ROUTE = 0


class Inet(StrEnum):
    """Internet sockets that a program may create."""

    ALL = "all"
    NO_DATAGRAM = "no_datagram"
    """TCP only: only the packet filter can stop a datagram by its target."""
    NONE = "none"


class Unix(StrEnum):
    """Local sockets (AF_UNIX) that a program may create; pairs that stay connected to each other are always allowed."""

    ALL = "all"
    SUPERVISED = "supervised"
    """Connected ones, for a child with supervised metadata and without the internet: the supervisor connects them to
    files below the child's own folders."""
    NONE = "none"


class Metadata(StrEnum):
    """Changes of mode, owner and times of files that a child may make; Landlock does not restrict them."""

    ALL = "all"
    REFUSED = "refused"
    SUPERVISED = "supervised"
    """Those that the supervisor makes for it; without a supervisor, none."""


def inspect_flags(code: Assembler, _: Profile, *, index: int, refused: int) -> None:
    """Refuse some flags of an argument."""
    code.load(argument(index))
    code.if_any_bit(refused, REFUSE, ALLOW)


def inspect_itself(code: Assembler, _: Profile) -> None:
    """Allow operations of a program on itself, by the number 0, which the C library uses for limits.

    A CPU time limit of zero kills any process of the same user, and Landlock, which refuses signals, does not check it.
    The other calls could slow down any process. A filter cannot distinguish other threads of the program from those of
    the application.
    """
    code.load(argument(0))
    code.if_equal(0, ALLOW, REFUSE)


def inspect_priority(code: Assembler, _: Profile, *, single: int) -> None:
    """Allow a program to change its own priority only, and not by its process id, group or user.

    ``single`` is the value for a single process; higher values mean a group or a user.
    """
    code.load(argument(0))
    code.if_at_least(single + 1, REFUSE)
    code.load(argument(1))
    code.if_equal(0, ALLOW, REFUSE)


def inspect_ioctl(code: Assembler, profile: Profile) -> None:
    """Refuse to insert input into a terminal, which the shell that started the application would execute.

    A child may not change file attributes: that works with a descriptor opened for neither reading nor writing, which
    Landlock permits. Without network rules it may not read the machine's network interfaces.
    """
    code.load(argument(1))
    code.if_equal(TIOCSTI, REFUSE)
    code.if_equal(TIOCLINUX, REFUSE, None if profile.child else ALLOW)
    if profile.child:
        for harmless in (*FILE_READERS, *FILE_CLONERS):
            code.if_equal(harmless, ALLOW)
        if profile.inet is Inet.NONE:
            _inspect_ranges(code, "ioctl", INTERFACES)
        code.keep_bits(IOCTL_KINDS)
        for kind in FILE_SYSTEMS:
            code.if_equal(kind, "ioctl:unknown")
        code.go(ALLOW)
        code.label("ioctl:unknown")
        code.give(RET_ERRNO | errno.ENOTTY)


def _inspect_ranges(code: Assembler, name: str, ranges: Iterable[tuple[int, int]]) -> None:
    """Refuse values in one of the ranges; continue with others."""
    for first, end in ranges:
        code.if_at_least(end, f"{name}:{end}")
        code.if_at_least(first, REFUSE)
        code.label(f"{name}:{end}")


def inspect_fcntl(code: Assembler, _: Profile) -> None:
    """Refuse leases, which block opens of other processes, change notifications, and newer commands."""
    code.load(argument(1))
    code.if_equal(F_SETLEASE, "fcntl:unknown")
    code.if_equal(F_NOTIFY, "fcntl:unknown")
    code.if_at_least(F_NEWER, "fcntl:unknown", ALLOW)
    code.label("fcntl:unknown")
    code.give(RET_ERRNO | errno.EINVAL)


def inspect_memfd_create(code: Assembler, _: Profile) -> None:
    """Allow memory files only if they can never be executed: Landlock does not restrict files without a path.

    Others get the error of a kernel with ``vm.memfd_noexec`` set to 2.
    """
    code.load(argument(1))
    code.if_any_bit(MFD_NOEXEC_SEAL, ALLOW)
    code.give(RET_ERRNO | errno.EACCES)


def inspect_setsockopt(code: Assembler, _: Profile) -> None:
    """Refuse to join multicast groups: the group address is announced on the link, and can carry data out."""
    code.load(argument(1))
    for level in MEMBERSHIPS:
        code.if_equal(level, f"setsockopt:{level}")
    code.go(ALLOW)
    for level, ranges in MEMBERSHIPS.items():
        code.label(f"setsockopt:{level}")
        code.load(argument(2))
        _inspect_ranges(code, f"setsockopt:{level}", ranges)
        code.go(ALLOW)


def inspect_socket(code: Assembler, profile: Profile) -> None:
    """Allow the families that the packet filter and Landlock check, and those that stay on the machine.

    All others (AF_PACKET, AF_XDP, AF_VSOCK, AF_TIPC, AF_RXRPC ...) bypass both.
    """
    child, inet = profile.child, profile.inet
    internet = REFUSE if inet is Inet.NONE else "socket:inet"
    code.load(argument(0))
    code.if_equal(AF_UNIX, {Unix.ALL: ALLOW, Unix.SUPERVISED: CONNECTED, Unix.NONE: REFUSE}[profile.unix])
    code.if_equal(AF_INET, internet)
    code.if_equal(AF_INET6, internet)
    if child and inet is Inet.NONE:
        code.go(REFUSE)
    elif child:
        code.if_equal(AF_NETLINK, None, REFUSE)
        # Names and addresses of interfaces may be read; other protocols configure, watch, or send messages. Without
        # network rules, no protocol is allowed: the C library resolves names without netlink.
        code.load(argument(2))
        code.if_equal(NETLINK_ROUTE, ALLOW, REFUSE)
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


def _inspect_any_internet(code: Assembler) -> None:
    """Refuse raw packets, and protocols with other packets than TCP and UDP.

    SOCK_PACKET with AF_INET is an old name of AF_PACKET. SMC continues without IP after the connection.
    """
    code.if_equal(SOCK_RAW, REFUSE)
    code.if_equal(SOCK_PACKET, REFUSE)
    code.load(argument(2))
    code.if_equal(IPPROTO_SMC, REFUSE)
    code.if_equal(IPPROTO_MPTCP, REFUSE, ALLOW)


def _inspect_plain_internet(code: Assembler, *, datagrams: bool) -> None:
    """Allow TCP and, if permitted, UDP. Landlock's port rules apply to TCP only, not to SCTP or MPTCP."""
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


def inspect_socketpair(code: Assembler, profile: Profile) -> None:
    """Allow pairs of local sockets; unless all are allowed, only types that stay connected to each other."""
    code.load(argument(0))
    code.if_equal(AF_UNIX, ALLOW if profile.unix is Unix.ALL else CONNECTED, REFUSE)


def inspect_connected(code: Assembler) -> None:
    """Allow local sockets of the types that are connected to one other socket.

    A datagram socket, even of a pair, can send to any path; SOCK_RAW becomes a datagram socket.
    """
    code.label(CONNECTED)
    code.load(argument(1))
    code.keep_bits(SOCK_TYPES)
    code.if_equal(SOCK_STREAM, ALLOW)
    code.if_equal(SOCK_SEQPACKET, ALLOW, REFUSE)


RET_ALLOW = 0x7FFF0000
RET_KILL_PROCESS = 0x80000000
RET_USER_NOTIF = 0x7FC00000
"""Return value that hands a call to the listener of the filter; without one, the call fails with ENOSYS."""

ANSWERS = {
    Action.KILL: RET_KILL_PROCESS,
    Action.EPERM: RET_ERRNO | errno.EPERM,
    Action.ENOSYS: RET_ERRNO | errno.ENOSYS,
    Action.ENOTSUP: RET_ERRNO | errno.ENOTSUP,
    Action.SUPERVISE: RET_USER_NOTIF,
}
"""Return values of actions that do not depend on arguments."""

METADATA_ANSWERS = {
    Metadata.ALL: RET_ALLOW,
    Metadata.REFUSED: ANSWERS[Action.EPERM],
    Metadata.SUPERVISED: ANSWERS[Action.SUPERVISE],
}
"""Return values of calls that change metadata."""

ITSELF = "itself"
_OF_A_PROCESS = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")

FIX_ARCHITECTURE = (
    "run on a 64-bit x86_64 or aarch64 machine with an interpreter of that architecture, "
    "or set sandbox.os.seccomp.enabled to false"
)


@dataclass(frozen=True, slots=True)
class Profile:
    """Refused calls of a filter: everything in the table, unless a field excludes it.

    A child may only make the calls in ``allowed``; the application may make all known calls.
    """

    allow_exec: bool = False
    """Permit execve and execveat."""
    only_exec: bool = False
    """Refuse only execve and execveat: a second filter for a process that already has one."""
    child: bool = False
    """Permit only sockets of AF_UNIX, AF_INET, AF_INET6 (TCP and UDP) and AF_NETLINK (routes, unless ``inet`` is NONE);
    refuse objects shared by all processes of the user, and file operations that Landlock does not check."""
    inet: Inet = Inet.ALL
    unix: Unix = Unix.ALL
    fastopen: bool = True
    """Permit connecting by sending. The check slows down every send, so disable this only if nothing but Landlock's TCP
    port rules restricts the egress: they do not check it, the packet filter does."""
    multicast: bool = False
    """Permit a child to join multicast groups."""
    metadata: Metadata = Metadata.ALL
    """Changes of the metadata of files that a child may make."""


APPLICATION = Profile()
"""Application: cannot execute programs or send packets past the packet filter."""
NO_EXEC = Profile(only_exec=True)
"""Filter that a worker adds after its start."""


def child_profile(**features: Any) -> Profile:
    """Return the profile of a confined child, which must be able to execute its program."""
    return Profile(allow_exec=True, child=True, **features)


def rows(profile: Profile, arch: Architecture) -> tuple[syscalls.Syscall, ...]:
    """Return the table rows that a program of the profile decides about."""
    return tuple(row for row in TABLE if row.number(arch) is not None and _concerns(profile, row.group))


def _concerns(profile: Profile, group: Group) -> bool:
    if group is Group.EXEC:
        return profile.only_exec or not profile.allow_exec
    if profile.only_exec:
        return False
    if group is Group.GROUPS:
        return profile.child and not profile.multicast
    if group is Group.CONNECTS:
        return profile.unix is Unix.SUPERVISED
    if group is Group.CHILDREN:
        return profile.child
    return group is Group.ALL or not profile.fastopen


def program(profile: Profile, arch: Architecture | None = None) -> bytes:
    """Return the filter in the kernel's format, by default for the architecture of this process."""
    arch = arch or this_architecture()
    if arch is None:
        raise KernelUnsupported("the system calls of this architecture are not supported", fix=FIX_ARCHITECTURE)
    if profile.unix is Unix.SUPERVISED and (profile.metadata, profile.inet) != (Metadata.SUPERVISED, Inet.NONE):
        profile = replace(profile, unix=Unix.NONE)
    return _with_metadata(_assembled(replace(profile, metadata=Metadata.SUPERVISED), arch), profile.metadata)


def _with_metadata(code: bytes, metadata: Metadata) -> bytes:
    """Replace the answer to calls that change metadata, which is faster than assembling the program again."""
    answers = (METADATA_ANSWERS[allowed] for allowed in (Metadata.SUPERVISED, metadata))
    before, after = (Instruction(_RETURN, 0, 0, answer).packed() for answer in answers)
    parts = (code[place : place + len(before)] for place in range(0, len(code), len(before)))
    return b"".join(after if part == before else part for part in parts)


@lru_cache(maxsize=64)
def _assembled(profile: Profile, arch: Architecture) -> bytes:
    """Assemble the architecture check, a search for the number, and the parts that inspect arguments.

    The kernel computes once which numbers are always allowed, and skips the filter for them. The search serves older
    kernels and inspected numbers: at most eight comparisons.
    """
    decided = rows(profile, arch)
    code = Assembler()
    code.load(ARCHITECTURE)
    code.if_equal(arch.audit, "number")
    code.give(RET_KILL_PROCESS)
    code.label("number")
    code.load(NUMBER)
    _search(code, _ranges(profile, decided, arch))
    for part in dict.fromkeys(_part(row.name) for row in decided if row.action is Action.INSPECT):
        code.label(part)
        _INSPECTIONS[part](code, profile)
    if profile.unix is not Unix.ALL:
        inspect_connected(code)
    code.label(ALLOW)
    code.give(RET_ALLOW)
    code.label(REFUSE)
    code.give(ANSWERS[Action.EPERM])
    return code.assemble()


def _part(name: str) -> str:
    """Return the name of the part that inspects a call. Calls with a process as their first argument share one part."""
    return ITSELF if name in _OF_A_PROCESS else name


_INSPECTIONS: Mapping[str, Callable[[Assembler, Profile], None]] = {
    ITSELF: inspect_itself,
    "fcntl": inspect_fcntl,
    "memfd_create": inspect_memfd_create,
    "setsockopt": inspect_setsockopt,
    "setpriority": lambda code, profile: inspect_priority(code, profile, single=0),
    "ioprio_set": lambda code, profile: inspect_priority(code, profile, single=1),
    "ioctl": inspect_ioctl,
    "socket": inspect_socket,
    "socketpair": inspect_socketpair,
    # New namespaces: in a new user namespace a program has every capability.
    "clone": lambda code, profile: inspect_flags(code, profile, index=0, refused=CLONE_NEW),
    # Filters with a listener, which comes before ours and could let a process make a supervised call.
    "seccomp": lambda code, profile: inspect_flags(code, profile, index=1, refused=NEW_LISTENER),
    # To connect by sending (TCP Fast Open), which Landlock does not check.
    "sendto": lambda code, profile: inspect_flags(code, profile, index=3, refused=MSG_FASTOPEN),
    "sendmsg": lambda code, profile: inspect_flags(code, profile, index=2, refused=MSG_FASTOPEN),
    "sendmmsg": lambda code, profile: inspect_flags(code, profile, index=3, refused=MSG_FASTOPEN),
}


_Range = tuple[int, "int | str"]
"""First number of a range, and its return value or the label of its part."""


def _ranges(profile: Profile, decided: Sequence[syscalls.Syscall], arch: Architecture) -> list[_Range]:
    """Return the first number of each range, with equal neighbors merged."""
    unknown = RET_ALLOW if profile.only_exec else ANSWERS[Action.ENOSYS]
    open_numbers = _open_to_children(profile, arch) if profile.child else range(syscalls.NEWEST + 1)
    answers: dict[int, int | str] = dict.fromkeys(open_numbers, RET_ALLOW)
    answers |= {row.number(arch) or 0: ANSWERS.get(row.action, _part(row.name)) for row in decided}
    for number in range(max(answers) + 2):
        answers.setdefault(number, unknown)
    if arch is Architecture.X86_64:
        first, last = syscalls.X32_LEGACY
        answers |= {first: ANSWERS[Action.EPERM], last + 1: unknown, syscalls.X32_BIT: ANSWERS[Action.EPERM]}
    merged: list[_Range] = []
    for number, answer in sorted(answers.items()):
        if not merged or merged[-1][1] != answer:
            merged.append((number, answer))
    return merged


def _open_to_children(profile: Profile, arch: Architecture) -> Iterator[int]:
    """Yield the numbers that a child may use with any arguments: those of the list, and those without inspection."""
    yield from syscalls.allowed_numbers(arch)
    for row in TABLE:
        number = row.number(arch)
        if number is not None and not _concerns(profile, row.group):
            yield number


def _search(code: Assembler, ranges: Sequence[_Range]) -> None:
    """Search the ranges by bisection. Return values follow directly, so that all jumps stay short."""
    if len(ranges) == 1:
        answer = ranges[0][1]
        if isinstance(answer, str):
            code.go(answer)
        else:
            code.give(answer)
        return
    middle = len(ranges) // 2
    first = ranges[middle][0]
    code.if_at_least(first, f"from:{first}")
    _search(code, ranges[:middle])
    code.label(f"from:{first}")
    _search(code, ranges[middle:])
