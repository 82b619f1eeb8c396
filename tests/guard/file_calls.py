"""Matrix of file calls: the effect of each on a small tree, and the operations it needs there.

Each entry is `name: (needed operations, call)`. The call gets the tree's folder, which contains `a` and `b` (files),
`dir` (a folder with one file), `empty` (a folder) and `link` (a symlink to `a`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

R, C, M, D = ALL = ("read", "create", "modify", "delete")


def opened(mode, name):
    """Return a call of open() in one mode, which writes if it can."""

    def call(top):
        with open(f"{top}/{name}", mode) as file:
            if mode != "r":
                file.write("x")

    return call


def os_opened(flags, name):
    """Return a call of os.open() with these flags."""
    return lambda top: os.close(os.open(f"{top}/{name}", flags))


OPENS = {
    "open r": ({R}, opened("r", "a")),
    "open w existing": ({M}, opened("w", "a")),
    "open w new": ({C}, opened("w", "new")),
    "open a existing": ({M}, opened("a", "a")),
    "open a new": ({C}, opened("a", "new")),
    "open x new": ({C}, opened("x", "new")),
    "open r+": ({R, M}, opened("r+", "a")),
    "open w+ existing": ({R, M}, opened("w+", "a")),
    "open w+ new": ({R, C}, opened("w+", "new")),
    "open a+ existing": ({R, M}, opened("a+", "a")),
    "open through link": ({R}, opened("r", "link")),
    "open w through link": ({M}, opened("w", "link")),
    "os.open RDONLY": ({R}, os_opened(os.O_RDONLY, "a")),
    "os.open WRONLY": ({M}, os_opened(os.O_WRONLY, "a")),
    "os.open RDWR": ({R, M}, os_opened(os.O_RDWR, "a")),
    "os.open RDONLY|TRUNC": ({R, M}, os_opened(os.O_RDONLY | os.O_TRUNC, "a")),
    "os.open WRONLY|APPEND": ({M}, os_opened(os.O_WRONLY | os.O_APPEND, "a")),
    "os.open WRONLY|CREAT new": ({C}, os_opened(os.O_WRONLY | os.O_CREAT, "new")),
    "os.open WRONLY|CREAT existing": ({M}, os_opened(os.O_WRONLY | os.O_CREAT, "a")),
    "os.open WRONLY|CREAT|EXCL new": ({C}, os_opened(os.O_WRONLY | os.O_CREAT | os.O_EXCL, "new")),
    "os.open RDONLY|CREAT existing": ({R}, os_opened(os.O_RDONLY | os.O_CREAT, "a")),
    "os.open RDONLY|CREAT new": ({R, C}, os_opened(os.O_RDONLY | os.O_CREAT, "new")),
    "os.open WRONLY|CREAT|TRUNC new": ({C}, os_opened(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "new")),
    "os.open WRONLY|CREAT|TRUNC existing": ({M}, os_opened(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a")),
    "os.open DIRECTORY": ({R}, os_opened(os.O_RDONLY | os.O_DIRECTORY, "dir")),
    "os.open PATH": ({R}, os_opened(os.O_PATH, "a")),
    "os.open TMPFILE|WRONLY": ({C}, os_opened(os.O_TMPFILE | os.O_WRONLY, "dir")),
    "os.open TMPFILE|RDWR": ({C}, os_opened(os.O_TMPFILE | os.O_RDWR, "dir")),
    "os.open both write bits": ({R, M}, os_opened(os.O_WRONLY | os.O_RDWR, "a")),
}  # fmt: skip

METADATA = {
    "stat": ({R}, lambda top: os.stat(f"{top}/a")),
    "lstat": ({R}, lambda top: os.lstat(f"{top}/link")),
    "access": ({R}, lambda top: os.access(f"{top}/a", os.R_OK)),
    "listdir": ({R}, lambda top: os.listdir(top)),
    "scandir": ({R}, lambda top: os.scandir(top).close()),
    "readlink": ({R}, lambda top: os.readlink(f"{top}/link")),
    "statvfs": ({R}, lambda top: os.statvfs(top)),
    "listxattr": ({R}, lambda top: os.listxattr(f"{top}/a")),
    "chdir": ({R}, lambda top: os.chdir(top)),
    "exists": ({R}, lambda top: os.path.exists(f"{top}/a")),
    "chmod": ({M}, lambda top: os.chmod(f"{top}/a", 0o600)),
    "chown": ({M}, lambda top: os.chown(f"{top}/a", -1, -1)),
    "lchown": ({M}, lambda top: os.lchown(f"{top}/link", -1, -1)),
    "utime": ({M}, lambda top: os.utime(f"{top}/a")),
    "setxattr": ({M}, lambda top: os.setxattr(f"{top}/a", "user.mark", b"x")),
    "truncate": ({M}, lambda top: os.truncate(f"{top}/a", 1)),
}  # fmt: skip

NAMES = {
    "mkdir": ({C}, lambda top: os.mkdir(f"{top}/new")),
    "mkfifo": ({C}, lambda top: os.mkfifo(f"{top}/new")),
    "mknod": ({C}, lambda top: os.mknod(f"{top}/new")),
    "makedirs": ({R, C}, lambda top: os.makedirs(f"{top}/new/deep")),
    "unlink": ({D}, lambda top: os.unlink(f"{top}/a")),
    "unlink link": ({D}, lambda top: os.unlink(f"{top}/link")),
    "rmdir": ({D}, lambda top: os.rmdir(f"{top}/empty")),
    "rename to new": ({D, C}, lambda top: os.rename(f"{top}/a", f"{top}/new")),
    "rename over": ({D, M}, lambda top: os.rename(f"{top}/a", f"{top}/b")),
    "replace to new": ({D, C}, lambda top: os.replace(f"{top}/a", f"{top}/new")),
    "replace over": ({D, M}, lambda top: os.replace(f"{top}/a", f"{top}/b")),
    "rename folder": ({D, C}, lambda top: os.rename(f"{top}/dir", f"{top}/new")),
    "link": ({R, C}, lambda top: os.link(f"{top}/a", f"{top}/new")),
    "symlink": ({R, C}, lambda top: os.symlink(f"{top}/a", f"{top}/new")),
    "symlink relative": ({R, C}, lambda top: os.symlink("a", f"{top}/new")),
}  # fmt: skip

COMPOSITES = {
    "Path.read_text": ({R}, lambda top: Path(top, "a").read_text()),
    "Path.write_text over": ({M}, lambda top: Path(top, "a").write_text("x")),
    "Path.write_text new": ({C}, lambda top: Path(top, "new").write_text("x")),
    "Path.iterdir": ({R}, lambda top: list(Path(top).iterdir())),
    "Path.rename": ({D, C}, lambda top: Path(top, "a").rename(Path(top, "new"))),
    "Path.unlink": ({D}, lambda top: Path(top, "a").unlink()),
    "Path.hardlink_to": ({R, C}, lambda top: Path(top, "new").hardlink_to(Path(top, "a"))),
    "shutil.copyfile new": ({R, C}, lambda top: shutil.copyfile(f"{top}/a", f"{top}/new")),
    "shutil.copyfile over": ({R, M}, lambda top: shutil.copyfile(f"{top}/a", f"{top}/b")),
    "shutil.copy": ({R, C, M}, lambda top: shutil.copy(f"{top}/a", f"{top}/new")),
    "shutil.copytree": ({R, C, M}, lambda top: shutil.copytree(f"{top}/dir", f"{top}/new")),
    "shutil.move": ({R, D, C}, lambda top: shutil.move(f"{top}/a", f"{top}/new")),
    "shutil.rmtree": ({R, D}, lambda top: shutil.rmtree(f"{top}/dir")),
    "shutil.disk_usage": ({R}, lambda top: shutil.disk_usage(top)),
}  # fmt: skip

CALLS = OPENS | METADATA | NAMES | COMPOSITES


def lay_out(top):
    """Create the tree again."""
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(f"{top}/dir")
    os.mkdir(f"{top}/empty")
    for name in ("a", "b", "dir/c"):
        with open(f"{top}/{name}", "w") as file:
            file.write("content")
    os.symlink("a", f"{top}/link")
