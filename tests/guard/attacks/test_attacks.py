"""Every attack succeeds without a guard and comes to the verdict it is listed with under one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.guard.attacks.kit import REGISTRY, Attack, Denied, Fruitless, Ground, Residual, running_version

HERE = Path(__file__).parent
RUNNER = HERE / "runner.py"
TIME_LIMIT = 20


def load_attacks() -> list[Attack]:
    """All attacks of all files, in the order of the files."""
    for file in sorted(HERE.glob("class_*.py")) + [HERE / "denials_do_not_tell.py", HERE / "residuals.py"]:
        import_module(f"tests.guard.attacks.{file.stem}")
    return [entry for entries in REGISTRY.attacks.values() for entry in entries.values()]


def start(entry: Attack, guard: str, base: Path) -> subprocess.Popen[bytes]:
    """Start the process that plays the attack; its environment names nothing of the test's own."""
    base.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-P", "-W", "ignore", str(RUNNER), entry.file, entry.name, "--guard", guard, "--base", str(base)]
    return subprocess.Popen(
        command,
        env=kept | {"TMPDIR": f"{base}/tmp", "HOME": f"{base}/outside", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def verdict_of(process: subprocess.Popen[bytes], base: Path) -> dict[str, str | None]:
    """Wait for the process and read its verdict; what it does while it ends counts too."""
    try:
        out, err = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return {"verdict": "hung", "stderr": err.decode(errors="replace")[-2000:]}
    lines = [line for line in out.decode(errors="replace").splitlines() if line.startswith('{"verdict"')]
    if not lines or process.returncode != 0:
        return {"verdict": "crashed", "status": str(process.returncode), "stderr": err.decode(errors="replace")[-2000:]}
    result: dict[str, str | None] = json.loads(lines[-1])
    loot = base / "inside" / "loot"
    if loot.exists():
        result |= json.loads(loot.read_text())
    return result | {"stderr": err.decode(errors="replace")[-2000:]}


@cache
def keeps_access_times() -> bool:
    """Whether reading a file shows in its access time here."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(folder)
        with open(ground.plant("probe", "text")) as file:
            file.read()
        return ground.was_read("probe")


def unmet(entry: Attack) -> str:
    """What this machine lacks for the attack to mean anything."""
    for need in entry.needs:
        if need == "root":
            met = os.geteuid() == 0
        elif need.startswith("/"):
            met = os.path.exists(need)
        elif need == "access times":
            met = keeps_access_times()
        else:
            met = find_spec(need) is not None
        if not met:
            return need
    return ""


def meets(expect: Denied | Fruitless | Residual, result: dict[str, str | None]) -> bool:
    """Whether the verdict under the guard is the expected one."""
    if isinstance(expect, Residual):
        return result["verdict"] == "escaped"
    empty_handed = result["verdict"] == "failed" and result["error_type"] is None
    if isinstance(expect, Fruitless):
        return empty_handed
    if result["verdict"] == "denied":
        shapes = (result["code"] or "", result["error_type"] or "")
        return any(shape.startswith(expect.codes) for shape in shapes)
    return expect.or_nothing and empty_handed


ATTACKS = load_attacks()


@pytest.mark.parametrize("entry", ATTACKS, ids=lambda entry: entry.id)
def test_attack(entry: Attack, tmp_path: Path) -> None:
    """The attack works without a guard and meets its expected verdict under one."""
    if not entry.since <= running_version() <= entry.until:
        pytest.skip(f"concerns Python {entry.since} to {entry.until}")
    if lacking := unmet(entry):
        pytest.skip(f"needs {lacking}")
    free, caught = tmp_path / "free", tmp_path / "caught"
    processes = start(entry, "off", free), start(entry, "on", caught)
    without, under = verdict_of(processes[0], free), verdict_of(processes[1], caught)
    shutil.rmtree(tmp_path, ignore_errors=True)
    if not entry.unguarded:
        assert without["verdict"] == "escaped", f"{entry.text}: does nothing even without a guard: {without}"
    assert meets(entry.expect, under), f"{entry.text}: expected {entry.expect}, got {under}"


def test_attacks_know_the_secret_only_from_the_file() -> None:
    """The secret is long enough not to turn up in loot by chance."""
    assert len(Ground.SECRET) > 12


def test_residual_list_is_in_one_place() -> None:
    """What the guard cannot stop is listed in one file and nowhere else."""
    assert {entry.file for entry in ATTACKS if isinstance(entry.expect, Residual)} <= {"residuals"}
