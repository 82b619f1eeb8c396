"""Files and directories, allowed and denied."""

from __future__ import annotations

import os
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import case

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop


def open_loop(path: str) -> Loop:
    """Open and close a file for reading."""

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            open(path).close()
        return perf_counter_ns() - start

    return loop


def stat_loop(path: str) -> Loop:
    """Ask for a file's metadata."""

    def loop(turns: int) -> int:
        stat = os.stat
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            stat(path)
        return perf_counter_ns() - start

    return loop


@case("open+close", limit=1.25)
def open_close(bed: Fixture) -> Loop:
    return open_loop(str(bed.ground.file))


@case("os.open+close")
def os_open_close(bed: Fixture) -> Loop:
    path = str(bed.ground.file)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            os.close(os.open(path, os.O_RDONLY))
        return perf_counter_ns() - start

    return loop


@case("os.stat", limit=2.0)
def os_stat(bed: Fixture) -> Loop:
    return stat_loop(str(bed.ground.file))


@case("os.path.exists", limit=2.0)
def path_exists(bed: Fixture) -> Loop:
    path = str(bed.ground.file)

    def loop(turns: int) -> int:
        exists = os.path.exists
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            exists(path)
        return perf_counter_ns() - start

    return loop


@case("os.listdir, 10 files", limit=1.3)
def listdir(bed: Fixture) -> Loop:
    path = str(bed.ground.folder)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            os.listdir(path)
        return perf_counter_ns() - start

    return loop


@case("os.scandir, 10 files", limit=1.25)
def scandir(bed: Fixture) -> Loop:
    path = str(bed.ground.folder)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with os.scandir(path) as entries:
                for _entry in entries:
                    pass
        return perf_counter_ns() - start

    return loop


@case("Path.read_text", limit=1.2)
def read_text(bed: Fixture) -> Loop:
    path = Path(bed.ground.file)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            path.read_text()
        return perf_counter_ns() - start

    return loop


@case("write and remove a small file")
def write_small(bed: Fixture) -> Loop:
    # A new file each time: file systems flush a truncated and rewritten file, which would dominate the time.
    path = str(bed.ground.work / f"written-{os.getpid()}")

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with open(path, "w") as file:
                file.write("A line of text.\n")
            os.unlink(path)
        return perf_counter_ns() - start

    return loop


@case("os.walk, 4 folders of 4 files")
def walk(bed: Fixture) -> Loop:
    path = str(bed.ground.package)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            for _entry in os.walk(path):
                pass
        return perf_counter_ns() - start

    return loop


def _refused_path(bed: Fixture) -> str:
    """Return an existing file that is denied; without a guard, a missing file, which fails as cheaply."""
    return str(bed.ground.outside if bed.guarded else bed.ground.work / "missing")


@case("denied open (to ENOENT)", limit=3.0)
def denied_open(bed: Fixture) -> Loop:
    path = _refused_path(bed)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            try:
                open(path)
            except OSError:
                continue
            raise AssertionError("an open that must fail succeeded")
        return perf_counter_ns() - start

    return loop


@case("denied os.stat (to ENOENT)")
def denied_stat(bed: Fixture) -> Loop:
    path = _refused_path(bed)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            try:
                os.stat(path)
            except OSError:
                continue
            raise AssertionError("a stat that must fail succeeded")
        return perf_counter_ns() - start

    return loop
