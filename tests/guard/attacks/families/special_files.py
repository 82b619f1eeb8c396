"""Special files: the process file system, devices, pipes and memory files."""

from __future__ import annotations

import os
import stat
import sys

from tests.guard.attacks.kit import FILES, FILES_OR_FD, SANDBOX, Ground, attack, attacks_of


def memory(ground: Ground, path: str, mode: str = "rb") -> object:
    marker = b"find me: " + os.urandom(8)
    with open(path, mode, 0) as file:
        file.seek(id(marker))
        return marker in file.read(sys.getsizeof(marker))


def memory_by_pread(ground: Ground) -> bool:
    marker = b"find me: " + os.urandom(8)
    return marker in os.pread(os.open("/proc/self/mem", os.O_RDONLY), sys.getsizeof(marker), id(marker))


def write_memory(ground: Ground) -> bool:
    target = b"original: " + os.urandom(8)
    offset = sys.getsizeof(target) - len(target) - 1
    with open("/proc/self/mem", "r+b", 0) as file:
        file.seek(id(target) + offset)
        file.write(b"modified")
    return target.startswith(b"modified")


attacks_of(
    {
        "mem": lambda ground: memory(ground, "/proc/self/mem"),
        "mem_of_pid": lambda ground: memory(ground, f"/proc/{os.getpid()}/mem"),
        "mem_of_thread": lambda ground: memory(ground, "/proc/thread-self/mem"),
        "mem_of_task": lambda ground: memory(ground, f"/proc/self/task/{os.getpid()}/mem"),
        "mem_by_pread": memory_by_pread,
        "mem_written": write_memory,
    },
    "the memory of the process is opened as a file: {}",
    expect=FILES,
)


def first_line(path: str) -> bool:
    with open(path, "rb", 0) as file:
        return len(file.read(64)) > 0


attacks_of(
    {
        "environ": lambda ground: b"PATH=" in open("/proc/self/environ", "rb").read(),
        "maps": lambda ground: first_line("/proc/self/maps"),
        "smaps": lambda ground: first_line("/proc/self/smaps"),
        "fd_listing": lambda ground: len(os.listdir("/proc/self/fd")) > 0,
        "fdinfo": lambda ground: len(os.listdir("/proc/self/fdinfo")) > 0,
        "map_files": lambda ground: os.listdir("/proc/self/map_files") != [],
        "parent_environ": lambda ground: first_line(f"/proc/{os.getppid()}/environ"),
        "init_cmdline": lambda ground: first_line("/proc/1/cmdline"),
        "proc_listing": lambda ground: "1" in os.listdir("/proc"),
        "dev_listing": lambda ground: "null" in os.listdir("/dev"),
        "shm_listing": lambda ground: os.listdir("/dev/shm") is not None,
        "sys_listing": lambda ground: "kernel" in os.listdir("/sys"),
        "passwd": lambda ground: first_line("/etc/passwd"),
        "root_listing": lambda ground: "etc" in os.listdir("/"),
    },
    "system information is read: {}",
    expect=FILES,
)
attacks_of(
    {
        "shadow": lambda ground: first_line("/etc/shadow"),
        "kernel_messages": lambda ground: os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK) > 0,
    },
    "what only the administrator may read is read: {}",
    expect=FILES,
    needs=("root",),
)
attacks_of(
    {
        "comm": lambda ground: open("/proc/self/comm", "w").write("changed") > 0,
        "oom_score": lambda ground: open("/proc/self/oom_score_adj", "w").write("0") > 0,
        "coredump_filter": lambda ground: open("/proc/self/coredump_filter", "w").write("0x33") > 0,
        "dev_shm_file": lambda ground: open(f"/dev/shm/attack-{os.getpid()}", "x").close() is None,
        "dev_zero_truncated": lambda ground: open("/dev/zero", "w").write("x") > 0,
        "terminal": lambda ground: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) > 0,
    },
    "a special file is written: {}",
    expect=FILES,
    group="write_",
    after=lambda ground: (
        os.path.exists(f"/dev/shm/attack-{os.getpid()}") and os.remove(f"/dev/shm/attack-{os.getpid()}")
    ),
)


@attack("a device node for the disk is made inside the root", expect=SANDBOX, needs=("root",))
def disk_node(ground: Ground) -> bool:
    os.mknod(f"{ground.inside}/disk", stat.S_IFBLK | 0o600, os.stat("/").st_dev)
    return stat.S_ISBLK(os.stat(f"{ground.inside}/disk").st_mode)


@attack("a device node for the machine's memory is made inside the root", expect=SANDBOX, needs=("root",))
def memory_node(ground: Ground) -> bool:
    os.mknod(f"{ground.inside}/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    return True


@attack("the running program is opened through the process file system and replaced", expect=FILES)
def running_program(ground: Ground) -> bool:
    import shutil

    shutil.copy(sys.executable, f"{ground.site}/python")
    return os.open("/proc/self/exe", os.O_RDONLY | os.O_NOATIME) > 0 and None


@attack(
    "the host's pipe is opened by the name the process file system gives it",
    expect=FILES_OR_FD,
    prepare=lambda ground: setattr(ground.held, "pipe", os.pipe()),
)
def pipe_by_name(ground: Ground) -> bool:
    return os.open(f"/proc/self/fd/{ground.held.pipe[1]}", os.O_WRONLY) > 0


@attack("the host's standard error is reopened by its name", expect=SANDBOX)
def standard_error_by_name(ground: Ground) -> bool:
    return os.open("/proc/self/fd/2", os.O_WRONLY) > 0


def hold_memory_file(ground: Ground) -> None:
    ground.held.fd = os.memfd_create("host")
    os.write(ground.held.fd, ground.SECRET.encode())


@attack("a memory file of the host is reopened by its name", expect=FILES_OR_FD, prepare=hold_memory_file)
def memory_file_by_name(ground: Ground) -> object:
    return open(f"/proc/self/fd/{ground.held.fd}").read()


@attack("a memory file of the host is read by its number", expect=FILES_OR_FD, prepare=hold_memory_file)
def memory_file_by_number(ground: Ground) -> object:
    return os.pread(ground.held.fd, 99, 0)


@attack(
    "a unix socket of the host is found by its name",
    expect=FILES,
    prepare=lambda ground: __import__("socket").socket(1, 1).bind(f"{ground.outside_dir}/socket"),
)
def socket_by_name(ground: Ground) -> bool:
    return stat.S_ISSOCK(os.stat(f"{ground.outside_dir}/socket").st_mode)


@attack("a kernel setting is opened for writing", expect=SANDBOX, needs=("root",))
def kernel_setting(ground: Ground) -> bool:
    return os.open("/proc/sys/kernel/hostname", os.O_WRONLY) > 0
