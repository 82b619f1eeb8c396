"""Compare popular packages in every mode, and write the page: ``python -m compat [NAME ...]``.

Run it with an interpreter that has the packages of ``compat/requirements.txt`` and this checkout: ``make compat`` makes
one. With names it writes nothing unless ``--update`` has it replace the stored results of these programs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from compat import page
from compat.expected import Expected

HERE = Path(__file__).parent
IN_PROCESS = ("plain", "idle", "guarded")
AT_ONCE = 6
"""Programs that one host serves: their workers stay until it ends."""
SECONDS = 300
Access = Sequence[dict[str, Any]]


def environment(access: Access = ()) -> dict[str, str]:
    """Return the environment of a run: packages do not ask the network for news."""
    ours = {"PYTHONPATH": str(HERE.parent / "src"), "HF_HUB_OFFLINE": "1", "COMPAT_ACCESS": json.dumps(access)}
    return os.environ | ours


def run(mode: str, program: Path, access: Access = ()) -> dict[str, Any]:
    """Run a program in a process of its own; ``access`` is declared besides its folder."""
    command = [sys.executable, "-P", str(HERE / "running.py"), mode, str(program)]
    try:
        done = subprocess.run(
            command, env=environment(access), cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "Timeout", "text": f"it takes more than {SECONDS} seconds"}
    except (IndexError, ValueError):
        return {"error": "Crash", "text": f"it ended with status {done.returncode}: {done.stderr[-300:]}"}
    return found


def host(programs: list[Path], access: Access = ()) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Run programs in workers of one host; return what the kernel confines them with, and what came of each."""
    command = [sys.executable, "-P", str(HERE / "hosting.py"), *map(str, programs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(access), cwd="/", **pipes) as child:
        printed, said = child.communicate()
    lines = [json.loads(line) for line in printed.decode().splitlines() if line.startswith("{")]
    found = {line.pop("name"): line for line in lines if "name" in line}
    ended = {"error": "Crash", "text": f"the host ended with status {child.returncode}: {said.decode()[-300:]}"}
    layers = next((line["layers"] for line in lines if "layers" in line), {})
    return layers, {name_of(program): found.get(name_of(program), ended) for program in programs}


def name_of(program: Path) -> str:
    """Return the name of a program."""
    return program.stem.removeprefix("use_")


def version_of(name: str) -> str:
    """Return the version of the package that a program uses."""
    if name.startswith("stdlib_"):
        return platform.python_version()
    try:
        return metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def verdict(found: dict[str, Any], plain: dict[str, Any]) -> str:
    """Tell how a run compares with the plain one: ``same``, ``differs``, or the error."""
    if "error" in found:
        return re.sub(r"\bpid=\d+", "pid=N", f"{found['error']}: {found['text']}")
    return "same" if found == plain else "differs"


def compare(programs: list[Path], jobs: int) -> dict[str, Any]:
    """Run all programs in all modes."""
    rows, layers = [], {}
    with ThreadPoolExecutor(jobs) as pool:
        for start in range(0, len(programs), AT_ONCE):
            some = programs[start : start + AT_ONCE]
            ran = {mode: list(pool.map(run, [mode] * len(some), some)) for mode in IN_PROCESS}
            layers, in_workers = host(some)
            for number, program in enumerate(some):
                found = {mode: ran[mode][number] for mode in IN_PROCESS} | {"worker": in_workers[name_of(program)]}
                rows.append(row_of(name_of(program), found))
                print(" ".join((f"{rows[-1]['name']:24}", *(f"{rows[-1][mode]:8}" for mode in page.MODES))), flush=True)
    return {"python": platform.python_version(), "layers": layers, "programs": rows}


def row_of(name: str, found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return a row of the table."""
    plain = found["plain"]
    works = "works" if "value" in plain else verdict(plain, plain)
    row = {mode: verdict(found[mode], plain) for mode in page.MODES if mode != "plain"}
    return {"name": name, "version": version_of(name), "plain": works, **row}


def updated(results: dict[str, Any]) -> dict[str, Any]:
    """Return the stored results with new ones in their place."""
    rows = {row["name"]: row for row in (*page.stored()["programs"]["programs"], *results["programs"])}
    return results | {"programs": [rows[name] for name in sorted(rows)]}


def useless(expected: Expected) -> list[str]:
    """Try what the entries that happened say to declare; return those that do not help, in words."""
    found = []
    for entry in expected.happened():
        program, access = HERE / "programs" / f"use_{entry['program']}.py", entry.get("access")
        if access is None:
            continue
        in_worker = entry["mode"] == "worker"
        ended = host([program], access)[1][name_of(program)] if in_worker else run(entry["mode"], program, access)
        told = verdict(ended, run("plain", program))
        if told != "same":
            found.append(f"{entry['program']}, {entry['mode']}: {told}")
    return found


def main() -> int:
    """Run the programs, write the page, and say what is not explained."""
    parser = argparse.ArgumentParser(prog="python -m compat", description="Compare popular packages in every mode.")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="processes at a time")
    parser.add_argument("--update", action="store_true", help="replace the stored results of the named programs")
    parser.add_argument("names", nargs="*", help="programs, such as numpy; all without any")
    options = parser.parse_args()
    chosen = [HERE / "programs" / f"use_{name}.py" for name in options.names]
    results = compare(chosen or sorted((HERE / "programs").glob("use_*.py")), options.jobs)
    if chosen and options.update:
        results = updated(results)
    is_whole = options.update or not chosen
    expected = Expected()
    unexplained = expected.unexplained(results["programs"])
    outdated = expected.outdated() if is_whole else []
    vain = useless(expected)
    if is_whole:
        page.write_results("programs", results)
        page.write()
    for line in unexplained:
        print(f"compat: not explained: {line}", file=sys.stderr)
    for line in outdated:
        print(f"compat: this no longer happens, so remove it from expected.toml: {line}", file=sys.stderr)
    for line in vain:
        print(f"compat: the access in expected.toml does not help: {line}", file=sys.stderr)
    return 1 if unexplained or outdated or vain else 0


if __name__ == "__main__":
    sys.exit(main())
