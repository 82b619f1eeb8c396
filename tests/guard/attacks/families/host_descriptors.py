"""Descriptors that the host opened, and descriptors of folders, in place of paths."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FD, FILES_OR_FD, SANDBOX, Ground, Works, attack, attacks_of


def hold(ground: Ground) -> None:
    ground.held.fd = os.open(ground.outside, os.O_RDWR)
    ground.held.folder = os.open(ground.outside_dir, os.O_RDONLY)


def own(ground: Ground, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    return os.open(f"{ground.inside}/target", flags, 0o600)


def content(ground: Ground) -> bytes:
    return open(f"{ground.inside}/target", "rb").read()


def read_vector(ground: Ground) -> object:
    buffer = bytearray(99)
    os.readv(ground.held.fd, [buffer])
    return buffer


def positional_vector(ground: Ground) -> object:
    buffer = bytearray(99)
    os.preadv(ground.held.fd, [buffer], 0)
    return buffer


def memory_map(ground: Ground) -> object:
    import mmap

    return mmap.mmap(ground.held.fd, 0, access=mmap.ACCESS_READ).read()


def send_file(ground: Ground) -> object:
    os.sendfile(own(ground), ground.held.fd, 0, 99)
    return content(ground)


def copy_range(ground: Ground) -> object:
    os.copy_file_range(ground.held.fd, own(ground), 99)
    return content(ground)


def splice(ground: Ground) -> object:
    read, write = os.pipe()
    os.splice(ground.held.fd, write, 99)
    return os.read(read, 99)


def duplicate(ground: Ground) -> object:
    return os.pread(os.dup(ground.held.fd), 99, 0)


def duplicate_onto_own(ground: Ground) -> object:
    number = own(ground)
    os.dup2(ground.held.fd, number)
    return os.pread(number, 99, 0)


def duplicate_by_fcntl(ground: Ground) -> object:
    import fcntl

    return os.pread(fcntl.fcntl(ground.held.fd, fcntl.F_DUPFD, 0), 99, 0)


def poll_path(ground: Ground) -> object:
    return open(f"/proc/self/fd/{ground.held.fd}").read()


attacks_of(
    {
        "read": lambda ground: os.read(ground.held.fd, 99),
        "pread": lambda ground: os.pread(ground.held.fd, 99, 0),
        "readv": read_vector,
        "preadv": positional_vector,
        "open": lambda ground: open(ground.held.fd).read(),
        "fdopen": lambda ground: os.fdopen(ground.held.fd).read(),
        "FileIO": lambda ground: __import__("io").FileIO(ground.held.fd).read(),
        "_pyio_FileIO": lambda ground: __import__("_pyio").FileIO(ground.held.fd).read(),
        "opener": lambda ground: open("x", opener=lambda path, flags: ground.held.fd).read(),
        "mmap": memory_map,
        "sendfile": send_file,
        "copy_file_range": copy_range,
        "splice": splice,
        "dup": duplicate,
        "dup2": duplicate_onto_own,
        "F_DUPFD": duplicate_by_fcntl,
        "proc_path": poll_path,
        "dev_path": lambda ground: open(f"/dev/fd/{ground.held.fd}").read(),
        "proc_path_stat": lambda ground: os.stat(f"/proc/self/fd/{ground.held.fd}").st_size > 0,
        "fstat": lambda ground: os.fstat(ground.held.fd).st_size > 0,
        "stat": lambda ground: os.stat(ground.held.fd).st_size > 0,
        "listxattr": lambda ground: os.listxattr(ground.held.fd) is not None,
        "statvfs": lambda ground: os.fstatvfs(ground.held.fd).f_bsize > 0,
        "lseek": lambda ground: os.lseek(ground.held.fd, 0, os.SEEK_END) > 0,
    },
    "a file the host opened is read by its number: {}",
    expect=FILES_OR_FD,
    prepare=hold,
)
attacks_of(
    {
        "write": lambda ground: os.write(ground.held.fd, b"changed"),
        "pwrite": lambda ground: os.pwrite(ground.held.fd, b"changed", 0),
        "writev": lambda ground: os.writev(ground.held.fd, [b"changed"]),
        "ftruncate": lambda ground: os.ftruncate(ground.held.fd, 0),
        "truncate": lambda ground: os.truncate(ground.held.fd, 0),
        "fchmod": lambda ground: os.fchmod(ground.held.fd, 0o777),
        "utime": lambda ground: os.utime(ground.held.fd, (1, 1)),
        "setxattr": lambda ground: os.setxattr(ground.held.fd, "user.x", b"y"),
        "posix_fallocate": lambda ground: os.posix_fallocate(ground.held.fd, 0, 4096),
        "sendfile_onto": lambda ground: os.sendfile(ground.held.fd, os.open(f"{ground.inside}/own.txt", 0), 0, 9),
        "open_write": lambda ground: open(ground.held.fd, "w").write("changed"),
        "mmap": lambda ground: __import__("mmap").mmap(ground.held.fd, 0).__setitem__(0, 65),
        "faulthandler": lambda ground: __import__("faulthandler").dump_traceback(ground.held.fd),
        "print_to_it": lambda ground: os.dup2(own(ground), ground.held.fd) and None,
    },
    "a file the host opened is changed by its number: {}",
    expect=FILES_OR_FD,
    group="change_",
    prepare=hold,
    after=lambda ground: os.path.samestat(os.fstat(ground.held.fd), os.stat(ground.outside)) is False or None,
)


def hold_writable(ground: Ground) -> None:
    ground.held.fd = os.open(ground.readonly_file, os.O_RDWR)
    ground.held.entry = next(os.scandir(ground.outside_dir))


attacks_of(
    {
        "write": lambda ground: os.write(ground.held.fd, b"changed"),
        "pwrite": lambda ground: os.pwrite(ground.held.fd, b"changed", 0),
        "ftruncate": lambda ground: os.ftruncate(ground.held.fd, 0),
        "mmap": lambda ground: __import__("mmap").mmap(ground.held.fd, 0).__setitem__(0, 65),
        "open": lambda ground: open(ground.held.fd, "r+").write("changed"),
        "dup": lambda ground: os.write(os.dup(ground.held.fd), b"changed"),
        "dup2": lambda ground: os.write(os.dup2(ground.held.fd, own(ground)), b"changed"),
        "F_DUPFD": lambda ground: os.write(__import__("fcntl").fcntl(ground.held.fd, 0, 0), b"changed"),
        "sendfile": lambda ground: os.sendfile(ground.held.fd, os.open(f"{ground.inside}/own.txt", 0), 0, 9),
        "opener": lambda ground: open("x", "r+", opener=lambda path, flags: ground.held.fd).write("changed"),
        "proc_path": lambda ground: open(f"/proc/self/fd/{ground.held.fd}", "w").write("changed"),
        "faulthandler": lambda ground: __import__("faulthandler").dump_traceback(ground.held.fd),
    },
    "a file that may only be read is changed by the number the host opened for writing: {}",
    expect=FILES_OR_FD,
    group="readonly_",
    prepare=hold_writable,
)


@attack("an entry of the host's listing is asked about its file", expect=FILES_OR_FD, prepare=hold_writable)
def entry_of_the_host(ground: Ground) -> bool:
    return ground.held.entry.stat().st_size == len(ground.SECRET)


attacks_of(
    {
        "listdir": lambda ground: "secret.txt" in os.listdir(ground.held.folder),
        "scandir": lambda ground: any(os.scandir(ground.held.folder)),
        "fchdir": lambda ground: os.fchdir(ground.held.folder) or open("secret.txt").read(),
        "chdir": lambda ground: os.chdir(ground.held.folder) or open("secret.txt").read(),
        "dir_fd_open": lambda ground: os.read(os.open("secret.txt", 0, dir_fd=ground.held.folder), 99),
        "posix_dir_fd_open": lambda ground: os.read(
            __import__("posix").open("secret.txt", 0, dir_fd=ground.held.folder), 99
        ),
        "dir_fd_opener": lambda ground: open(
            "secret.txt", opener=lambda path, flags: os.open(path, flags, dir_fd=ground.held.folder)
        ).read(),
    },
    "a folder the host opened is used by its number: {}",
    expect=FILES_OR_FD,
    group="folder_",
    prepare=hold,
)


def hold_pipe(ground: Ground) -> None:
    ground.held.read, ground.held.write = os.pipe()
    os.write(ground.held.write, ground.SECRET.encode())


attacks_of(
    {
        "read": lambda ground: os.read(ground.held.read, 99),
        "open": lambda ground: open(ground.held.read, "rb", 0).read(99),
        "proc_path": lambda ground: open(f"/proc/self/fd/{ground.held.read}", "rb", 0).read(99),
        "tee": lambda ground: os.splice(ground.held.read, own(ground), 99) and content(ground),
        "dup": lambda ground: os.read(os.dup(ground.held.read), 99),
    },
    "what the host's pipe carries is read: {}",
    expect=FILES_OR_FD,
    group="pipe_",
    prepare=hold_pipe,
)


def hold_socket(ground: Ground) -> None:
    import socket

    ground.held.ours, ground.held.theirs = socket.socketpair()
    ground.held.theirs.sendall(ground.SECRET.encode())


attacks_of(
    {
        "fileno": lambda ground: __import__("socket").socket(fileno=ground.held.ours.fileno()).recv(99),
        "c_socket": lambda ground: __import__("_socket").socket(fileno=ground.held.ours.fileno()).recv(99),
        "fromfd": lambda ground: __import__("socket").fromfd(ground.held.ours.fileno(), 1, 1).recv(99),
        "c_dup": lambda ground: os.read(__import__("_socket").dup(ground.held.ours.fileno()), 99),
        "read": lambda ground: os.read(ground.held.ours.fileno(), 99),
    },
    "what the host's socket carries is read by its number: {}",
    expect=FILES_OR_FD,
    group="socket_",
    prepare=hold_socket,
)


@attack(
    "the host's descriptor is closed and its number taken over",
    expect=FILES_OR_FD,
    prepare=hold,
    after=lambda ground: open(ground.held.fd, closefd=False).read() == "forged",
)
def takeover(ground: Ground) -> None:
    forged = os.open(f"{ground.inside}/forged", os.O_RDWR | os.O_CREAT)
    os.write(forged, b"forged")
    os.lseek(forged, 0, os.SEEK_SET)
    os.dup2(forged, ground.held.fd)


@attack("the host's descriptor is closed", expect=FILES_OR_FD, prepare=hold)
def close_descriptor(ground: Ground) -> bool:
    os.close(ground.held.fd)
    return True


@attack("all of the host's descriptors are closed", expect=FILES_OR_FD, prepare=hold)
def close_range(ground: Ground) -> bool:
    os.closerange(ground.held.fd, ground.held.fd + 1)
    return True


@attack("the host's file is locked through its descriptor", expect=SANDBOX, prepare=hold)
def file_lock(ground: Ground) -> bool:
    import fcntl

    fcntl.flock(ground.held.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@attack("a record lock is put on the host's file", expect=SANDBOX, prepare=hold)
def record_lock(ground: Ground) -> bool:
    os.lockf(ground.held.fd, os.F_LOCK, 0)
    return True


@attack("flags of the host's descriptor are changed", expect=FILES_OR_FD, prepare=hold)
def status_flags(ground: Ground) -> bool:
    os.set_blocking(ground.held.fd, False)
    os.set_inheritable(ground.held.fd, True)
    return sys.platform != ""


def log_into_a_file(ground: Ground) -> None:
    """The host's standard output is a file, as a service's log is."""
    os.dup2(os.open(ground.outside, os.O_RDWR), 1)
    sys.stdout = open(1, "w", closefd=False)


def map_log(ground: Ground) -> object:
    import mmap

    return mmap.mmap(1, 0, access=mmap.ACCESS_READ).read()


def truncate_as_other(ground: Ground) -> None:
    from io import FileIO

    class Other(FileIO):
        """A file that gives another number than it uses."""

        def fileno(self) -> int:
            return 0

    Other(1, "r+", closefd=False).truncate(0)


attacks_of(
    {
        "ftruncate": lambda ground: os.ftruncate(1, 0),
        "truncate": lambda ground: os.truncate(1, 0),
        "fchmod": lambda ground: os.fchmod(1, 0o777),
        "chmod": lambda ground: os.chmod(1, 0o777),
        "utime": lambda ground: os.utime(1, (1, 1)),
        "posix_fallocate": lambda ground: os.posix_fallocate(1, 0, 4096),
        "pwrite": lambda ground: os.pwrite(1, b"changed", 0),
        "pwritev": lambda ground: os.pwritev(1, [b"changed"], 0),
        "copy_file_range": lambda ground: os.copy_file_range(os.open(f"{ground.inside}/own.txt", 0), 1, 3, None, 0),
        "copy_of_it": lambda ground: os.copy_file_range(1, own(ground), 99, 0) and content(ground),
        "sendfile": lambda ground: os.sendfile(own(ground), 1, 0, 99) and content(ground),
        "lseek": lambda ground: os.lseek(1, 0, os.SEEK_END) > 0,
        "pread": lambda ground: os.pread(1, 99, 0),
        "mmap": map_log,
        "file_truncate": lambda ground: sys.stdout.truncate(0) and None,
        "raw_truncate": lambda ground: sys.stdout.buffer.raw.truncate(0) and None,
        "opened_truncate": lambda ground: open(1, "r+b", 0, closefd=False).truncate(0) and None,
        "other_truncate": truncate_as_other,
        "seek": lambda ground: sys.stdout.buffer.raw.seek(0, os.SEEK_END) > 0,
    },
    "the file into which the host logs is changed by its standard output: {}",
    expect=FILES_OR_FD,
    group="stream_",
    prepare=log_into_a_file,
)


@attack("what is printed goes into the file into which the host logs", expect=Works(), prepare=log_into_a_file)
def printed(ground: Ground) -> bool:
    sys.stdout.flush()
    with open(1, "a", closefd=False) as log:
        print("one line", file=log)
    os.sendfile(1, os.open(f"{ground.inside}/own.txt", 0), 0, 3)
    return os.write(1, b"another") == len("another")
