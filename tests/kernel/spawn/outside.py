"""Operations outside the rules that Landlock does not check. Run by ``python -c`` in a confined child.

The arguments are a plan in JSON, and the names of operations. Each one runs in a fork; the answer is a line of JSON:
its name, and ``through`` or the name of the error or signal. Standard library only: nothing else is readable there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import sys

THROUGH = "through"
ARM = os.uname().machine == "aarch64"
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
NEITHER = 3
"""Mode of an open for neither reading nor writing, for which Landlock requires no right."""
PLAN = json.loads(sys.argv[1])
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(x86_64, aarch64, *args):
    """Make a system call by its number; the arguments are numbers, bytes or buffers."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    result = _libc.syscall(ctypes.c_long(aarch64 if ARM else x86_64), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def neither(path):
    return os.open(path, NEITHER | os.O_CLOEXEC)


def text(path):
    return path.encode()


FILE, LINK, QUEUE, PROGRAM = PLAN["file"], PLAN["link"], PLAN["queue"].encode(), PLAN["program"]
KEY, VALUE = b"user.test", b"kept"


def watch(path):
    number = call(294, 26, 0)
    call(254, 27, number, text(path), 0xFFF)


def interface(link):
    """SIOCGIFINDEX of the loopback interface; works on any socket."""
    fcntl.ioctl(link, 0x8933, struct.pack("16s16x", b"lo"))


def executed(number):
    """Execute a descriptor in a fork, by its link in /proc and with fexecve."""
    for form in (lambda: os.execv(f"/proc/self/fd/{number}", ["x"]), lambda: os.execve(number, ["x"], {})):
        pid = os.fork()
        if pid == 0:
            try:
                form()
            except OSError as error:
                os._exit(error.errno)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status == 0:
            return
    raise OSError(status, os.strerror(status))


def memory_program(flags):
    number = call(319, 279, b"program", flags)
    with open("/bin/true", "rb") as program:
        os.write(number, program.read())
    copy = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)  # a file that is open for writing is busy
    os.close(number)
    executed(copy)


def sealed_memory_program():
    """A memory file that cannot be executed stays so."""
    number = call(319, 279, b"program", 8)
    os.fchmod(number, 0o777)


def shared_memory_program():
    """Anonymous shared memory is a file without a name, with a link in /proc."""
    with open("/bin/true", "rb") as program:
        content = program.read()
    area = mmap.mmap(-1, len(content))
    area.write(content)
    with open("/proc/self/maps", encoding="ascii") as maps:
        place = next(line.split()[0] for line in maps if "/dev/zero" in line)
    start, end = (int(part, 16) for part in place.split("-"))
    executed(os.open(f"/proc/self/map_files/{start:x}-{end:x}", os.O_RDONLY))


def loaded_program():
    """The loader maps a file that is readable but not executable."""
    loader = next(
        path for path in ("/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-x86-64.so.2") if os.path.exists(path)
    )
    status = os.spawnv(os.P_WAIT, loader, [loader, PROGRAM])
    if status:
        raise OSError(errno.EACCES, "refused")


def anonymous_code():
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def diagnosis():
    """List the sockets of other processes."""
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4).close()


def routes():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0))
        link.recv(65536)


def joined(family, level, option, value):
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.setsockopt(level, option, value)


def group_request(family, group):
    """``struct group_req`` for the loopback interface."""
    v4 = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("239.9.9.9"))
    v6 = struct.pack("=HHI16s", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "ff05::99"))
    return struct.pack("=I4x", 1) + (v4 if family == socket.AF_INET else v6).ljust(128, b"\0")


def joined_v4():
    joined(socket.AF_INET, 0, 35, socket.inet_aton("239.9.9.9") + socket.inet_aton("127.0.0.1"))


def joined_source_v4():
    value = b"".join(map(socket.inet_aton, ("239.9.9.9", "127.0.0.1", "127.0.0.5")))
    joined(socket.AF_INET, 0, 39, value)


def joined_group_v4():
    joined(socket.AF_INET, 0, 42, group_request(socket.AF_INET, "239.9.9.9"))


def joined_v4_by_v6():
    joined(socket.AF_INET6, 0, 35, socket.inet_aton("239.9.9.9") + socket.inet_aton("127.0.0.1"))


def joined_v6():
    joined(socket.AF_INET6, 41, 20, socket.inet_pton(socket.AF_INET6, "ff05::99") + struct.pack("=I", 1))


def joined_group_v6():
    joined(socket.AF_INET6, 41, 42, group_request(socket.AF_INET6, "ff05::99"))


def pairs_interface():
    interface(socket.socketpair()[0])


ACTS = {
    "mq_open": lambda: call(240, 180, QUEUE, os.O_RDWR, 0, 0),
    "mq_open new": lambda: call(240, 180, QUEUE + b"-new", os.O_RDWR | os.O_CREAT, 0o600, 0),
    "mq_unlink": lambda: call(241, 181, QUEUE),
    "shmget": lambda: call(29, 194, 0, 4096, 0o1600),
    "msgget": lambda: call(68, 186, 0, 0o1600),
    "semget": lambda: call(64, 190, 0, 1, 0o1600),
    "add_key": lambda: call(248, 217, b"user", b"test", b"kept", 4, -3),
    "setxattr": lambda: call(188, 5, text(FILE), KEY, VALUE, 4, 0),
    "lsetxattr": lambda: call(189, 6, text(FILE), KEY, VALUE, 4, 0),
    "fsetxattr": lambda: call(190, 7, neither(FILE), KEY, VALUE, 4, 0),
    "getxattr": lambda: call(191, 8, text(FILE), b"user.there", ctypes.create_string_buffer(9), 9),
    "lgetxattr": lambda: call(192, 9, text(FILE), b"user.there", ctypes.create_string_buffer(9), 9),
    "fgetxattr": lambda: call(193, 10, neither(FILE), b"user.there", ctypes.create_string_buffer(9), 9),
    "listxattr": lambda: call(194, 11, text(FILE), ctypes.create_string_buffer(99), 99),
    "llistxattr": lambda: call(195, 12, text(FILE), ctypes.create_string_buffer(99), 99),
    "flistxattr": lambda: call(196, 13, neither(FILE), ctypes.create_string_buffer(99), 99),
    "removexattr": lambda: call(197, 14, text(FILE), b"user.there"),
    "lremovexattr": lambda: call(198, 15, text(FILE), b"user.there"),
    "fremovexattr": lambda: call(199, 16, neither(FILE), b"user.there"),
    "listxattrat": lambda: call(465, 465, AT_FDCWD, text(FILE), 0, ctypes.create_string_buffer(99), 99),
    "removexattrat": lambda: call(466, 466, AT_FDCWD, text(FILE), 0, b"user.there"),
    "file_getattr": lambda: call(468, 468, AT_FDCWD, text(FILE), ctypes.create_string_buffer(24), 24, 0),
    "file_setattr": lambda: call(469, 469, AT_FDCWD, text(FILE), ctypes.create_string_buffer(24), 24, 0),
    "flags of a file": lambda: fcntl.ioctl(neither(FILE), 0x40086602, struct.pack("q", 0x80)),
    "lease": lambda: fcntl.fcntl(neither(FILE), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "inotify": lambda: watch(PLAN["folder"]),
    "name_to_handle_at": lambda: call(
        303, 264, AT_FDCWD, text(FILE), struct.pack("=Ii128x", 128, 0), ctypes.create_string_buffer(8), 0
    ),
    "memfd": lambda: memory_program(0),
    "memfd, executable": lambda: memory_program(0x10),
    "memfd, sealed": sealed_memory_program,
    "shared memory program": shared_memory_program,
    "/proc/self/net": lambda: read("/proc/self/net/unix"),
    "/proc/net": lambda: read("/proc/net/tcp"),
    "/proc/thread-self/net": lambda: read("/proc/thread-self/net/unix"),
    "/proc/self/task/net": lambda: read(f"/proc/self/task/{os.getpid()}/net/unix"),
    "/proc/PID/net": lambda: read(f"/proc/{os.getppid()}/net/unix"),
    "/sys/class/net": lambda: os.listdir("/sys/class/net"),
    "netlink routes": routes,
    "netlink sockets": diagnosis,
    "interfaces by ioctl": pairs_interface,
    "join v4": joined_v4,
    "join v4, one source": joined_source_v4,
    "join v4, group": joined_group_v4,
    "join v4 by v6": joined_v4_by_v6,
    "join v6": joined_v6,
    "join v6, group": joined_group_v6,
    # Not stopped by any layer of the kernel.
    "stat": lambda: os.stat(FILE),
    "access": lambda: os.access(FILE, os.R_OK) or read(FILE),
    "readlink": lambda: os.readlink(LINK),
    "chdir": lambda: os.chdir(PLAN["folder"]),
    "statvfs": lambda: os.statvfs(FILE),
    "open for neither": lambda: neither(FILE),
    "chmod": lambda: os.chmod(FILE, 0o640),
    "chown": lambda: os.chown(FILE, os.getuid(), -1),
    "utime": lambda: os.utime(FILE, (1, 1)),
    "loader": loaded_program,
    "code in memory": anonymous_code,
}


def outcome(act):
    """Run it in this process; return the outcome."""
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return THROUGH


def in_fork(act, here):
    """Run it in a fork, unless it concerns this process itself."""
    if here:
        return outcome(act)
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(told, outcome(act).encode())
        except BaseException as error:
            os.write(told, repr(error).encode())
        os._exit(0)
    os.close(told)
    with open(heard, "rb") as answer:
        said = answer.read().decode()
    status = os.waitpid(pid, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


for name in sys.argv[2:] or ACTS:
    # Landlock permits the child's own folder in /proc, but not those of its forks.
    print(json.dumps([name, in_fork(ACTS[name], name.startswith("/proc"))]), flush=True)
