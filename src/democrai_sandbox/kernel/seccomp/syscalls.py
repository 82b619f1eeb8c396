"""Tables of system calls: those that a filter decides about, and those that a child may make with any arguments.

The numbers are part of the kernel's interface and never change. ``None`` means that the architecture lacks the call.
A child gets ENOSYS for every number that is in neither table: libraries then use an older call, and new kernel calls
stay blocked until they are reviewed.
"""

from __future__ import annotations

import os
import struct
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    SUPERVISE = "supervised"
    """Refuse, or let the supervisor make the call: the profile decides."""


class Group(StrEnum):
    """Kind of process for which a call is in the filter."""

    ALL = "all"
    EXEC = "exec"
    """Processes that may not execute programs."""
    SENDS = "sends"
    """Processes that may not connect by sending."""
    CHILDREN = "children"
    CONNECTS = "connects"
    """Children whose local sockets the supervisor connects."""
    GROUPS = "groups"
    """Children that may not join multicast groups."""


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


def _calls(group: Group, action: Action, *calls: tuple[str, int | None, int | None]) -> Iterator[Syscall]:
    """Yield the rows of calls: name, number on x86_64, number on aarch64."""
    return (Syscall(*call, group, action) for call in calls)


# fmt: off
TABLE: tuple[Syscall, ...] = (
    *_calls(Group.EXEC, Action.KILL, ("execve", 59, 221), ("execveat", 322, 281)),
    *_calls(Group.ALL, Action.KILL,
        ("ptrace", 101, 117), ("kexec_load", 246, 104), ("kexec_file_load", 320, 294),
        ("init_module", 175, 105), ("finit_module", 313, 273), ("delete_module", 176, 106),
        ("pivot_root", 155, 41), ("chroot", 161, 51),
        ("setuid", 105, 146), ("setgid", 106, 144), ("setreuid", 113, 145), ("setregid", 114, 143),
        ("setgroups", 116, 159), ("setresuid", 117, 147), ("setresgid", 119, 149), ("setfsuid", 122, 151),
        ("setfsgid", 123, 152), ("bpf", 321, 280), ("perf_event_open", 298, 241), ("userfaultfd", 323, 282)),
    *_calls(Group.ALL, Action.ENOSYS,
        # Operations in a ring bypass filters: in tests, openat and connect succeeded although they were refused.
        ("io_uring_setup", 425, 425), ("io_uring_enter", 426, 426), ("io_uring_register", 427, 427),
        # Its flags are in memory, where a filter cannot read them; those of clone are in a register.
        ("clone3", 435, 435)),
    *_calls(Group.ALL, Action.EPERM,
        ("unshare", 272, 97), ("setns", 308, 268),
        ("mount", 165, 40), ("umount2", 166, 39), ("open_tree", 428, 428), ("move_mount", 429, 429),
        ("fsopen", 430, 430), ("fsconfig", 431, 431), ("fsmount", 432, 432), ("fspick", 433, 433),
        ("mount_setattr", 442, 442), ("open_tree_attr", 467, 467),
        # Memory, descriptors and files of other processes.
        ("process_vm_readv", 310, 270), ("process_vm_writev", 311, 271), ("process_madvise", 440, 440),
        ("kcmp", 312, 272), ("pidfd_getfd", 438, 438),
        # Opens a file by its handle, bypassing all ancestor folders.
        ("open_by_handle_at", 304, 265),
        # Reports files that other processes open, and can block these opens.
        ("fanotify_init", 300, 262),
        ("add_key", 248, 217), ("request_key", 249, 218), ("keyctl", 250, 219),
        # Settings of the whole machine.
        ("quotactl", 179, 60), ("quotactl_fd", 443, 443), ("acct", 163, 89), ("swapon", 167, 224),
        ("swapoff", 168, 225), ("reboot", 169, 142), ("sethostname", 170, 161), ("setdomainname", 171, 162),
        ("settimeofday", 164, 170), ("clock_settime", 227, 112), ("syslog", 103, 116), ("lookup_dcookie", 212, 18),
        ("vhangup", 153, 58), ("nfsservctl", 180, 42), ("ioperm", 173, None), ("iopl", 172, None)),
    # Shared memory, queues and semaphores of the user's processes: System V objects, which have no path, and POSIX
    # queues, which can be removed despite Landlock.
    *_calls(Group.CHILDREN, Action.EPERM,
        ("shmget", 29, 194), ("shmctl", 31, 195), ("shmat", 30, 196), ("msgget", 68, 186), ("msgctl", 71, 187),
        ("msgrcv", 70, 188), ("msgsnd", 69, 189), ("semget", 64, 190), ("semctl", 66, 191), ("semtimedop", 220, 192),
        ("semop", 65, 193), ("mq_open", 240, 180), ("mq_unlink", 241, 181), ("mq_timedsend", 242, 182),
        ("mq_timedreceive", 243, 183), ("mq_notify", 244, 184), ("mq_getsetattr", 245, 185)),
    # Extended attributes. Landlock does not check them, and a filter cannot read paths. A descriptor opened for neither
    # reading nor writing also passes Landlock.
    *_calls(Group.CHILDREN, Action.ENOTSUP,
        ("setxattr", 188, 5), ("lsetxattr", 189, 6), ("fsetxattr", 190, 7), ("getxattr", 191, 8), ("lgetxattr", 192, 9),
        ("fgetxattr", 193, 10), ("listxattr", 194, 11), ("llistxattr", 195, 12), ("flistxattr", 196, 13),
        ("removexattr", 197, 14), ("lremovexattr", 198, 15), ("fremovexattr", 199, 16), ("setxattrat", 463, 463),
        ("getxattrat", 464, 464), ("listxattrat", 465, 465), ("removexattrat", 466, 466)),
    # Mode, owner and times of files, which Landlock does not check.
    *_calls(Group.CHILDREN, Action.SUPERVISE,
        ("chmod", 90, None), ("fchmod", 91, 52), ("fchmodat", 268, 53), ("fchmodat2", 452, 452), ("chown", 92, None),
        ("fchown", 93, 55), ("lchown", 94, None), ("fchownat", 260, 54), ("utime", 132, None), ("utimes", 235, None),
        ("futimesat", 261, None), ("utimensat", 280, 88)),
    *_calls(Group.CHILDREN, Action.INSPECT,
        # Filters whose decisions another process makes.
        ("seccomp", 317, 277),
        # Operations on an open file, even with such a descriptor: leases block opens of other processes.
        ("fcntl", 72, 25),
        ("memfd_create", 319, 279)),
    # Joining multicast groups: the kernel announces it on the network, past the packet filter of a cgroup.
    *_calls(Group.GROUPS, Action.INSPECT, ("setsockopt", 54, 208)),
    *_calls(Group.ALL, Action.INSPECT, ("prlimit64", 302, 261)),
    # Settings that affect other processes of the user, which any of them may change and Landlock does not check.
    *_calls(Group.CHILDREN, Action.INSPECT,
        ("setpriority", 141, 140), ("ioprio_set", 251, 30), ("sched_setparam", 142, 118),
        ("sched_setscheduler", 144, 119), ("sched_setaffinity", 203, 122), ("sched_setattr", 314, 274)),
    *_calls(Group.CHILDREN, Action.EPERM, ("migrate_pages", 256, 238), ("move_pages", 279, 239)),
    *_calls(Group.ALL, Action.INSPECT,
        ("ioctl", 16, 29), ("clone", 56, 220), ("socket", 41, 198), ("socketpair", 53, 199)),
    *_calls(Group.SENDS, Action.INSPECT, ("sendto", 44, 206), ("sendmsg", 46, 211), ("sendmmsg", 307, 269)),
    # To which socket file a local socket connects, which Landlock does not check.
    *_calls(Group.CONNECTS, Action.SUPERVISE, ("connect", 42, 203)),
)
# fmt: on

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


# fmt: off
ALLOWED: tuple[tuple[str, int | None, int | None], ...] = (
    # The name, the number on x86_64, the number on aarch64.
    ("read", 0, 63), ("write", 1, 64), ("open", 2, None), ("close", 3, 57), ("stat", 4, None), ("fstat", 5, 80),
    ("lstat", 6, None), ("poll", 7, None), ("lseek", 8, 62), ("mmap", 9, 222), ("mprotect", 10, 226),
    ("munmap", 11, 215), ("brk", 12, 214), ("rt_sigaction", 13, 134), ("rt_sigprocmask", 14, 135),
    ("rt_sigreturn", 15, 139), ("pread64", 17, 67), ("pwrite64", 18, 68), ("readv", 19, 65), ("writev", 20, 66),
    ("access", 21, None), ("pipe", 22, None), ("select", 23, None), ("sched_yield", 24, 124), ("mremap", 25, 216),
    ("msync", 26, 227), ("mincore", 27, 232), ("madvise", 28, 233), ("dup", 32, 23), ("dup2", 33, None),
    ("pause", 34, None), ("nanosleep", 35, 101), ("getitimer", 36, 102), ("alarm", 37, None), ("setitimer", 38, 103),
    ("getpid", 39, 172), ("sendfile", 40, 71), ("accept", 43, 202), ("recvfrom", 45, 207),
    ("recvmsg", 47, 212), ("shutdown", 48, 210), ("bind", 49, 200), ("listen", 50, 201), ("getsockname", 51, 204),
    ("getpeername", 52, 205), ("getsockopt", 55, 209), ("fork", 57, None), ("vfork", 58, None), ("exit", 60, 93),
    ("wait4", 61, 260), ("kill", 62, 129), ("uname", 63, 160), ("shmdt", 67, 197), ("flock", 73, 32),
    ("fsync", 74, 82), ("fdatasync", 75, 83), ("truncate", 76, 45), ("ftruncate", 77, 46), ("getdents", 78, None),
    ("getcwd", 79, 17), ("chdir", 80, 49), ("fchdir", 81, 50), ("rename", 82, None), ("mkdir", 83, None),
    ("rmdir", 84, None), ("creat", 85, None), ("link", 86, None), ("unlink", 87, None), ("symlink", 88, None),
    ("readlink", 89, None), ("umask", 95, 166), ("gettimeofday", 96, 169), ("getrlimit", 97, 163),
    ("getrusage", 98, 165), ("sysinfo", 99, 179), ("times", 100, 153), ("getuid", 102, 174), ("getgid", 104, 176),
    ("geteuid", 107, 175), ("getegid", 108, 177), ("setpgid", 109, 154), ("getppid", 110, 173), ("getpgrp", 111, None),
    ("setsid", 112, 157), ("getgroups", 115, 158), ("getresuid", 118, 148), ("getresgid", 120, 150),
    ("getpgid", 121, 155), ("getsid", 124, 156), ("capget", 125, 90), ("capset", 126, 91), ("rt_sigpending", 127, 136),
    ("rt_sigtimedwait", 128, 137), ("rt_sigqueueinfo", 129, 138), ("rt_sigsuspend", 130, 133),
    ("sigaltstack", 131, 132), ("mknod", 133, None), ("personality", 135, 92),
    ("ustat", 136, None), ("statfs", 137, 43), ("fstatfs", 138, 44), ("getpriority", 140, 141),
    ("sched_getparam", 143, 121), ("sched_getscheduler", 145, 120), ("sched_get_priority_max", 146, 125),
    ("sched_get_priority_min", 147, 126), ("sched_rr_get_interval", 148, 127), ("mlock", 149, 228),
    ("munlock", 150, 229), ("mlockall", 151, 230), ("munlockall", 152, 231), ("prctl", 157, 167),
    ("arch_prctl", 158, None), ("setrlimit", 160, 164), ("sync", 162, 81), ("gettid", 186, 178),
    ("readahead", 187, 213), ("tkill", 200, 130), ("time", 201, None), ("futex", 202, 98),
    ("sched_getaffinity", 204, 123), ("set_thread_area", 205, None), ("io_setup", 206, 0), ("io_destroy", 207, 1),
    ("io_getevents", 208, 4), ("io_submit", 209, 2), ("io_cancel", 210, 3), ("get_thread_area", 211, None),
    ("epoll_create", 213, None), ("remap_file_pages", 216, 234), ("getdents64", 217, 61), ("set_tid_address", 218, 96),
    ("restart_syscall", 219, 128), ("fadvise64", 221, 223), ("timer_create", 222, 107), ("timer_settime", 223, 110),
    ("timer_gettime", 224, 108), ("timer_getoverrun", 225, 109), ("timer_delete", 226, 111),
    ("clock_gettime", 228, 113), ("clock_getres", 229, 114), ("clock_nanosleep", 230, 115), ("exit_group", 231, 94),
    ("epoll_wait", 232, None), ("epoll_ctl", 233, 21), ("tgkill", 234, 131),
    ("mbind", 237, 235), ("set_mempolicy", 238, 237), ("get_mempolicy", 239, 236), ("waitid", 247, 95),
    ("ioprio_get", 252, 31), ("openat", 257, 56), ("mkdirat", 258, 34), ("mknodat", 259, 33),
    ("newfstatat", 262, 79), ("unlinkat", 263, 35), ("renameat", 264, 38),
    ("linkat", 265, 37), ("symlinkat", 266, 36), ("readlinkat", 267, 78),
    ("faccessat", 269, 48), ("pselect6", 270, 72), ("ppoll", 271, 73), ("set_robust_list", 273, 99),
    ("get_robust_list", 274, 100), ("splice", 275, 76), ("tee", 276, 77), ("sync_file_range", 277, 84),
    ("vmsplice", 278, 75), ("epoll_pwait", 281, 22), ("signalfd", 282, None),
    ("timerfd_create", 283, 85), ("eventfd", 284, None), ("fallocate", 285, 47), ("timerfd_settime", 286, 86),
    ("timerfd_gettime", 287, 87), ("accept4", 288, 242), ("signalfd4", 289, 74), ("eventfd2", 290, 19),
    ("epoll_create1", 291, 20), ("dup3", 292, 24), ("pipe2", 293, 59), ("preadv", 295, 69), ("pwritev", 296, 70),
    ("rt_tgsigqueueinfo", 297, 240), ("recvmmsg", 299, 243), ("syncfs", 306, 267), ("getcpu", 309, 168),
    ("sched_getattr", 315, 275), ("renameat2", 316, 276), ("getrandom", 318, 278),
    ("membarrier", 324, 283), ("mlock2", 325, 284), ("copy_file_range", 326, 285), ("preadv2", 327, 286),
    ("pwritev2", 328, 287), ("pkey_mprotect", 329, 288), ("pkey_alloc", 330, 289), ("pkey_free", 331, 290),
    ("statx", 332, 291), ("io_pgetevents", 333, 292), ("rseq", 334, 293), ("uretprobe", 335, None),
    ("uprobe", 336, None), ("pidfd_send_signal", 424, 424), ("pidfd_open", 434, 434), ("close_range", 436, 436),
    ("openat2", 437, 437), ("faccessat2", 439, 439), ("epoll_pwait2", 441, 441), ("landlock_create_ruleset", 444, 444),
    ("landlock_add_rule", 445, 445), ("landlock_restrict_self", 446, 446), ("futex_waitv", 449, 449),
    ("set_mempolicy_home_node", 450, 450), ("map_shadow_stack", 453, 453),
    ("futex_wake", 454, 454), ("futex_wait", 455, 455), ("futex_requeue", 456, 456), ("mseal", 462, 462),
)
# fmt: on

LEFT_OUT = (
    # Read or change files and mounts outside the rules, without Landlock's control.
    *("inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch", "fanotify_mark", "name_to_handle_at"),
    *("file_getattr", "file_setattr", "cachestat", "statmount", "listmount", "listns"),
    # Affect other processes or the whole machine.
    *("process_mrelease", "adjtimex", "clock_adjtime", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"),
    # Memory files that no other rule covers.
    "memfd_secret",
    # Removed from kernels, or used only by old programs on x86_64.
    *("uselib", "sysfs", "modify_ldt", "_sysctl", "create_module", "get_kernel_syms", "query_module", "getpmsg"),
    *("putpmsg", "afs_syscall", "tuxcall", "security", "epoll_ctl_old", "epoll_wait_old", "vserver"),
)
"""Reviewed calls that stay blocked. With the other two lists, these are all known calls."""

NEWEST = 470
"""Highest reviewed number; from 424 on, both architectures have the same numbers."""


def allowed_numbers(arch: Architecture) -> Iterator[int]:
    """Yield the numbers of the allowed calls on an architecture."""
    for _, x86_64, aarch64 in ALLOWED:
        number = x86_64 if arch is Architecture.X86_64 else aarch64
        if number is not None:
            yield number
