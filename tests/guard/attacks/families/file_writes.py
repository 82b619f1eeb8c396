"""All functions that create, change, move or remove a path."""

from __future__ import annotations

import os
import stat

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def pathlib_path(path: str) -> object:
    from pathlib import Path

    return Path(path)


def write_through(path: str, flags: int) -> object:
    descriptor = os.open(path, flags)
    if flags & os.O_ACCMODE:
        os.write(descriptor, b"changed")
    return None


attacks_of(
    {
        "open_w": lambda ground: open(ground.outside, "w").write("changed"),
        "open_a": lambda ground: open(ground.outside, "a").write("changed"),
        "open_r_plus": lambda ground: open(ground.outside, "r+").write("changed"),
        "open_x": lambda ground: open(f"{ground.outside_dir}/new", "x").write("new"),
        "open_w_new": lambda ground: open(f"{ground.outside_dir}/new", "w").write("new"),
        "FileIO_w": lambda ground: __import__("io").FileIO(ground.outside, "w").write(b"changed"),
        "os_open_creates": lambda ground: write_through(f"{ground.outside_dir}/new", os.O_CREAT | os.O_WRONLY),
        "os_open_writes": lambda ground: write_through(ground.outside, os.O_WRONLY),
        "os_open_truncates": lambda ground: write_through(ground.outside, os.O_RDONLY | os.O_TRUNC),
        "truncate": lambda ground: os.truncate(ground.outside, 1),
        "mkdir": lambda ground: os.mkdir(f"{ground.outside_dir}/new"),
        "makedirs": lambda ground: os.makedirs(f"{ground.outside_dir}/new/newer"),
        "remove": lambda ground: os.remove(ground.outside),
        "unlink": lambda ground: os.unlink(ground.outside),
        "rmtree": lambda ground: __import__("shutil").rmtree(ground.outside_dir),
        "rename_away": lambda ground: os.rename(ground.outside, f"{ground.inside}/loot.txt"),
        "rename_onto": lambda ground: os.rename(f"{ground.inside}/own.txt", ground.outside),
        "rename_into": lambda ground: os.rename(f"{ground.inside}/own.txt", f"{ground.outside_dir}/new"),
        "replace": lambda ground: os.replace(f"{ground.inside}/own.txt", ground.outside),
        "renames": lambda ground: os.renames(f"{ground.inside}/own.txt", f"{ground.outside_dir}/deep/new"),
        "link_out": lambda ground: os.link(f"{ground.inside}/own.txt", f"{ground.outside_dir}/new"),
        "link_in": lambda ground: os.link(ground.outside, f"{ground.inside}/linked"),
        "symlink_out": lambda ground: os.symlink(f"{ground.inside}/own.txt", f"{ground.outside_dir}/new"),
        "mkfifo": lambda ground: os.mkfifo(f"{ground.outside_dir}/new"),
        "mknod": lambda ground: os.mknod(f"{ground.outside_dir}/new", stat.S_IFREG | 0o600),
        "chmod": lambda ground: os.chmod(ground.outside, 0o777),
        "utime": lambda ground: os.utime(ground.outside, (1, 1)),
        "setxattr": lambda ground: os.setxattr(ground.outside, "user.x", b"y"),
        "Path_write_text": lambda ground: pathlib_path(ground.outside).write_text("changed"),
        "Path_write_bytes": lambda ground: pathlib_path(ground.outside).write_bytes(b"changed"),
        "Path_touch": lambda ground: pathlib_path(f"{ground.outside_dir}/new").touch(),
        "Path_mkdir": lambda ground: pathlib_path(f"{ground.outside_dir}/new").mkdir(),
        "Path_unlink": lambda ground: pathlib_path(ground.outside).unlink(),
        "Path_rename": lambda ground: pathlib_path(ground.outside).rename(f"{ground.inside}/loot.txt"),
        "Path_chmod": lambda ground: pathlib_path(ground.outside).chmod(0o777),
        "Path_symlink_to": lambda ground: pathlib_path(f"{ground.outside_dir}/new").symlink_to("/dev/null"),
        "Path_hardlink_to": lambda ground: pathlib_path(f"{ground.outside_dir}/new").hardlink_to(
            f"{ground.inside}/own.txt"
        ),
        "mkstemp": lambda ground: __import__("tempfile").mkstemp(dir=ground.outside_dir),
        "mkdtemp": lambda ground: __import__("tempfile").mkdtemp(dir=ground.outside_dir),
        "NamedTemporaryFile": lambda ground: __import__("tempfile").NamedTemporaryFile(
            dir=ground.outside_dir, delete=False
        ),
        "copy_out": lambda ground: __import__("shutil").copy(f"{ground.inside}/own.txt", ground.outside_dir),
        "copymode": lambda ground: __import__("shutil").copymode("/dev/null", ground.outside),
        "FileHandler": lambda ground: __import__("logging").FileHandler(f"{ground.outside_dir}/new"),
        "RotatingFileHandler": lambda ground: __import__("logging.handlers").handlers.RotatingFileHandler(
            f"{ground.outside_dir}/new"
        ),
        "zip_out": lambda ground: __import__("zipfile").ZipFile(f"{ground.outside_dir}/new", "w").close(),
        "gzip_out": lambda ground: __import__("gzip").open(f"{ground.outside_dir}/new", "w").close(),
        "dump_stats": lambda ground: __import__("cProfile").Profile().dump_stats(f"{ground.outside_dir}/new"),
        "py_compile": lambda ground: __import__("py_compile").compile(
            f"{ground.site}/package/__init__.py", cfile=f"{ground.outside_dir}/new", doraise=True
        ),
        "mailbox": lambda ground: __import__("mailbox").mbox(f"{ground.outside_dir}/new").flush(),
        "rotate": lambda ground: __import__("os").rename(ground.outside_dir, ground.outside_dir + "2"),
    },
    "{} changes something outside",
    expect=FILES,
)


@attack(
    "an empty folder outside is removed", expect=FILES, prepare=lambda ground: os.mkdir(f"{ground.outside_dir}/empty")
)
def rmdir(ground: Ground) -> None:
    os.rmdir(f"{ground.outside_dir}/empty")


@attack(
    "an attribute outside is removed",
    expect=FILES,
    prepare=lambda ground: os.setxattr(ground.outside, "user.x", b"y"),
)
def removexattr(ground: Ground) -> None:
    os.removexattr(ground.outside, "user.x")


attacks_of(
    {
        "chown": lambda ground: os.chown(ground.outside, 12345, 12345),
        "lchown": lambda ground: os.lchown(ground.outside, 12345, 12345),
        "shutil_chown": lambda ground: __import__("shutil").chown(ground.outside, 12345),
    },
    "{} gives a file outside to somebody else",
    expect=FILES,
    needs=("root",),
)


def prepare_root_handle(ground: Ground) -> None:
    ground.held.root = os.open("/", os.O_RDONLY)


def return_to_root(ground: Ground) -> None:
    os.fchdir(ground.held.root)
    os.chroot(".")
    os.chdir(ground.neutral)


@attack(
    "the whole process is moved below the subject's own root, where every path means something else",
    expect=SANDBOX,
    needs=("root",),
    prepare=prepare_root_handle,
    after=return_to_root,
)
def chroot_inside(ground: Ground) -> bool:
    os.chroot(ground.inside)
    return True


@attack("a temporary file without a name is made outside and then linked to a name", expect=FILES)
def unnamed_temporary_file(ground: Ground) -> None:
    descriptor = os.open(ground.outside_dir, os.O_TMPFILE | os.O_RDWR)
    os.link(f"/proc/self/fd/{descriptor}", f"{ground.outside_dir}/new", src_dir_fd=0, follow_symlinks=True)


@attack("mkfifo makes a pipe outside by bytes", expect=FILES)
def mkfifo_bytes(ground: Ground) -> None:
    os.mkfifo(f"{ground.outside_dir}/new".encode())
