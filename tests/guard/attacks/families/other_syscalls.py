"""Alternative system calls for the same operation, where Python offers them."""

from __future__ import annotations

import os
import signal

from tests.guard.attacks.kit import FILES_OR_FD, PROCESS, SANDBOX, Ground, attack, attacks_of


def hold(ground: Ground) -> None:
    ground.held.fd = os.open(ground.outside, os.O_RDWR)


def through_pipe(ground: Ground, act) -> object:
    read, write = os.pipe()
    act(read, write)
    return os.read(read, 99)


def own(ground: Ground) -> int:
    return os.open(f"{ground.inside}/target", os.O_RDWR | os.O_CREAT)


attacks_of(
    {
        "splice_in": lambda ground: through_pipe(ground, lambda read, write: os.splice(ground.held.fd, write, 99)),
        "sendfile_to_pipe": lambda ground: through_pipe(
            ground, lambda read, write: os.sendfile(write, ground.held.fd, 0, 99)
        ),
        "copy_file_range": lambda ground: (
            os.copy_file_range(ground.held.fd, own(ground), 99) and open(f"{ground.inside}/target").read()
        ),
        "posix_fadvise": lambda ground: os.posix_fadvise(ground.held.fd, 0, 0, os.POSIX_FADV_DONTNEED) is None,
        "fpathconf": lambda ground: os.fpathconf(ground.held.fd, "PC_NAME_MAX") > 0,
        "getxattr": lambda ground: os.listxattr(ground.held.fd) is not None,
    },
    "a call on the host's descriptor that is easily forgotten: {}",
    expect=FILES_OR_FD,
    prepare=hold,
)
attacks_of(
    {
        "copy_file_range_out": lambda ground: os.copy_file_range(
            os.open(f"{ground.inside}/own.txt", os.O_RDONLY), ground.held.fd, 99
        ),
        "pwritev": lambda ground: os.pwritev(ground.held.fd, [b"changed"], 0),
        "splice_out": lambda ground: (
            through_pipe(
                ground,
                lambda read, write: (
                    os.write(write, b"changed"),
                    os.splice(read, ground.held.fd, 7),
                    os.write(write, b"x"),
                ),
            )
            and None
        ),
    },
    "the host's file is written by another call: {}",
    expect=FILES_OR_FD,
    group="out_",
    prepare=hold,
)


@attack(
    "posix_spawn opens the secret as the child's standard input",
    expect=PROCESS,
    after=lambda ground: open(f"{ground.inside}/stolen").read(),
)
def spawn_file_actions(ground: Ground) -> None:
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, ground.outside, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, f"{ground.inside}/stolen", os.O_WRONLY | os.O_CREAT, 0o600),
    ]
    os.waitpid(os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=actions), 0)


@attack("a program in a memory file is executed", expect=PROCESS)
def memory_program(ground: Ground) -> None:
    descriptor = os.memfd_create("program", 0)
    with open("/bin/sh", "rb") as program:
        os.write(descriptor, program.read())
    script = 'echo \'{"verdict": "escaped", "error_type": null, "code": null}\''
    os.execve(f"/proc/self/fd/{descriptor}", ["sh", "-c", script], {})


@attack("vfork is used to start a program", expect=PROCESS)
def vfork(ground: Ground) -> bool:
    import subprocess

    subprocess._USE_VFORK = True
    return subprocess.run(["/bin/true"], close_fds=False, check=True).returncode == 0


@attack("a namespace of its own is made for the process", expect=SANDBOX, since=(3, 12), needs=("root",))
def unshare(ground: Ground) -> bool:
    os.unshare(os.CLONE_FS)
    return True


@attack(
    "the process enters the namespaces of another one",
    expect=SANDBOX,
    since=(3, 12),
    needs=("root",),
    prepare=lambda ground: setattr(ground.held, "namespace", os.open("/proc/self/ns/uts", os.O_RDONLY)),
)
def setns(ground: Ground) -> bool:
    os.setns(ground.held.namespace)
    return True


def hold_child(ground: Ground) -> None:
    import subprocess

    ground.held.child = subprocess.Popen(["/bin/sleep", "15"])


def child_was_killed(ground: Ground) -> bool:
    """Whether the attack ended the child: a process that is being killed takes no further signal."""
    ground.held.child.terminate()
    return ground.held.child.wait() == -signal.SIGKILL


attacks_of(
    {
        "kill": lambda ground: os.kill(ground.held.child.pid, signal.SIGKILL),
        "pidfd": lambda ground: signal.pidfd_send_signal(os.pidfd_open(ground.held.child.pid), signal.SIGKILL),
    },
    "a process of the host is killed: {}",
    expect=SANDBOX,
    group="signal_",
    prepare=hold_child,
    after=child_was_killed,
)


@attack(
    "the working folder is changed by descriptor",
    expect=FILES_OR_FD,
    prepare=lambda ground: setattr(ground.held, "folder", os.open(ground.outside_dir, os.O_RDONLY)),
)
def fchdir(ground: Ground) -> object:
    os.fchdir(ground.held.folder)
    return open("secret.txt").read()


@attack("a path-only descriptor is made for a folder and the secret is reached below it", expect=FILES_OR_FD)
def path_only_descriptor(ground: Ground) -> object:
    descriptor = os.open(ground.inside, os.O_PATH | os.O_DIRECTORY)
    os.fchdir(descriptor)
    return open("../outside/secret.txt").read()


@attack("limits of the host's process are changed", expect=SANDBOX)
def limits(ground: Ground) -> bool:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    return True


@attack("the file mode mask of the whole process is changed", expect=SANDBOX)
def mask(ground: Ground) -> bool:
    os.umask(0)
    return os.umask(0o22) == 0
