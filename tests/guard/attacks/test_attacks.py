"""Every attack succeeds without a guard and has its listed verdict under one."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.guard.attacks import namespaces
from tests.guard.attacks.kit import REGISTRY, Attack, Expectation, Fruitless, Ground, Residual, Works, running_version
from tests.services.remembered import Remembered, remembered

HERE = Path(__file__).parent
RUNNER = HERE / "runner.py"
SHOWN = HERE / "shown.txt"
FAMILIES = HERE / "families"
RESIDUALS = ("residuals", "residuals_network")


def load_attacks() -> list[Attack]:
    """Return all attacks of all families, in the order of their names."""
    for file in sorted(FAMILIES.glob("*.py")):
        import_module(f"{__package__}.families.{file.stem}")
    return [entry for entries in REGISTRY.attacks.values() for entry in entries.values()]


class Stage:
    """Process that runs attacks in forks of itself, one at a time."""

    def __init__(self, *kind: str) -> None:
        kept = {
            name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(RUNNER), "--serve", *kind],
            env=kept,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, entry: Attack, guard: str, base: Path) -> None:
        """Start an attack; its traces are left in `base`."""
        base.mkdir()
        order = {"file": entry.file, "name": entry.name, "guard": guard, "base": str(base)}
        if guard == "on" and is_alike_in_its_file(entry) and not is_read_by_the_core(entry):
            order["template"] = used_by_the_host(entry)
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def verdict(self, base: Path) -> dict[str, str | None]:
        """Wait for the started attack and return its verdict, including actions during its end."""
        status = json.loads(self.process.stdout.readline())
        out, err = (Path(f"{base}.{kind}").read_text(errors="replace") for kind in ("out", "err"))
        err = err[-2000:]
        if status is None:
            return {"verdict": "hung", "stderr": err}
        lines = [line for line in out.splitlines() if line.startswith('{"verdict"')]
        if not lines or status != 0:
            return {"verdict": "crashed", "status": str(status), "stderr": err}
        result: dict[str, str | None] = json.loads(lines[-1])
        loot = base / "inside" / "loot"
        if loot.exists():
            result |= json.loads(loot.read_text())
        return result | {"stderr": err}

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Stages(dict[tuple[str, ...], Stage]):
    """Processes that run attacks, by kind; the unguarded and the guarded run are parallel."""

    def __missing__(self, kind: tuple[str, ...]) -> Stage:
        return self.setdefault(kind, Stage(*kind))

    def unguarded(self, entry: Attack) -> Stage:
        """Return the process for the attack without a guard."""
        return self[entry.stage, "open"]

    def guarded(self, entry: Attack) -> Stage:
        """Return the process for the attack under a guard."""
        return self[entry.stage, "armed" if is_read_by_the_core(entry) else ""]


@pytest.fixture(scope="session")
def stages() -> Iterator[Stages]:
    """Processes that run attacks, started on demand."""
    made = Stages()
    yield made
    for stage in made.values():
        stage.close()


@cache
def file_key(file: str) -> str:
    """Return the digest of everything in this repository that unguarded runs depend on, and of the interpreter."""
    shared = [file for file in sorted(HERE.glob("*.py")) if not file.name.startswith(("test_", "record_shown"))]
    packages = sorted((HERE.parents[2] / "requirements").glob("*.txt"))
    texts = map(file_text, [FAMILIES / f"{file}.py", *shared, *packages])
    return digest("{}.{}".format(*sys.version_info).encode(), *texts)


@cache
def attack_key(entry: Attack) -> str:
    """Return the digest of everything that an unguarded run depends on, on this machine."""
    system = f"{sys.version} {platform.release()} {os.geteuid()} {sys.prefix}"
    return digest(system.encode(), file_key(entry.file).encode(), entry.name.encode())


@cache
def file_text(file: Path) -> bytes:
    """Return the content of a file."""
    return file.read_bytes()


def digest(*parts: bytes) -> str:
    """Return one short digest of several texts."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:32]


@pytest.fixture(scope="session")
def shown(pytestconfig: pytest.Config) -> Remembered:
    """Attacks that were seen to work without a guard here, by their keys."""
    return remembered(pytestconfig, "attacks", "shown-{}.{}".format(*sys.version_info))


@cache
def shown_files() -> set[str]:
    """Return the keys of the files whose attacks were all seen to work without a guard, on any machine."""
    return set(SHOWN.read_text().split()[1::2])  # written by record_shown.py


def is_played(entry: Attack) -> bool:
    """Return whether this interpreter and this machine can run the attack."""
    return entry.since <= running_version() <= entry.until and not unmet(entry)


@cache
def keeps_access_times() -> bool:
    """Return whether reading a file changes its access time here."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(folder)
        with open(ground.plant("probe", "text")) as file:
            file.read()
        return ground.was_read("probe")


@cache
def has_namespaces() -> bool:
    """Return whether an attack may have a separate network here."""
    return namespaces.available()


def unmet(entry: Attack) -> str:
    """Return the requirements of the attack that this machine lacks."""
    for need in entry.needs:
        if need == "root":
            met = os.geteuid() == 0
        elif need.startswith("/"):
            met = os.path.exists(need)
        elif need == "access times":
            met = keeps_access_times()
        elif need == "namespaces":
            met = has_namespaces()
        elif need == "IPv6":
            met = namespaces.has_six()
        else:
            met = find_spec(need) is not None
        if not met:
            return need
    return ""


def meets(expect: Expectation, result: dict[str, str | None]) -> bool:
    """Return whether the verdict under the guard is the expected one."""
    if isinstance(expect, Residual | Works):
        return result["verdict"] == "escaped"
    empty_handed = result["verdict"] == "failed" and result["error_type"] is None
    if isinstance(expect, Fruitless):
        return empty_handed
    if result["verdict"] == "denied":
        shapes = (result["code"] or "", result["error_type"] or "")
        return any(shape.startswith(expect.codes) for shape in shapes)
    if result["verdict"] == "failed" and result["error_type"] is not None:
        return any(result["error_type"].startswith(name) for name in expect.or_errors)
    return expect.or_nothing and empty_handed


def shown_elsewhere(entry: Attack, version: str | None) -> bool:
    """Return whether the run on another interpreter has shown that the attack works without a guard."""
    if version is None:
        return False
    major, minor = version.split(".")
    return entry.since <= (int(major), int(minor)) <= entry.until


ATTACKS = load_attacks()

# These do not depend on the interpreter: the core or the kernel parses their input in the same way on each.
READ_BY_THE_CORE = (
    *("address_forms", "empty_policies", "file_disclosure", "folder_descriptors", "host_spellings", "late_files"),
    *("links", "listening", "lookalike_names", "name_lookups", "network_disclosure", "other_protocols"),
    *("own_configuration", "path_prefixes", "proxies", "redirects", "request_smuggling", "shared_addresses"),
    *("smuggled_http2", "special_files", "traversal", "unix_socket_paths", "url_spellings"),
)


def is_read_by_the_core(entry: Attack) -> bool:
    """Return whether the interpreter's version and its earlier imports cannot matter to the attack."""
    return entry.since <= (3, 11) and entry.file in READ_BY_THE_CORE


def is_alike_in_its_file(entry: Attack) -> bool:
    """Return whether only the import of the attack's file, or the start of servers, happens before the guard."""
    return entry.early is None or getattr(entry.early, "is_only_servers", False)


def used_by_the_host(entry: Attack) -> list[str]:
    """Return the imports of the host between the guard and the attack: its loop, and the client of servers."""
    if hasattr(sys.modules[f"{__package__}.families.{entry.file}"], "LOADED"):
        return []  # one process is then enough for all attacks of the file
    is_async = entry.act.__code__.co_flags & inspect.CO_COROUTINE
    return ["asyncio"] * bool(is_async) + ["http.client"] * (entry.stage == "network")


def as_parameter(entry: Attack) -> ParameterSet:
    """Return an attack as a parameter, marked if one interpreter is enough."""
    if entry.since > (3, 11):
        return pytest.param(entry, id=entry.id, marks=pytest.mark.every)
    return pytest.param(entry, id=entry.id, marks=pytest.mark.once if is_read_by_the_core(entry) else ())


@pytest.mark.parametrize("entry", [as_parameter(entry) for entry in ATTACKS])
def test_attack(entry: Attack, stages: Stages, shown: Remembered, pytestconfig: pytest.Config) -> None:
    """The attack works without a guard and has its expected verdict under one."""
    if not entry.since <= running_version() <= entry.until:
        pytest.skip(f"concerns Python {entry.since} to {entry.until}")
    if lacking := unmet(entry):
        pytest.skip(f"needs {lacking}")
    # A short name, because the path of a Unix socket below it must fit into 108 bytes.
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        free, caught = Path(folder, "free"), Path(folder, "caught")
        is_shown = (
            entry.unguarded
            or attack_key(entry) in shown
            or (file_key(entry.file) in shown_files() and not pytestconfig.getoption("--fresh"))
            or shown_elsewhere(entry, pytestconfig.getoption("--baseline-on"))
        )
        if not is_shown:
            stages.unguarded(entry).begin(entry, "off", free)
        stages.guarded(entry).begin(entry, "on", caught)
        without = None if is_shown else stages.unguarded(entry).verdict(free)
        under = stages.guarded(entry).verdict(caught)
    if without is not None:
        assert without["verdict"] == "escaped", f"{entry.text}: does nothing even without a guard: {without}"
        shown.add(attack_key(entry))
    assert meets(entry.expect, under), f"{entry.text}: expected {entry.expect}, got {under}"


def test_attacks_know_the_secret_only_from_the_file() -> None:
    """The secret is too long to occur in loot by chance."""
    assert len(Ground.SECRET) > 12


def test_residuals_are_listed_where_they_belong() -> None:
    """Residual attacks are listed in two files and nowhere else."""
    assert {entry.file for entry in ATTACKS if isinstance(entry.expect, Residual)} <= set(RESIDUALS)
