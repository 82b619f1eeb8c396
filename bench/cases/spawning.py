"""Programs started by the spawn server; not installed, by ``subprocess.run`` of the same program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.registry import SHORT_PARTS, Case, add

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

PLAIN_LIMIT = 1.5
CONFINED_LIMIT = 10.0
SIZE_LIMIT = 1.2
_TRUE = "/bin/true"
_RULES = 40
_LARGE = 500 * 1024 * 1024
_PAGE = 4096
_LAUNCHER = "democrai.core.infrastructure.sandbox.launcher"
_ballast: list[bytearray] = []


def _timed(call: Callable[[], object]) -> Loop:
    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            call()
        return perf_counter_ns() - start

    return loop


def _directly() -> object:
    return subprocess.run([_TRUE], check=True)


def _alike() -> object:
    """Start the program with everything that the server sets: environment, folder, session, null streams."""
    return subprocess.run(
        [_TRUE],
        env=_environment(),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def _server() -> Any:
    """Start a server, which ends with the worker."""
    from democrai_sandbox.kernel.spawn import SpawnServer

    return SpawnServer.start()


def _environment() -> dict[str, str]:
    """Return the environment of children: a small part of the host's, and their subject."""
    from democrai_sandbox.runtime.children.launch_request import base_environment

    own = {"HOME": "/", "DEMOCRAI_NETWORK_SUBJECT": "demo", "DEMOCRAI_NETWORK_SUBJECT_KIND": "module"}
    return {**base_environment(os.environ), **own, "DEMOCRAI_ACCESS": "[]"}


def _order(**confinement: Any) -> Any:
    from democrai_sandbox.kernel.spawn import SpawnOrder

    return SpawnOrder(_TRUE, (_TRUE,), _environment(), "/", **confinement)


def _by_server(order: Any) -> Loop:
    server = _server()

    def start() -> None:
        code = server.spawn(order).collect()
        assert code == 0

    return _timed(start)


def plain(bed: Fixture) -> Loop:
    return _by_server(_order()) if bed.guarded else _timed(_directly)


add(
    Case(
        f"{_TRUE} by the spawn server (to subprocess.run)",
        plain,
        limit=PLAIN_LIMIT,
        wrapped=False,
        reference=False,
        parts=SHORT_PARTS,
        stretch=4,
    )
)


def alike(bed: Fixture) -> Loop:
    return _by_server(_order()) if bed.guarded else _timed(_alike)


# For comparison only: the limit is for the row above.
add(
    Case(
        f"{_TRUE} by the spawn server (to subprocess.run with env, cwd, session and null streams)",
        alike,
        wrapped=False,
        reference=False,
        parts=SHORT_PARTS,
        stretch=4,
    )
)


def _folders(bed: Fixture) -> list[str]:
    """Create that many folders for rules."""
    base = bed.ground.temp / f"spawning-{os.getpid()}"
    folders = [base / f"rule{number}" for number in range(_RULES - len(_SYSTEM))]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return [str(folder) for folder in folders]


_SYSTEM = ("/usr", "/lib", "/bin", "/etc/ld.so.cache")


def _launched(bed: Fixture) -> Loop:
    """Run the reference product's launcher; it removes the file with its order, so each run has a separate one."""
    rules = [
        *({"resource_type": "filesystem", "operation": "execute", "target": path} for path in _SYSTEM),
        *({"resource_type": "filesystem", "operation": "modify", "target": path} for path in _folders(bed)),
    ]
    file = bed.ground.temp / f"launch-{os.getpid()}.json"
    text = json.dumps({"command": [_TRUE], "cwd": None, "env": None, "access": rules})

    def launch() -> None:
        file.write_text(text)
        subprocess.run([sys.executable, "-m", _LAUNCHER, str(file)], check=True)

    return _timed(launch)


def _confined_order(bed: Fixture) -> Any:
    from democrai_sandbox.kernel.landlock.rights import landlock_support
    from democrai_sandbox.kernel.spawn import NO_LIMITS, confinement_of, enforcement_of

    wanted = confinement_of((), runtime_execute=_SYSTEM, own_write=_folders(bed), limits=NO_LIMITS)
    found = enforcement_of(wanted, landlock_support().abi)
    return _order(plan=found.plan, filter=found.filter, limits=found.limits, cgroup=_cgroup())


def _cgroup() -> int:
    """Return a descriptor for joining a cgroup; -1 without permission.

    It is the current cgroup of this process, because a killed worker could not remove another one. The kernel takes the
    same locks for it.
    """
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
        root = next(fields[4] for fields in mounts if fields[fields.index("-") + 1] == "cgroup2")
        with open("/proc/self/cgroup") as file:
            own = next(line.rstrip("\n").partition("::")[2] for line in file if line.startswith("0::"))
        return os.open(f"{root}{own.rstrip('/')}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    except (OSError, StopIteration):
        return -1


def confined(bed: Fixture) -> Loop:
    if bed.is_reference:
        return _launched(bed)
    return _by_server(_confined_order(bed)) if bed.guarded else _timed(_directly)


_EVERYTHING = f"{_TRUE} with {_RULES} Landlock rules, seccomp and cgroup"
add(
    Case(
        f"{_EVERYTHING} (to subprocess.run)",
        confined,
        limit=CONFINED_LIMIT,
        wrapped=False,
        reference=False,
        stretch=4,
    )
)
# The reference product's launcher is an interpreter with all its imports, so one run per round must be enough.
add(
    Case(
        f"{_EVERYTHING}, once (to subprocess.run)",
        confined,
        cheaper=10.0,
        wrapped=False,
        parts=2,
        samples=5,
    )
)


def large(bed: Fixture) -> Loop:
    """Measure the server's children from an application with much memory, compared with a small one."""
    if bed.guarded and not _ballast:
        block = bytearray(_LARGE)
        block[::_PAGE] = b"x" * len(range(0, _LARGE, _PAGE))  # touched, so that it is allocated
        _ballast.append(block)
    return _by_server(_order())


add(
    Case(
        f"{_TRUE} by the spawn server, from 500 MB in memory (to one from a small process)",
        large,
        limit=SIZE_LIMIT,
        wrapped=False,
        reference=False,
        parts=SHORT_PARTS,
        stretch=4,
    )
)
