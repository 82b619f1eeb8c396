"""Files of the cases: one private directory, created by the driver and shared by all workers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FRESH_MODULE = "bench_fresh_module"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Paths below the private directory. Names are short so that shallow paths can be measured."""

    base: Path

    @property
    def work(self) -> Path:
        """Directory that a guard allows."""
        return self.base / "w"

    @property
    def outside(self) -> Path:
        """Existing file that no guard allows."""
        return self.base / "o" / "secret.txt"

    @property
    def approved(self) -> Path:
        """Existing file that no guard allows, but an approval does."""
        return self.base / "o" / "approved.txt"

    @property
    def databases(self) -> Path:
        """Folder of the databases with decisions."""
        return self.base / "s"

    @property
    def databases_file(self) -> Path:
        """File with their places."""
        return self.base / "databases.json"

    @property
    def temp(self) -> Path:
        """Temporary directory of the workers: guards allow it, so it must not contain the outside file."""
        return self.base / "t"

    @property
    def home(self) -> Path:
        """Home directory of the workers, for files of the products."""
        return self.base / "h"

    @property
    def file(self) -> Path:
        """Small file below the allowed directory."""
        return self.work / "f"

    @property
    def folder(self) -> Path:
        """Directory with ten files."""
        return self.work / "ten"

    @property
    def package(self) -> Path:
        """Small tree with the size of a small package."""
        return self.work / "package"

    @property
    def modules(self) -> Path:
        """Directory for the import path."""
        return self.work / "modules"

    @property
    def server_file(self) -> Path:
        """File with the ports and processor of the run's server."""
        return self.base / "server.json"

    @property
    def server_cpu(self) -> int:
        """Processor of the server."""
        return int(json.loads(self.server_file.read_text())["cpu"])

    def port(self, service: str) -> int:
        """Return the port of a service of the server, or of a closed port."""
        return int(json.loads(self.server_file.read_text())["ports"][service])

    def deep(self, depth: int) -> Path:
        """Return a file that many components below the root of the file system."""
        between = depth - len(self.work.parts)
        if between < 0:
            raise ValueError(f"the temporary directory is deeper than {depth} components")
        return self.work.joinpath(*["d"] * between, "f")


@contextmanager
def prepared_workspace(depths: tuple[int, ...]) -> Iterator[Workspace]:
    """Create the files, and remove them afterwards."""
    base = _private_folder()
    try:
        ground = Workspace(base)
        _fill(ground)
        _fill_depths(ground, depths)
        yield ground
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _private_folder() -> Path:
    """Return the private temporary folder of a supervised run, or a new one below the usual one."""
    own = os.environ.get("RUN_FOLDER", "")
    folder = own if own == tempfile.gettempdir() else tempfile.mkdtemp(prefix="bench-")
    return Path(folder).resolve()


def _fill(ground: Workspace) -> None:
    inside = (ground.folder, ground.package, ground.modules)
    for folder in (ground.outside.parent, ground.databases, ground.temp, ground.home, *inside):
        folder.mkdir(parents=True)
    ground.outside.write_text("secret\n")
    ground.approved.write_text("approved\n")
    ground.file.write_text("A line of text.\n" * 8)
    for number in range(10):
        (ground.folder / f"file{number}.txt").write_text("x\n")
    for part in ("", "core", "core/parts", "web"):
        (ground.package / part).mkdir(exist_ok=True)
        for name in ("__init__.py", "models.py", "views.py", "errors.py"):
            (ground.package / part / name).write_text("VALUE = 1\n")
    source = "\n".join(f"def function_{number}(value):\n    return value + {number}\n" for number in range(8))
    (ground.modules / f"{FRESH_MODULE}.py").write_text(source)


def _fill_depths(ground: Workspace, depths: tuple[int, ...]) -> None:
    for depth in depths:
        if depth >= len(ground.work.parts):
            path = ground.deep(depth)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x\n")
