"""Forbidden operations, each harmless even if it succeeds. Runs in the application, and as a script in a child.

Uses only the standard library, because the child can read only the system and this folder.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

THROUGH = "succeeded"
UNTRIED = "could not be tested: "
_PATIENCE = 3.0
_ENDED_OTHERWISE = 70
# Error numbers that show that a call passed every filter; the calls use invalid arguments.
_REACHED = {
    "ptrace": {errno.ESRCH},
    "unshare": {0},
    "setns": {errno.EBADF},
    "io_uring_setup": {errno.EINVAL, errno.EFAULT},
    "process_vm_readv": {0, errno.ESRCH},
    "userfaultfd": {errno.EINVAL},
    "mq_unlink": {errno.EFAULT},
    "memfd_create": {errno.EFAULT},
    "inotify_init1": {errno.EINVAL},
}


def by_errno(error: OSError) -> str:
    """Return the outcome of an operation that failed with this error."""
    if isinstance(error, TimeoutError):
        return "stopped by timeout"
    return f"stopped by {errno.errorcode.get(error.errno or 0, str(error))}"


def outcome_of(act: Callable[..., str | None], *arguments: Any) -> str:
    """Run an operation and return its outcome. An operation returns nothing when it succeeds."""
    try:
        return act(*arguments) or THROUGH
    except OSError as error:
        return by_errno(error)


def read(path: str) -> None:
    """Open a file or folder for reading."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def write(folder: str) -> None:
    """Create a file in a folder and delete it."""
    path = f"{folder}/.democrai_selftest_{os.getpid()}"  # no pathlib: this is the start of a small process
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.unlink(path)  # noqa: PTH108


def open_for_writing(path: str) -> None:
    """Open an existing file for writing without writing to it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def connect(family: int, address: Any) -> str | None:
    """Open a stream connection to a listener."""
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(_PATIENCE)
        link.connect(address)
    return None


def send(family: int, address: Any, token: str) -> None:
    """Send a datagram. The receiver knows whether it arrived."""
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.sendto(token.encode(), address)


def packet_socket() -> None:
    """Create a socket that bypasses packet filters."""
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def netlink() -> None:
    """Create a socket that reports interfaces and routes."""
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


def join_group() -> None:
    """Join a multicast group on the loopback interface, which sends no report."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        group = socket.inet_aton("239.255.0.1") + socket.inet_aton("127.0.0.1")
        link.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)


def attributes(path: str) -> None:
    """List the extended attributes of a file."""
    os.listxattr(path)


def metadata(path: str) -> None:
    """Set the mode of a file to what it is."""
    os.chmod(path, os.stat(path).st_mode & 0o777)  # noqa: PTH101, PTH116 - this is the start of a small process


def probe(native: ModuleType, name: str) -> str | None:
    """Make a system call with invalid arguments."""
    call = getattr(native, "probe", None)
    if call is None:
        return f"{UNTRIED}this build has no probe for {name}"
    error = call(name)
    return None if error in _REACHED[name] else f"stopped by {errno.errorcode.get(error, error)}"


def execute(program: str) -> None:
    """Execute another program in this process."""
    os.execv(program, [program])  # noqa: S606 - the test expects a refusal


def in_a_fork(act: Callable[..., str | None], *arguments: Any) -> str:
    """Run an operation in a fork, because the kernel may kill it. Call from a single-threaded process only."""
    read_end, write_end = os.pipe()  # an executed program closes it: empty output and status 0
    child = os.fork()
    if child == 0:
        status = _ENDED_OTHERWISE
        with contextlib.suppress(BaseException):
            os.write(write_end, outcome_of(act, *arguments).encode())
            status = 0
        os._exit(status)
    os.close(write_end)
    return _verdict(child, read_end)


def _verdict(child: int, read_end: int) -> str:
    with open(read_end, "rb") as file:
        text = file.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return text or (THROUGH if code == 0 else f"{UNTRIED}the attempt ended with {code}")


def main() -> int:
    """Run the operations of the plan on the command line and print one JSON result per line."""
    plan = json.loads(sys.argv[1])
    native = _native(plan["native"])
    acts: dict[str, tuple[Any, ...]] = {
        "read": (read, plan["file"]),
        "write": (write, plan["folder"]),
        "exec": (execute, plan["program"]),
        "ptrace": (probe, native, "ptrace"),
        "setuid": (os.setuid, os.getuid()),
        "chroot": (os.chroot, "/"),
        "unshare": (probe, native, "unshare"),
        "io_uring": (probe, native, "io_uring_setup"),
        "unix socket": (connect, socket.AF_UNIX, "socket"),
        "packet socket": (packet_socket,),
        "message queue": (probe, native, "mq_unlink"),
        "memory program": (probe, native, "memfd_create"),
        "watch for changes": (probe, native, "inotify_init1"),
        "attributes": (attributes, plan["file"]),
        "metadata": (metadata, plan["file"]),
        "netlink": (netlink,),
        "multicast group": (join_group,),
        # The path of this process: the fork that runs the operation cannot read its own folder in /proc.
        "network tables": (read, f"/proc/{os.getpid()}/net/unix"),
    }
    for name, family in (("v4", socket.AF_INET), ("v6", socket.AF_INET6)):
        if plan[f"tcp {name}"]:
            acts[f"tcp {name}"] = (connect, family, tuple(plan[f"tcp {name}"]))
        if plan[f"udp {name}"]:
            acts[f"udp {name}"] = (send, family, tuple(plan[f"udp {name}"]), plan["token"])
    if plan["cgroup"]:
        acts["leave the cgroup"] = (open_for_writing, plan["cgroup"])
    for name in plan["acts"]:
        if name in acts:
            print(json.dumps([name, in_a_fork(*acts[name])]), flush=True)  # noqa: T201 - the parent reads it
    return 0


def _native(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("_native", path)
    spec = importlib.util.spec_from_loader("_native", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
