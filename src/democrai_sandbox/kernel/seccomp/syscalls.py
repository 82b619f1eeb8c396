"""System calls that a filter decides about: their number on each architecture, their group and their action.

The numbers are part of the kernel's interface and never change. ``None`` means that the architecture lacks the call.
"""

from __future__ import annotations

import os
import struct
from enum import StrEnum
from typing import NamedTuple


class Architecture(StrEnum):
    """Supported architectures, by the kernel's machine name."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def audit(self) -> int:
        """Number by which the kernel identifies the calling convention of a call."""
        return {Architecture.X86_64: 0xC000003E, Architecture.AARCH64: 0xC00000B7}[self]


class Action(StrEnum):
    """Treatment of a call."""

    KILL = "kill_process"
    """Kill the process with SIGSYS: no legitimate program makes this call."""
    EPERM = "eperm"
    ENOSYS = "enosys"
    """Report that the kernel lacks the call: libraries then use the older call, which can be inspected."""
    ENOTSUP = "enotsup"
    """Report that the file system does not support the call."""
    INSPECT = "inspected"
    """Decide by the arguments."""


class Group(StrEnum):
    """Purpose of a group of calls."""

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
    """Shared memory, queues and semaphores of the user's processes: System V objects, which have no path, and POSIX
    queues, which can be removed despite Landlock."""
    ATTRIBUTES = "attributes"
    """Extended attributes. Landlock does not check them, and a filter cannot read paths. A descriptor opened for
    neither reading nor writing also passes Landlock."""
    LEASES = "leases"
    """Operations on an open file, even with such a descriptor: leases block opens of other processes."""
    MEMORY_FILES = "memory_files"
    GROUPS = "groups"
    """Joining multicast groups: the kernel announces it on the network, past the packet filter of a cgroup."""
    SCHEDULING = "scheduling"
    """Settings that affect other processes of the user, which any of them may change and Landlock does not check."""
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
        """Return its number on an architecture."""
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
    # Operations in a ring bypass filters: in tests, openat and connect succeeded although they were refused.
    Syscall("io_uring_setup", 425, 425, Group.RINGS, Action.ENOSYS),
    Syscall("io_uring_enter", 426, 426, Group.RINGS, Action.ENOSYS),
    Syscall("io_uring_register", 427, 427, Group.RINGS, Action.ENOSYS),
    # Its flags are in memory, where a filter cannot read them; those of clone are in a register.
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
    # Opens a file by its handle, bypassing all ancestor folders.
    Syscall("open_by_handle_at", 304, 265, Group.OTHERS, Action.EPERM),
    # Reports files that other processes open, and can block these opens.
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
"""x86_64 accepts a second set of numbers from here on, with which every call could bypass the table."""
X32_LEGACY = (512, 547)
"""Numbers of that set that kernels before 5.4 accepted without the bit."""


def this_architecture() -> Architecture | None:
    """Return the architecture of this process's calls; ``None`` if the table lacks it.

    The machine name is not enough: a 32-bit program on a 64-bit kernel would be killed at its next call.
    """
    machine = os.uname().machine
    if struct.calcsize("P") != 8 or machine not in set(Architecture):  # noqa: PLR2004 - bytes of a 64-bit address
        return None
    return Architecture(machine)
