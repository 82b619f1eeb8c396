"""Names relative to the descriptor of a folder."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FD, FILES_OR_FD, Ground, attack, attacks_of


def hold(ground: Ground) -> None:
    ground.held.folder = os.open(ground.outside_dir, os.O_RDONLY)


def outward(ground: Ground) -> int:
    """The descriptor of a folder the subject may well open."""
    return os.open(ground.inside, os.O_RDONLY)


UP = "../outside/secret.txt"
NEW = "../outside/new"
attacks_of(
    {
        "open": lambda ground: os.read(os.open(UP, 0, dir_fd=outward(ground)), 99),
        "stat": lambda ground: os.stat(UP, dir_fd=outward(ground)).st_size > 0,
        "lstat": lambda ground: os.lstat(UP, dir_fd=outward(ground)).st_size > 0,
        "access": lambda ground: os.access(UP, os.R_OK, dir_fd=outward(ground)),
        "mkdir": lambda ground: os.mkdir(NEW, dir_fd=outward(ground)),
        "rmdir": lambda ground: os.rmdir("../outside/empty", dir_fd=outward(ground)),
        "unlink": lambda ground: os.unlink(UP, dir_fd=outward(ground)),
        "remove": lambda ground: os.remove(UP, dir_fd=outward(ground)),
        "rename": lambda ground: os.rename(UP, f"{ground.inside}/l", src_dir_fd=outward(ground)),
        "rename_destination": lambda ground: os.rename(f"{ground.inside}/own.txt", NEW, dst_dir_fd=outward(ground)),
        "replace": lambda ground: os.replace(f"{ground.inside}/own.txt", UP, dst_dir_fd=outward(ground)),
        "link": lambda ground: os.link(UP, f"{ground.inside}/l", src_dir_fd=outward(ground)),
        "link_destination": lambda ground: os.link(f"{ground.inside}/own.txt", NEW, dst_dir_fd=outward(ground)),
        "symlink": lambda ground: os.symlink("x", NEW, dir_fd=outward(ground)),
        "readlink": lambda ground: os.readlink("../outside/alias", dir_fd=outward(ground)) != "",
        "chmod": lambda ground: os.chmod(UP, 0o777, dir_fd=outward(ground)),
        "utime": lambda ground: os.utime(UP, (1, 1), dir_fd=outward(ground)),
        "mkfifo": lambda ground: os.mkfifo(NEW, dir_fd=outward(ground)),
        "mknod": lambda ground: os.mknod(NEW, 0o100600, dir_fd=outward(ground)),
        "posix_unlink": lambda ground: __import__("posix").unlink(UP, dir_fd=outward(ground)),
        "posix_stat": lambda ground: __import__("posix").stat(UP, dir_fd=outward(ground)).st_size > 0,
        "standard_input": lambda ground: os.stat(ground.outside, dir_fd=0).st_size > 0,
        "numpy_number": lambda ground: os.stat(UP, dir_fd=__import__("operator").index(outward(ground))).st_size > 0,
    },
    "{} is given a folder's descriptor and a name that leads out of it",
    expect=FD,
    group="dir_fd_",
    prepare=lambda ground: (os.mkdir(f"{ground.outside_dir}/empty"), os.symlink("x", f"{ground.outside_dir}/alias")),
)


@attack("chown is given a folder's descriptor", expect=FD, needs=("root",))
def dir_fd_chown(ground: Ground) -> None:
    os.chown(UP, 12345, 12345, dir_fd=outward(ground))


attacks_of(
    {
        "open": lambda ground: os.read(os.open(UP, 0, dir_fd=outward(ground)), 99),
        "stat": lambda ground: os.stat(UP, dir_fd=outward(ground)).st_size > 0,
        "unlink": lambda ground: os.unlink(UP, dir_fd=outward(ground)),
        "rename": lambda ground: os.rename(UP, "x", src_dir_fd=outward(ground), dst_dir_fd=outward(ground)),
        "mkdir": lambda ground: os.mkdir(NEW, dir_fd=outward(ground)),
        "protected": lambda ground: os.read(os.open("holder/vault/secret.txt", 0, dir_fd=outward(ground)), 99),
        "host_folder": lambda ground: os.read(os.open("secret.txt", 0, dir_fd=ground.held.folder), 99),
        "rmtree": lambda ground: __import__("shutil").rmtree(ground.outside_dir),
    },
    "an install phase, which may name folders by descriptor, leaves its roots: {}",
    expect=FILES_OR_FD,
    group="install_",
    prepare=hold,
    policy=lambda ground: {"allow_subprocess": True},
)


@attack("os.fwalk walks by descriptors from the host's folder", expect=FILES_OR_FD, prepare=hold)
def fwalk(ground: Ground) -> bool:
    return any("secret.txt" in files for _, _, files, _ in os.fwalk(".", dir_fd=ground.held.folder))
