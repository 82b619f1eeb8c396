"""Every system call that a filter decides about: its number on each architecture, its group, and what becomes of it.

The numbers are part of the kernel's interface and never change. ``None`` says that the architecture has no such call.
"""

from __future__ import annotations

import os
import struct
from enum import StrEnum
from typing import NamedTuple


class Architecture(StrEnum):
    """The architectures with a column in the table, by the name that the kernel has for the machine."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def audit(self) -> int:
        """The number by which the kernel tells a filter which calling convention a call was made with."""
        return {Architecture.X86_64: 0xC000003E, Architecture.AARCH64: 0xC00000B7}[self]


class Action(StrEnum):
    """What becomes of a call."""

    KILL = "kill_process"
    """The process ends with SIGSYS: no honest program makes this call."""
    EPERM = "eperm"
    ENOSYS = "enosys"
    """As if the kernel did not have it: libraries then take the older way, which can be inspected."""
    ENOTSUP = "enotsup"
    """As if the file system did not have it."""
    INSPECT = "inspected"
    """The arguments decide."""


class Group(StrEnum):
    """What the calls have in common."""

    EXEC = "exec"
    PTRACE = "ptrace"
    KEXEC = "kexec"
    MODULES = "modules"
    ROOT = "root"
    IDS = "ids"
    BPF = "bpf"
    PERF = "perf"
    USERFAULT = "userfault"
    RINGS = "rings"
    CLONE3 = "clone3"
    NAMESPACES = "namespaces"
    MOUNTS = "mounts"
    OTHERS = "others"
    """Memory, descriptors and files of other processes."""
    KEYS = "keys"
    MACHINE = "machine"
    """Settings of the whole machine."""
    IPC = "ipc"
    """Shared memory, queues and semaphores that any process of the user reaches: those of System V, whose names are in
    no file system, and the queues of POSIX, which can be removed past Landlock."""
    ATTRIBUTES = "attributes"
    """Extended attributes. Landlock does not see them, and a filter sees no paths. A descriptor does not help: one that
    is opened for neither reading nor writing passes Landlock too."""
    LEASES = "leases"
    """What is done to an open file, by such a descriptor as well: leases keep others from opening it."""
    MEMORY_FILES = "memory_files"
    GROUPS = "groups"
    """Joining multicast groups: the kernel itself tells the network of it, past the packet filter of a cgroup."""
    SCHEDULING = "scheduling"
    """What others are given of the machine: any process of the user may change it, and Landlock does not see it."""
    TERMINALS = "terminals"
    CLONE = "clone"
    SOCKETS = "sockets"
    SENDS = "sends"


class Syscall(NamedTuple):
    """One row."""

    name: str
    x86_64: int | None
    aarch64: int | None
    group: Group
    action: Action

    def number(self, arch: Architecture) -> int | None:
        """Return its number there."""
        return self.x86_64 if arch is Architecture.X86_64 else self.aarch64


TABLE: tuple[Syscall, ...] = (
    Syscall("execve", 59, 221, Group.EXEC, Action.KILL),
    Syscall("execveat", 322, 281, Group.EXEC, Action.KILL),
    Syscall("ptrace", 101, 117, Group.PTRACE, Action.KILL),
    Syscall("kexec_load", 246, 104, Group.KEXEC, Action.KILL),
    Syscall("kexec_file_load", 320, 294, Group.KEXEC, Action.KILL),
    Syscall("init_module", 175, 105, Group.MODULES, Action.KILL),
    Syscall("finit_module", 313, 273, Group.MODULES, Action.KILL),
    Syscall("delete_module", 176, 106, Group.MODULES, Action.KILL),
    Syscall("pivot_root", 155, 41, Group.ROOT, Action.KILL),
    Syscall("chroot", 161, 51, Group.ROOT, Action.KILL),
    Syscall("setuid", 105, 146, Group.IDS, Action.KILL),
    Syscall("setgid", 106, 144, Group.IDS, Action.KILL),
    Syscall("setreuid", 113, 145, Group.IDS, Action.KILL),
    Syscall("setregid", 114, 143, Group.IDS, Action.KILL),
    Syscall("setgroups", 116, 159, Group.IDS, Action.KILL),
    Syscall("setresuid", 117, 147, Group.IDS, Action.KILL),
    Syscall("setresgid", 119, 149, Group.IDS, Action.KILL),
    Syscall("setfsuid", 122, 151, Group.IDS, Action.KILL),
    Syscall("setfsgid", 123, 152, Group.IDS, Action.KILL),
    Syscall("bpf", 321, 280, Group.BPF, Action.KILL),
    Syscall("perf_event_open", 298, 241, Group.PERF, Action.KILL),
    Syscall("userfaultfd", 323, 282, Group.USERFAULT, Action.KILL),
    # What is done through a ring passes no filter: openat and connect were seen to succeed while they were refused.
    Syscall("io_uring_setup", 425, 425, Group.RINGS, Action.ENOSYS),
    Syscall("io_uring_enter", 426, 426, Group.RINGS, Action.ENOSYS),
    Syscall("io_uring_register", 427, 427, Group.RINGS, Action.ENOSYS),
    # Its flags lie in memory, where a filter cannot look; those of clone are in a register.
    Syscall("clone3", 435, 435, Group.CLONE3, Action.ENOSYS),
    Syscall("unshare", 272, 97, Group.NAMESPACES, Action.EPERM),
    Syscall("setns", 308, 268, Group.NAMESPACES, Action.EPERM),
    Syscall("mount", 165, 40, Group.MOUNTS, Action.EPERM),
    Syscall("umount2", 166, 39, Group.MOUNTS, Action.EPERM),
    Syscall("open_tree", 428, 428, Group.MOUNTS, Action.EPERM),
    Syscall("move_mount", 429, 429, Group.MOUNTS, Action.EPERM),
    Syscall("fsopen", 430, 430, Group.MOUNTS, Action.EPERM),
    Syscall("fsconfig", 431, 431, Group.MOUNTS, Action.EPERM),
    Syscall("fsmount", 432, 432, Group.MOUNTS, Action.EPERM),
    Syscall("fspick", 433, 433, Group.MOUNTS, Action.EPERM),
    Syscall("mount_setattr", 442, 442, Group.MOUNTS, Action.EPERM),
    Syscall("open_tree_attr", 467, 467, Group.MOUNTS, Action.EPERM),
    Syscall("process_vm_readv", 310, 270, Group.OTHERS, Action.EPERM),
    Syscall("process_vm_writev", 311, 271, Group.OTHERS, Action.EPERM),
    Syscall("process_madvise", 440, 440, Group.OTHERS, Action.EPERM),
    Syscall("kcmp", 312, 272, Group.OTHERS, Action.EPERM),
    Syscall("pidfd_getfd", 438, 438, Group.OTHERS, Action.EPERM),
    # Reaches a file by its number, past every folder above it.
    Syscall("open_by_handle_at", 304, 265, Group.OTHERS, Action.EPERM),
    # Tells what others open, and has them wait for leave.
    Syscall("fanotify_init", 300, 262, Group.OTHERS, Action.EPERM),
    Syscall("add_key", 248, 217, Group.KEYS, Action.EPERM),
    Syscall("request_key", 249, 218, Group.KEYS, Action.EPERM),
    Syscall("keyctl", 250, 219, Group.KEYS, Action.EPERM),
    Syscall("quotactl", 179, 60, Group.MACHINE, Action.EPERM),
    Syscall("quotactl_fd", 443, 443, Group.MACHINE, Action.EPERM),
    Syscall("acct", 163, 89, Group.MACHINE, Action.EPERM),
    Syscall("swapon", 167, 224, Group.MACHINE, Action.EPERM),
    Syscall("swapoff", 168, 225, Group.MACHINE, Action.EPERM),
    Syscall("reboot", 169, 142, Group.MACHINE, Action.EPERM),
    Syscall("sethostname", 170, 161, Group.MACHINE, Action.EPERM),
    Syscall("setdomainname", 171, 162, Group.MACHINE, Action.EPERM),
    Syscall("settimeofday", 164, 170, Group.MACHINE, Action.EPERM),
    Syscall("clock_settime", 227, 112, Group.MACHINE, Action.EPERM),
    Syscall("syslog", 103, 116, Group.MACHINE, Action.EPERM),
    Syscall("lookup_dcookie", 212, 18, Group.MACHINE, Action.EPERM),
    Syscall("vhangup", 153, 58, Group.MACHINE, Action.EPERM),
    Syscall("nfsservctl", 180, 42, Group.MACHINE, Action.EPERM),
    Syscall("ioperm", 173, None, Group.MACHINE, Action.EPERM),
    Syscall("iopl", 172, None, Group.MACHINE, Action.EPERM),
    Syscall("shmget", 29, 194, Group.IPC, Action.EPERM),
    Syscall("shmctl", 31, 195, Group.IPC, Action.EPERM),
    Syscall("shmat", 30, 196, Group.IPC, Action.EPERM),
    Syscall("msgget", 68, 186, Group.IPC, Action.EPERM),
    Syscall("msgctl", 71, 187, Group.IPC, Action.EPERM),
    Syscall("msgrcv", 70, 188, Group.IPC, Action.EPERM),
    Syscall("msgsnd", 69, 189, Group.IPC, Action.EPERM),
    Syscall("semget", 64, 190, Group.IPC, Action.EPERM),
    Syscall("semctl", 66, 191, Group.IPC, Action.EPERM),
    Syscall("semtimedop", 220, 192, Group.IPC, Action.EPERM),
    Syscall("semop", 65, 193, Group.IPC, Action.EPERM),
    Syscall("mq_open", 240, 180, Group.IPC, Action.EPERM),
    Syscall("mq_unlink", 241, 181, Group.IPC, Action.EPERM),
    Syscall("mq_timedsend", 242, 182, Group.IPC, Action.EPERM),
    Syscall("mq_timedreceive", 243, 183, Group.IPC, Action.EPERM),
    Syscall("mq_notify", 244, 184, Group.IPC, Action.EPERM),
    Syscall("mq_getsetattr", 245, 185, Group.IPC, Action.EPERM),
    Syscall("setxattr", 188, 5, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("lsetxattr", 189, 6, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("fsetxattr", 190, 7, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("getxattr", 191, 8, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("lgetxattr", 192, 9, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("fgetxattr", 193, 10, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("listxattr", 194, 11, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("llistxattr", 195, 12, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("flistxattr", 196, 13, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("removexattr", 197, 14, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("lremovexattr", 198, 15, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("fremovexattr", 199, 16, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("setxattrat", 463, 463, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("getxattrat", 464, 464, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("listxattrat", 465, 465, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("removexattrat", 466, 466, Group.ATTRIBUTES, Action.ENOTSUP),
    Syscall("fcntl", 72, 25, Group.LEASES, Action.INSPECT),
    Syscall("memfd_create", 319, 279, Group.MEMORY_FILES, Action.INSPECT),
    Syscall("setsockopt", 54, 208, Group.GROUPS, Action.INSPECT),
    Syscall("prlimit64", 302, 261, Group.OTHERS, Action.INSPECT),
    Syscall("setpriority", 141, 140, Group.SCHEDULING, Action.INSPECT),
    Syscall("ioprio_set", 251, 30, Group.SCHEDULING, Action.INSPECT),
    Syscall("sched_setparam", 142, 118, Group.SCHEDULING, Action.INSPECT),
    Syscall("sched_setscheduler", 144, 119, Group.SCHEDULING, Action.INSPECT),
    Syscall("sched_setaffinity", 203, 122, Group.SCHEDULING, Action.INSPECT),
    Syscall("sched_setattr", 314, 274, Group.SCHEDULING, Action.INSPECT),
    Syscall("migrate_pages", 256, 238, Group.SCHEDULING, Action.EPERM),
    Syscall("move_pages", 279, 239, Group.SCHEDULING, Action.EPERM),
    Syscall("ioctl", 16, 29, Group.TERMINALS, Action.INSPECT),
    Syscall("clone", 56, 220, Group.CLONE, Action.INSPECT),
    Syscall("socket", 41, 198, Group.SOCKETS, Action.INSPECT),
    Syscall("socketpair", 53, 199, Group.SOCKETS, Action.INSPECT),
    Syscall("sendto", 44, 206, Group.SENDS, Action.INSPECT),
    Syscall("sendmsg", 46, 211, Group.SENDS, Action.INSPECT),
    Syscall("sendmmsg", 307, 269, Group.SENDS, Action.INSPECT),
)

X32_BIT = 0x40000000
"""x86_64 takes a second set of numbers from here on, by which every call could be made past the table."""
X32_LEGACY = (512, 547)
"""Kernels before 5.4 also took these numbers of that set without the bit."""


def this_architecture() -> Architecture | None:
    """Return the architecture whose calls this process makes, ``None`` when the table has no column for it.

    The name alone does not do: a 32-bit program on a 64-bit kernel would be killed at its next call.
    """
    machine = os.uname().machine
    if struct.calcsize("P") != 8 or machine not in set(Architecture):  # noqa: PLR2004 - bytes of a 64-bit address
        return None
    return Architecture(machine)
