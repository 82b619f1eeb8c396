"""Another process swaps files for links to the outside as fast as it can: nothing outside is read or changed."""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.once  # does not depend on the interpreter

SWAPS = 200_000

# Exchanges `file` with a link to the secret and `dir` with a link to the outside folder, atomically.
SWAPPER = """
import ctypes, os, sys
root, swaps = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
exchange = libc.renameat2
names = (("file", "file-link"), ("dir", "dir-link"))
pairs = [tuple(os.fsencode(os.path.join(root, name)) for name in pair) for pair in names]
if exchange(-100, pairs[0][0], -100, pairs[0][1], 2) != 0:
    open(os.path.join(root, "done"), "w").write("0")
    sys.exit("no rename-exchange here: " + os.strerror(ctypes.get_errno()))
done = 0
while done < swaps:
    for one, other in pairs:
        exchange(-100, one, -100, other, 2)
    done += 1
open(os.path.join(root, "done"), "w").write(str(done))
"""


def lay_out(world):
    """Create inside and outside with different content; links inside lead to the outside twin of each."""
    os.mkdir(world.inside("dir"))
    os.mkdir(world.out("dir"))
    for top, text in ((world.root, "mine"), (world.outside, "SECRET")):
        for name in ("file", "dir/file", "dir/victim"):
            with open(os.path.join(top, name), "w") as file:
                file.write(text)
    write(world.out("dir", "outside-only"))
    os.symlink(world.out("file"), world.inside("file-link"))
    os.symlink(world.out("dir"), world.inside("dir-link"))


def race(world, actions, limit=60):
    """Run the actions in turn until the swapper is done; count the results."""
    counts = {name: {} for name in actions}
    deadline = time.monotonic() + limit
    swapper = subprocess.Popen([sys.executable, "-c", world.args[0], world.root, str(world.args[1])])
    done = world.inside("done")

    def play():
        while not os.path.exists(done) and time.monotonic() < deadline:
            for name, action in actions.items():
                try:
                    outcome = action()
                except Exception as error:
                    outcome = describe(error)
                counts[name][outcome] = counts[name].get(outcome, 0) + 1

    if world.args[2]:
        from democrai_sandbox import process_guard_context

        process_guard_context(subject="demo", allowed_paths=[world.root]).run(play)
    else:
        play()
    code = swapper.wait(limit)
    return counts, code, int(read(done)) if code == 0 else 0


def readers(world):
    """Return every way to read a file's content or a folder's names."""
    lay_out(world)
    target, folder, below = world.inside("file"), world.inside("dir"), world.inside("dir", "file")

    def by_descriptor(path):
        number = os.open(path, os.O_RDONLY)
        try:
            return os.read(number, 10).decode()
        finally:
            os.close(number)

    def by_file_io(path):
        with io.FileIO(path) as file:
            return file.read().decode()

    def listed(names):
        return "SECRET" if "outside-only" in names else "mine"

    def scanned(path):
        with os.scandir(path) as entries:
            return listed([entry.name for entry in entries])

    def copied(path):
        shutil.copyfile(path, world.inside("copy"))
        return read(world.inside("copy")).decode()

    def linked(path):
        os.link(path, world.inside("hard"))
        try:
            return "SECRET" if os.stat(world.inside("hard")).st_ino == outside_inode else "mine"
        finally:
            os.unlink(world.inside("hard"))

    outside_inode = os.stat(world.out("file")).st_ino
    actions = {
        "open": lambda: read(target).decode(),
        "open below": lambda: read(below).decode(),
        "os.open": lambda: by_descriptor(target),
        "os.open below": lambda: by_descriptor(below),
        "FileIO": lambda: by_file_io(below),
        "Path.read_text": lambda: pathlib.Path(below).read_text(),
        "listdir": lambda: listed(os.listdir(folder)),
        "scandir": lambda: scanned(folder),
        "copyfile": lambda: copied(target),
        "link": lambda: linked(target),
        "opener": lambda: open(below, opener=lambda path, flags: os.open(path, flags)).read(),
    }
    return race(world, actions)


def writers(world):
    """Return every way to change something, with names that also exist outside."""
    lay_out(world)
    os.chmod(world.out("dir", "victim"), 0o640)
    os.utime(world.out("dir", "victim"), (1, 1))
    before = outside_picture(world)
    victim, fresh = world.inside("dir", "victim"), world.inside("dir", "fresh")

    def overwrite(mode):
        with open(victim, mode) as file:
            file.write("mine")
        return "ok"

    def done(function, *args, **kwargs):
        function(*args, **kwargs)
        return "ok"

    def removed_and_back():
        os.unlink(victim)
        return "ok"

    actions = {
        "w": lambda: overwrite("w"),
        "a": lambda: overwrite("a"),
        "create": lambda: done(write, fresh),
        "x": lambda: done(open(fresh + "x", "x").close),
        "os.open": lambda: done(os.close, os.open(victim, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
        "truncate": lambda: done(os.truncate, victim, 2),
        "chmod": lambda: done(os.chmod, victim, 0o600),
        "utime": lambda: done(os.utime, victim, (5, 5)),
        "unlink": removed_and_back,
        "unlink fresh": lambda: done(os.unlink, fresh),
        "unlink x": lambda: done(os.unlink, fresh + "x"),
        "mkdir": lambda: done(os.mkdir, fresh + "d"),
        "rmdir": lambda: done(os.rmdir, fresh + "d"),
        "rename": lambda: done(os.rename, victim, victim + "2"),
        "rename back": lambda: done(os.rename, victim + "2", victim),
        "replace": lambda: done(os.replace, victim, fresh),
        "symlink": lambda: done(os.symlink, "file", fresh + "l"),
        "unlink link": lambda: done(os.unlink, fresh + "l"),
        "mkfifo": lambda: done(os.mkfifo, fresh + "f"),
        "unlink fifo": lambda: done(os.unlink, fresh + "f"),
        "setxattr": lambda: done(os.setxattr, victim, "user.mark", b"x"),
        "touch": lambda: done(pathlib.Path(fresh + "t").touch),
        "unlink touched": lambda: done(os.unlink, fresh + "t"),
    }
    counts, code, swaps = race(world, actions)
    after = outside_picture(world)
    return (
        counts,
        code,
        swaps,
        [
            [before.get(name), after.get(name), name]
            for name in {*before, *after}
            if before.get(name) != after.get(name)
        ],
    )


def outside_picture(world):
    """Return names, modes, times and contents of the outside."""
    seen = {}
    for folder, folders, files in os.walk(world.outside):
        for name in folders + files:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            content = open(path).read() if name in files and not os.path.islink(path) else ""
            seen[path] = [
                found.st_mode,
                found.st_size,
                found.st_mtime_ns if name in files else 0,
                content,
                os.listxattr(path),
            ]
    return seen


def skip_without_exchange(code):
    if code != 0:
        pytest.skip("this file system cannot exchange two names")


def check_swaps(counts, code, swaps, wanted):
    skip_without_exchange(code)
    assert swaps >= wanted
    for name, outcomes in counts.items():
        assert sum(outcomes.values()) > 50, (name, outcomes)


@pytest.mark.slow
class TestRaces:
    def test_the_race_is_real(self, case):
        """Without a guard both contents are read."""
        counts, code, _ = case.run(readers, SWAPPER, 10_000, False)
        skip_without_exchange(code)
        assert {"mine", "SECRET"} <= set(counts["open"])
        assert {"mine", "SECRET"} <= set(counts["listdir"])

    def test_nothing_outside_is_ever_read(self, case):
        """In more than 100,000 swaps no read, listing, copy or hard link reaches the outside."""
        counts, code, swaps = case.run(readers, SWAPPER, SWAPS, True)
        check_swaps(counts, code, swaps, 100_000)
        leaks = {name: outcomes for name, outcomes in counts.items() if "SECRET" in outcomes}
        assert leaks == {}
        assert all("mine" in outcomes for outcomes in counts.values()), counts
        assert all("FilesystemDenied" in outcomes for outcomes in counts.values()), counts

    def test_nothing_outside_is_ever_changed(self, case):
        """In more than 100,000 swaps no write, creation, deletion or change of metadata happens outside."""
        counts, code, swaps, changed = case.run(writers, SWAPPER, SWAPS, True)
        check_swaps(counts, code, swaps, 100_000)
        assert changed == []
        assert all("FilesystemDenied" in outcomes for outcomes in counts.values()), counts
        assert all("ok" in counts[name] for name in ("w", "create", "mkdir", "chmod", "symlink")), counts
