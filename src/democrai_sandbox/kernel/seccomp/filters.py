"""Filter profiles and their programs."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelUnsupported

from .allowed import NEWEST, allowed_numbers
from .arguments import (
    ALLOW,
    REFUSE,
    Inet,
    inspect_clone,
    inspect_fcntl,
    inspect_ioctl,
    inspect_itself,
    inspect_memfd_create,
    inspect_priority,
    inspect_send,
    inspect_setsockopt,
    inspect_socket,
    inspect_socketpair,
)
from .bpf import ARCHITECTURE, NUMBER, RET_ERRNO, Assembler
from .syscalls import TABLE, X32_BIT, X32_LEGACY, Action, Architecture, Group, Syscall, this_architecture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "ANSWERS",
    "APPLICATION",
    "FIX_ARCHITECTURE",
    "NO_EXEC",
    "RET_ALLOW",
    "RET_KILL_PROCESS",
    "Inet",
    "Profile",
    "child_profile",
    "program",
    "rows",
]

RET_ALLOW = 0x7FFF0000
RET_KILL_PROCESS = 0x80000000

ANSWERS = {
    Action.KILL: RET_KILL_PROCESS,
    Action.EPERM: RET_ERRNO | errno.EPERM,
    Action.ENOSYS: RET_ERRNO | errno.ENOSYS,
    Action.ENOTSUP: RET_ERRNO | errno.ENOTSUP,
}
"""Return values of actions that do not depend on arguments."""

ITSELF = "itself"
_OF_CHILDREN = frozenset(
    {Group.IPC, Group.SCHEDULING, Group.ATTRIBUTES, Group.LEASES, Group.MEMORY_FILES, Group.GROUPS}
)
"""Restrictions that apply to children only."""
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
    unix: bool = True
    """Permit AF_UNIX sockets; pairs that stay connected to each other are always permitted."""
    fastopen: bool = True
    """Permit connecting by sending. The check slows down every send, so disable this only if nothing but Landlock's TCP
    port rules restricts the egress: they do not check it, the packet filter does."""
    multicast: bool = False
    """Permit a child to join multicast groups."""


APPLICATION = Profile()
"""Application: cannot execute programs or send packets past the packet filter."""
NO_EXEC = Profile(only_exec=True)
"""Filter that a worker adds after its start."""


def child_profile(
    *, inet: Inet = Inet.ALL, unix: bool = True, fastopen: bool = True, multicast: bool = False
) -> Profile:
    """Return the profile of a confined child, which must be able to execute its program."""
    return Profile(allow_exec=True, child=True, inet=inet, unix=unix, fastopen=fastopen, multicast=multicast)


def rows(profile: Profile, arch: Architecture) -> tuple[Syscall, ...]:
    """Return the table rows that a program of the profile decides about."""
    return tuple(row for row in TABLE if row.number(arch) is not None and _concerns(profile, row.group))


def _concerns(profile: Profile, group: Group) -> bool:
    if group is Group.EXEC:
        return profile.only_exec or not profile.allow_exec
    if profile.only_exec:
        return False
    if group is Group.GROUPS and profile.multicast:
        return False
    if group in _OF_CHILDREN:
        return profile.child
    return group is not Group.SENDS or not profile.fastopen


def program(profile: Profile, arch: Architecture | None = None) -> bytes:
    """Return the filter in the kernel's format, by default for the architecture of this process."""
    arch = arch or this_architecture()
    if arch is None:
        raise KernelUnsupported("the system calls of this architecture are not supported", fix=FIX_ARCHITECTURE)
    return _assembled(profile, arch)


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
        _inspect(code, profile, part)
    code.label(ALLOW)
    code.give(RET_ALLOW)
    code.label(REFUSE)
    code.give(ANSWERS[Action.EPERM])
    return code.assemble()


def _part(name: str) -> str:
    """Return the name of the part that inspects a call. Calls with a process as their first argument share one part."""
    return ITSELF if name in _OF_A_PROCESS else name


def _inspect(code: Assembler, profile: Profile, name: str) -> None:
    match name:
        case "clone":
            inspect_clone(code)
        case "setpriority" | "ioprio_set":
            inspect_priority(code, name)
        case "itself":
            inspect_itself(code)
        case "ioctl":
            inspect_ioctl(code, child=profile.child, network=profile.inet is not Inet.NONE)
        case "fcntl":
            inspect_fcntl(code)
        case "memfd_create":
            inspect_memfd_create(code)
        case "setsockopt":
            inspect_setsockopt(code)
        case "socket":
            inspect_socket(code, child=profile.child, inet=profile.inet, unix=profile.unix)
        case "socketpair":
            inspect_socketpair(code, unix=profile.unix)
        case _:
            inspect_send(code, name)


_Range = tuple[int, "int | str"]
"""First number of a range, and its return value or the label of its part."""


def _ranges(profile: Profile, decided: Sequence[Syscall], arch: Architecture) -> list[_Range]:
    """Return the first number of each range, with equal neighbors merged."""
    unknown = RET_ALLOW if profile.only_exec else ANSWERS[Action.ENOSYS]
    open_numbers = _open_to_children(profile, arch) if profile.child else range(NEWEST + 1)
    answers: dict[int, int | str] = dict.fromkeys(open_numbers, RET_ALLOW)
    answers |= {row.number(arch) or 0: ANSWERS.get(row.action, _part(row.name)) for row in decided}
    for number in range(max(answers) + 2):
        answers.setdefault(number, unknown)
    if arch is Architecture.X86_64:
        first, last = X32_LEGACY
        answers |= {first: ANSWERS[Action.EPERM], last + 1: unknown, X32_BIT: ANSWERS[Action.EPERM]}
    merged: list[_Range] = []
    for number, answer in sorted(answers.items()):
        if not merged or merged[-1][1] != answer:
            merged.append((number, answer))
    return merged


def _open_to_children(profile: Profile, arch: Architecture) -> Iterator[int]:
    """Yield the numbers that a child may use with any arguments: those of the list, and those without inspection."""
    yield from allowed_numbers(arch)
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
