"""``python -m tests.services.affected [FILE ...]``: runs the tests that changed files affect, nearest first.

Without files, takes those that differ from the last commit (with a clean tree: those of the last commit). Tests are
ordered by how many imports lie between them and a change, and are run until the time limit is reached; the last line
says how many were left out. ``make test`` runs everything.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.services.parallel import LARGEST

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "democrai_sandbox"
SECONDS = 55
UNKNOWN = 1.0
"""Seconds that a test file is taken to need while it has never been run."""
CACHE = ROOT / ".pytest_cache" / "v" / "democrai"
OTHER = (
    ("src/democrai_sandbox/guard/_core/", "tests/guard/"),
    ("src/democrai_sandbox/kernel/_native/", "tests/kernel/"),
    ("src/democrai_sandbox/console/", "tests/console/"),
    ("src/democrai_sandbox/manifests/schemas/", "tests/manifests/"),
    ("docs/", "tests/docs/"),
    ("examples/", "tests/test_"),
    ("examples/", "tests/runtime/test_examples.py"),
    ("deploy/", "tests/cluster/test_deploy.py"),
    ("scripts/", "tests/scripts/"),
    ("Makefile", "tests/scripts/"),
    ("pyproject.toml", "tests/test_packaging.py"),
    ("README.md", "tests/docs/"),
    ("SECURITY.md", "tests/docs/"),
    ("tests/golden/", "tests/"),
)
"""Files that nothing imports, and the tests that read them."""


def changed_files() -> list[str]:
    """Return the files that differ from the last commit, or those of the last commit."""
    told = _git("status", "--porcelain", "--untracked-files=all").splitlines()
    files = [line[3:].split(" -> ")[-1].strip('"') for line in told]
    return files or _git("show", "--name-only", "--format=", "HEAD").splitlines()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def module_name(file: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    parts = file.relative_to(ROOT / "src" if file.is_relative_to(ROOT / "src") else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Imports:
    """The modules that each module of the sources and tests imports; what was read is kept between runs."""

    def __init__(self) -> None:
        self.files = {
            module_name(file): file for top in ("src", "tests", "bench") for file in (ROOT / top).rglob("*.py")
        }
        kept = CACHE / "imports.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        read = {}
        for name, file in self.files.items():
            state = f"{file.stat().st_mtime_ns} {file.stat().st_size}"
            old = known.get(name)
            read[name] = old if old and old[0] == state else [state, sorted(_imported(file, name))]
        if read != known:
            CACHE.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(read))
        self.importers = defaultdict(set)
        for name, (_, imported) in read.items():
            for other in imported:
                # Either a module, or a name in one.
                found = other if other in self.files else other.rpartition(".")[0]
                if found in self.files:
                    self.importers[found].add(name)

    def distances(self, starts: set[str]) -> dict[str, int]:
        """Return the modules that import these, with the number of steps."""
        found = dict.fromkeys(starts, 0)
        layer = set(starts)
        while layer:
            layer = {name for start in layer for name in self.importers[start]} - found.keys()
            found |= dict.fromkeys(layer, max(found.values()) + 1)
        return found


def _imported(file: Path, name: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return {one for one in found if one.startswith((PACKAGE, "tests.", "bench."))}


def affected_tests(changed: list[str]) -> list[Path]:
    """Return the test files that depend on changed files, nearest first."""
    imports = Imports()
    starts = {module_name(ROOT / file) for file in changed if file.endswith(".py") and (ROOT / file).exists()}
    distances = imports.distances(starts & imports.files.keys())
    tests = {file: 100 for file in imports.files.values() if file.name.startswith("test_")}
    found = {}
    for name, steps in distances.items():
        file = imports.files[name]
        if file in tests:
            found[file] = 2 * steps + (0 if _is_near(file, changed) else 1)
    for file in tests:
        where = str(file.relative_to(ROOT))
        folder_changed = any(_is_shared(one) and where.startswith(f"{Path(one).parent}/") for one in changed)
        reads = any(
            one.startswith(start) and where.startswith(tests_at) for one in changed for start, tests_at in OTHER
        )
        if _is_mirror(where, changed):
            found[file] = 0
        elif folder_changed or (reads and not where.endswith("test_packaging.py")):
            found.setdefault(file, 5)
        elif _is_near(file, changed):
            found.setdefault(file, 6)
    return sorted(found, key=lambda file: (found[file], file))


def _is_shared(file: str) -> bool:
    """Return whether a changed file is one that its folder's tests get without importing it."""
    return file.startswith("tests/") and (file.endswith("conftest.py") or not file.endswith(".py"))


def _is_mirror(test: str, changed: list[str]) -> bool:
    """Return whether a test file is named after a changed file."""
    for one in changed:
        inner = Path(one.removeprefix(f"src/{PACKAGE}/"))
        if one.startswith("src/") and test == f"tests/{inner.parent}/test_{inner.stem}.py":
            return True
    return False


def _is_near(test: Path, changed: list[str]) -> bool:
    """Return whether a test belongs to the package of a changed source."""
    packages = {Path(one).parts[2] for one in changed if one.startswith(f"src/{PACKAGE}/") and len(Path(one).parts) > 3}
    return test.relative_to(ROOT / "tests").parts[0] in packages


def durations() -> dict[str, float]:
    """Return how long each test file took in earlier runs, in all."""
    known = CACHE / "durations-{}.{}".format(*sys.version_info)
    found = defaultdict(float)
    for test, seconds in (json.loads(known.read_text()) if known.exists() else {}).items():
        found[test.split("::")[0]] += seconds
    return found


def main(arguments: list[str]) -> int:
    """Run the affected tests; the exit status is that of pytest."""
    parser = argparse.ArgumentParser(prog="make check", description=__doc__)
    parser.add_argument("files", nargs="*", help="changed files; those of git unless named")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for the tests (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the test files and run nothing")
    options = parser.parse_args(arguments)
    changed = options.files or changed_files()
    tests = [str(file.relative_to(ROOT)) for file in affected_tests(changed)]
    print(f"check: {len(changed)} changed files affect {len(tests)} test files")
    if options.list or not tests:
        print("\n".join(tests))
        return 0
    workers = os.cpu_count() or 1
    known = durations()
    chosen, left = [], options.seconds * workers
    for test in tests:
        if left > 0:
            chosen.append(test)
            left -= min(known.get(test, UNKNOWN), LARGEST * options.seconds * workers)
    limits = ["--workers", str(workers), "--seconds", str(options.seconds * workers)]
    status = subprocess.run([sys.executable, "-m", "pytest", "-q", *limits, *chosen], cwd=ROOT).returncode
    if len(chosen) < len(tests):
        print(f"check: {len(tests) - len(chosen)} affected test files were left out; `make test` runs them")
    return 0 if status == 5 else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
