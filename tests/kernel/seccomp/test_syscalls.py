"""The table, compared with the kernel's numbers."""

from __future__ import annotations

import platform
from collections import Counter

import pytest

from democrai_sandbox.kernel.seccomp.syscalls import (
    ALLOWED,
    LEFT_OUT,
    NEWEST,
    TABLE,
    Action,
    Architecture,
    Group,
    this_architecture,
)
from tests.kernel.seccomp.headers import HEADERS_MISSING, aarch64, own_machine, written_x86_64
from tests.services.rows import rows

OTHER_NAMES = {"newfstatat": "fstatat"}
"""Calls with another name in the generic headers."""
needs_headers = pytest.mark.skipif(HEADERS_MISSING, reason="needs gcc and the kernel's headers (linux-libc-dev)")

KILLED = {
    *("execve", "execveat", "ptrace", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("pivot_root", "chroot", "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid"),
    *("setfsgid", "setgroups", "bpf", "perf_event_open", "userfaultfd"),
}
NOT_THERE = {"io_uring_setup", "io_uring_enter", "io_uring_register", "clone3"}
REFUSED = {
    *("unshare", "setns", "pidfd_getfd", "mount", "umount2", "fsopen", "fsmount", "fsconfig", "fspick", "move_mount"),
    *("open_tree", "open_tree_attr", "mount_setattr", "process_vm_readv", "process_vm_writev", "process_madvise"),
    *("open_by_handle_at", "keyctl", "add_key", "request_key", "kcmp", "quotactl", "quotactl_fd", "acct", "swapon"),
    *("swapoff", "reboot", "settimeofday", "clock_settime", "syslog", "lookup_dcookie", "vhangup", "nfsservctl"),
    *("ioperm", "iopl", "fanotify_init", "sethostname", "setdomainname"),
}
REFUSED_TO_CHILDREN = {
    *("migrate_pages", "move_pages"),
    *("shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl"),
    *("semget", "semop", "semctl", "semtimedop"),
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
}
ATTRIBUTES = {
    *(f"{how}{act}xattr" for how in ("", "l", "f") for act in ("set", "get", "list", "remove")),
    *("setxattrat", "getxattrat", "listxattrat", "removexattrat"),
}
METADATA = {
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat"),
}


@rows(
    ("action", "names"),
    [
        (Action.KILL, KILLED),
        (Action.ENOSYS, NOT_THERE),
        (Action.EPERM, REFUSED | REFUSED_TO_CHILDREN),
        (Action.ENOTSUP, ATTRIBUTES),
        (Action.SUPERVISE, METADATA | {"connect"}),
    ],
    ids=["killed", "not there", "refused", "not supported", "supervised"],
)
def test_each_call_meets_the_action_that_was_promised_for_it(action, names):
    assert {row.name for row in TABLE if row.action is action} == names


def test_no_name_and_no_number_stands_twice():
    for place, column in enumerate(("name", "x86_64", "aarch64")):
        counted = Counter([*(getattr(row, column) for row in TABLE), *(row[place] for row in ALLOWED)])
        del counted[None]
        assert set(counted.values()) == {1}, column


def test_every_call_of_the_kernel_is_decided_about():
    """A call in none of the lists is an oversight: children would be refused it without a review."""
    decided = [*(row.name for row in TABLE), *(name for name, _, _ in ALLOWED), *LEFT_OUT]
    assert Counter(decided) == Counter(list(written_x86_64()))
    assert max(written_x86_64().values()) == NEWEST


def test_x86_64_has_the_numbers_of_the_kernels_table():
    known = written_x86_64()
    assert {row.name: row.x86_64 for row in TABLE} == {row.name: known[row.name] for row in TABLE}
    assert {name: number for name, number, _ in ALLOWED} == {name: known[name] for name, _, _ in ALLOWED}


@needs_headers
def test_aarch64_has_the_numbers_of_the_kernels_headers():
    known = aarch64()
    newest = max(known.values())
    for name, number in [*((row.name, row.aarch64) for row in TABLE), *((name, arm) for name, _, arm in ALLOWED)]:
        if number is None:
            assert name not in known, name
        elif number <= newest:
            assert known.get(OTHER_NAMES.get(name, name)) == number, name
    decided = {number for _, _, number in ALLOWED} | {row.aarch64 for row in TABLE}
    names = known.keys() - {"syscalls", "arch_specific_syscall"}  # the count, and the start of other numbers
    assert {name for name in names if known[name] not in decided} == names & set(LEFT_OUT)


@needs_headers
def test_this_machines_headers_agree_with_its_column():
    arch, known = this_architecture(), own_machine()
    assert arch is not None
    for row in TABLE:
        if row.name in known:
            assert row.number(arch) == known[row.name], row


def test_calls_newer_than_the_headers_have_the_number_that_all_architectures_share():
    pairs = [*((row.x86_64, row.aarch64) for row in TABLE), *((x86, arm) for _, x86, arm in ALLOWED)]
    assert all(x86 == arm for x86, arm in pairs if max(x86 or 0, arm or 0) >= 424)


@needs_headers
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these headers are of another architecture")
def test_the_written_table_agrees_with_the_headers_of_x86_64():
    known = own_machine()
    assert {name: number for name, number in written_x86_64().items() if name in known} == {
        name: number for name, number in known.items() if name in written_x86_64()
    }


def test_every_group_is_used():
    assert {row.group for row in TABLE} == set(Group)


@rows(
    ("machine", "bytes_of_address", "expected"),
    [
        ("x86_64", 8, Architecture.X86_64),
        ("aarch64", 8, Architecture.AARCH64),
        ("x86_64", 4, None),  # i386 and x32 programs on a 64-bit kernel: our filter would kill them
        ("aarch64", 4, None),
        ("armv8l", 8, None),
        ("riscv64", 8, None),
        ("", 8, None),
    ],
)
def test_a_filter_of_another_architecture_is_never_chosen(monkeypatch, machine, bytes_of_address, expected):
    from democrai_sandbox.kernel.seccomp import syscalls

    class Uname:
        pass

    Uname.machine = machine
    monkeypatch.setattr(syscalls.os, "uname", Uname)
    monkeypatch.setattr(syscalls.struct, "calcsize", lambda _: bytes_of_address)
    assert this_architecture() is expected
