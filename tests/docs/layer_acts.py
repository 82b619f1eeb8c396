"""Acts that a subject has no rule for, each by an ordinary function of Python and, where it matters, by native code.

Native code is played by ``ctypes``: whoever may use it calls the C library as an installed extension module does. An
act returns nothing when it went through, and raises, dies or returns why when it did not. What a peer has to confirm,
because sending alone tells nothing, is looked at by ``layers.py`` afterwards.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import struct
import subprocess
import sys
from types import SimpleNamespace

PYTHON, NATIVE = "Python", "native code"
PTRACE_ATTACH = 16
FS_IOC_SETFLAGS, F_SETLEASE, NETLINK_SOCK_DIAG = 0x40086602, 1024, 4
IO_URING_SETUP = 425
"""The same number on every architecture."""


def read_file(ground):
    with open(ground.secret, encoding="utf-8") as file:
        file.read()


def make_file(ground):
    with open(f"{ground.outside}/made-{os.getpid()}", "x", encoding="utf-8"):
        pass


def remove_file(ground):
    os.unlink(ground.victim)


def look_at_file(ground):
    os.stat(ground.secret)


def start_program(_ground):
    subprocess.run(["/bin/true"], check=True)


def import_ctypes(_ground):
    sys.modules.pop("ctypes", None)
    __import__("ctypes")


def connect(ground):
    with socket.create_connection(ground.undeclared, timeout=3):
        pass


def other_path(ground):
    link = http.client.HTTPConnection(*ground.declared, timeout=3)
    link.request("GET", "/secret")
    link.close()


def signal_outside(ground):
    os.kill(ground.outsider, 0)


def unix_socket(ground):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(ground.unix)


# By native code from here on.


def libc():
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def checked(result):
    import ctypes

    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def native_read(ground):
    c = libc()
    checked(c.open(ground.secret.encode(), os.O_RDONLY))


def native_make(ground):
    c = libc()
    checked(c.open(f"{ground.outside}/made-{os.getpid()}".encode(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def native_remove(ground):
    checked(libc().unlink(ground.victim.encode()))


def native_look(ground):
    checked(libc().access(ground.secret.encode(), os.F_OK))


def native_mode(ground):
    checked(libc().chmod(ground.secret.encode(), 0o600))


def native_execute(_ground):
    import ctypes

    c = libc()
    arguments = (ctypes.c_char_p * 2)(b"/bin/true", None)
    checked(c.execv(b"/bin/true", arguments))


def _native_socket(kind):
    return checked(libc().socket(socket.AF_INET, kind, 0))


def _packed(address):
    host, port = address
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


def _native_connect(address):
    link = _native_socket(socket.SOCK_STREAM)
    checked(libc().connect(link, _packed(address), 16))
    return link


def native_connect(ground):
    _native_connect(ground.undeclared)


def native_same_port(ground):
    _native_connect(ground.same_port)


def native_datagram(ground):
    link = _native_socket(socket.SOCK_DGRAM)
    checked(libc().sendto(link, b"out", 3, 0, _packed(ground.datagrams), 16))


def native_other_path(ground):
    text = b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
    checked(libc().send(_native_connect(ground.declared), text, len(text), 0))


def native_unix(ground):
    link = checked(libc().socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
    name = struct.pack("=H", socket.AF_UNIX) + ground.unix.encode() + b"\0"
    checked(libc().connect(link, name, len(name)))


def native_abstract(ground):
    link = checked(libc().socket(socket.AF_UNIX, socket.SOCK_STREAM, 0))
    name = struct.pack("=H", socket.AF_UNIX) + b"\0" + ground.abstract.encode()
    checked(libc().connect(link, name, len(name)))


def native_signal(ground):
    checked(libc().kill(ground.outsider, 0))


def native_packet_socket(_ground):
    checked(libc().socket(socket.AF_PACKET, socket.SOCK_RAW, 0))


def _reached(result, *answers):
    """Take these answers to arguments that are of no use for a call that no filter has stopped."""
    import ctypes

    if result < 0 and ctypes.get_errno() not in answers:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def native_trace(_ground):
    _reached(libc().ptrace(PTRACE_ATTACH, 0, 0, 0), errno.ESRCH)


def native_memory(_ground):
    _reached(libc().process_vm_readv(0, 0, 0, 0, 0, 0), errno.ESRCH)


def native_leave(_ground):
    checked(libc().unshare(0))


def native_io_uring(_ground):
    _reached(libc().syscall(IO_URING_SETUP, 0, 0), errno.EFAULT, errno.EINVAL)


def native_attribute(ground):
    checked(libc().setxattr(ground.secret.encode(), b"user.test", b"kept", 4, 0))


def native_open_for_neither(ground):
    """Landlock asks for no right where a file is opened for neither reading nor writing."""
    checked(libc().open(ground.secret.encode(), 3))


def native_flags(ground):
    """Set the flag that a file is left out of dumps."""
    number = checked(libc().open(ground.secret.encode(), 3))
    checked(libc().ioctl(number, FS_IOC_SETFLAGS, struct.pack("q", 0x40)))


def native_lease(ground):
    number = checked(libc().open(ground.secret.encode(), 3))
    checked(libc().fcntl(number, F_SETLEASE, 0))


def native_watch(ground):
    c = libc()
    checked(c.inotify_add_watch(checked(c.inotify_init1(0)), ground.outside.encode(), 0xFFF))


def native_queue(ground):
    checked(libc().mq_unlink(ground.queue.encode()))


def native_memory_program(_ground):
    """Make a program without a place in a file system; executing it is tried where executing is."""
    c = libc()
    number = checked(c.memfd_create(b"program", 0))
    checked(c.write(number, b"#!/bin/true", 11))


def native_loader(ground):
    """Map a file as code that may be read, and not executed."""
    import ctypes

    c = libc()
    c.mmap.restype = ctypes.c_void_p
    number = checked(c.open(ground.library.encode(), os.O_RDONLY))
    if c.mmap(None, ctypes.c_size_t(4096), 5, 2, number, ctypes.c_long(0)) == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def join_group(_ground):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        group = socket.inet_aton("239.9.9.9") + socket.inet_aton("127.0.0.1")
        link.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)


def read_connections(_ground):
    with open("/proc/self/net/unix", encoding="utf-8") as file:
        file.read(1)


def native_connections(_ground):
    checked(libc().open(b"/proc/self/net/unix", os.O_RDONLY))


def native_socket_table(_ground):
    checked(libc().socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG))


def native_routes(_ground):
    checked(libc().socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))


def native_group(_ground):
    link = _native_socket(socket.SOCK_DGRAM)
    group = socket.inet_aton("239.9.9.9") + socket.inet_aton("127.0.0.1")
    checked(libc().setsockopt(link, 0, socket.IP_ADD_MEMBERSHIP, group, 8))


ACTS = tuple(
    SimpleNamespace(name=name, by=by, act=act)
    for name, by, act in (
        ("read a file outside the rules", PYTHON, read_file),
        ("read a file outside the rules", NATIVE, native_read),
        ("create a file outside the rules", PYTHON, make_file),
        ("create a file outside the rules", NATIVE, native_make),
        ("remove a file outside the rules", PYTHON, remove_file),
        ("remove a file outside the rules", NATIVE, native_remove),
        ("see whether a file exists", PYTHON, look_at_file),
        ("see whether a file exists", NATIVE, native_look),
        ("change the mode of a file of the same user", NATIVE, native_mode),
        ("change extended attributes of a file of the same user", NATIVE, native_attribute),
        ("open a file for neither reading nor writing", NATIVE, native_open_for_neither),
        ("change the flags of a file opened that way", NATIVE, native_flags),
        ("take a lease on a file opened that way", NATIVE, native_lease),
        ("watch a folder outside the rules for changes", NATIVE, native_watch),
        ("remove another process's message queue", NATIVE, native_queue),
        ("start a program", PYTHON, start_program),
        ("execute a program", NATIVE, native_execute),
        ("create a program in memory", NATIVE, native_memory_program),
        ("map a readable file as code", NATIVE, native_loader),
        ("import `ctypes`", PYTHON, import_ctypes),
        ("connect to an undeclared address and port", PYTHON, connect),
        ("connect to an undeclared address and port", NATIVE, native_connect),
        ("connect to the declared port of another address", NATIVE, native_same_port),
        ("send a datagram to an undeclared address", NATIVE, native_datagram),
        ("fetch another path of a declared site", PYTHON, other_path),
        ("fetch another path of a declared site", NATIVE, native_other_path),
        ("connect to a unix socket by its path", PYTHON, unix_socket),
        ("connect to a unix socket by its path", NATIVE, native_unix),
        ("connect to an abstract unix socket", NATIVE, native_abstract),
        ("send a signal to a process outside", PYTHON, signal_outside),
        ("send a signal to a process outside", NATIVE, native_signal),
        ("join a multicast group", PYTHON, join_group),
        ("join a multicast group", NATIVE, native_group),
        ("read the machine's connections from `/proc`", PYTHON, read_connections),
        ("read the machine's connections from `/proc`", NATIVE, native_connections),
        ("ask netlink for the machine's connections", NATIVE, native_socket_table),
        ("ask netlink for interfaces and routes", NATIVE, native_routes),
        ("create a packet socket", NATIVE, native_packet_socket),
        ("trace another process", NATIVE, native_trace),
        ("read another process's memory", NATIVE, native_memory),
        ("leave its namespaces", NATIVE, native_leave),
        ("use `io_uring`, which bypasses filters", NATIVE, native_io_uring),
    )
)
