"""Profiles, and the programs they become."""

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
"""What the kernel is told for each action that does not depend on arguments."""

ITSELF = "itself"
_OF_CHILDREN = frozenset(
    {Group.IPC, Group.SCHEDULING, Group.ATTRIBUTES, Group.LEASES, Group.MEMORY_FILES, Group.GROUPS}
)
"""What is decided for children alone; the application may do it."""
_OF_A_PROCESS = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")

FIX_ARCHITECTURE = (
    "run on a 64-bit x86_64 or aarch64 machine with an interpreter of that architecture, "
    "or set sandbox.os.seccomp.enabled to false"
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a filter refuses. Everything in the table is refused unless a field says otherwise.

    A child may make the calls of the list in ``allowed`` and no others; the application all that are known here.
    """

    allow_exec: bool = False
    """Leave execve and execveat alone."""
    only_exec: bool = False
    """Refuse execve and execveat and nothing else: a second filter for a process that has a first one."""
    child: bool = False
    """Only sockets of AF_UNIX, AF_INET, AF_INET6 (TCP and UDP) and AF_NETLINK (routes, where ``inet`` is not NONE);
    nothing that all processes of the user share, or that concerns files past Landlock."""
    inet: Inet = Inet.ALL
    unix: bool = True
    """Sockets of AF_UNIX may be made; pairs that stay connected to each other may always."""
    fastopen: bool = True
    """Sending may connect. Looking for it makes every send slower: say no only where nothing but Landlock's rules for
    TCP ports keeps the egress, which do not see it; the packet filter does."""
    multicast: bool = False
    """A child may join multicast groups."""


APPLICATION = Profile()
"""The application: no exec, no packets past the packet filter."""
NO_EXEC = Profile(only_exec=True)
"""What a worker process adds once it has started."""


def child_profile(
    *, inet: Inet = Inet.ALL, unix: bool = True, fastopen: bool = True, multicast: bool = False
) -> Profile:
    """Return the profile of a confined child, which has to execute its program."""
    return Profile(allow_exec=True, child=True, inet=inet, unix=unix, fastopen=fastopen, multicast=multicast)


def rows(profile: Profile, arch: Architecture) -> tuple[Syscall, ...]:
    """Return the rows of the table that a program of the profile decides about."""
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
    """Return the filter as the kernel reads it, for this process's own architecture if none is named."""
    arch = arch or this_architecture()
    if arch is None:
        raise KernelUnsupported("there is no table of system calls for this architecture", fix=FIX_ARCHITECTURE)
    return _assembled(profile, arch)


@lru_cache(maxsize=64)
def _assembled(profile: Profile, arch: Architecture) -> bytes:
    """Put it together: the architecture, a search for the number, then the parts that look at arguments.

    The kernel works out once which numbers are allowed whatever the arguments are, and does not run the filter for
    them. The search is for older kernels and for the numbers that are inspected: at most eight comparisons.
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
    """Return the name of the part that inspects a call: those that name a process by their first argument share one."""
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
"""The first number of a range, and the answer for it or the label of the part that finds it."""


def _ranges(profile: Profile, decided: Sequence[Syscall], arch: Architecture) -> list[_Range]:
    """Return what holds from which number on, neighbours with the same answer as one."""
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
    """Yield the numbers that a child may use with any arguments: those of the list, and what is not looked at."""
    yield from allowed_numbers(arch)
    for row in TABLE:
        number = row.number(arch)
        if number is not None and not _concerns(profile, row.group):
            yield number


def _search(code: Assembler, ranges: Sequence[_Range]) -> None:
    """Halve the ranges until one is left. Answers stand where they are found, so that no jump is a long one."""
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
