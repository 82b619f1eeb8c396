"""Run the fuzzers of the parsers in C: `python -m tests.fuzz [--seconds 60] [--runs N] [--keep] [NAME ...]`.

New inputs that reach new code go to build/fuzz/found; `--keep` adds the smallest set of these to the corpus, which is
committed. An input that fails is left in build/fuzz/failures: mend the parser, and add the input to the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import building

CORPUS = building.HERE / "corpus"
FOUND = building.ROOT / "build" / "fuzz" / "found"
FAILURES = building.ROOT / "build" / "fuzz" / "failures"
LONGEST = {"orders": 1024, "paths": 4400}
"""The longest input of each, where 400 bytes are not enough for what is to be reached."""


def arguments(name: str) -> list[str]:
    """Return what the engine is told for a fuzzer, but for how long it runs."""
    words = [f"-max_len={LONGEST.get(name, 400)}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    dictionary = building.HERE / "words" / f"{name}.dict"
    words.append(f"-artifact_prefix={FAILURES / name}-")
    return [*words, *([f"-dict={dictionary}"] if dictionary.exists() else [])]


def run(name: str, program: Path, seconds: int | None, runs: int | None) -> bool:
    """Run one fuzzer and print what came of it; return whether nothing failed."""
    (FOUND / name).mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}"] if seconds else []
    limits += [f"-runs={runs}"] if runs else []
    command = [str(program), str(FOUND / name), str(CORPUS / name), *arguments(name), *limits]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=os.environ | building.OPTIONS, check=False
    )
    executions = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    number = int(executions[1]) if executions else 0
    edges = coverage[-1] if coverage else 0
    print(f"fuzz: {name}: {number:,} executions, {edges} edges, exit status {done.returncode}")
    if done.returncode != 0:
        print(done.stderr[-6000:])
    sys.stdout.flush()
    return done.returncode == 0


def keep(name: str, program: Path) -> None:
    """Make the corpus of a fuzzer the smallest set that reaches as much as it and what was found together."""
    merged = FOUND / f"{name}.merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    command = [str(program), "-merge=1", *arguments(name), str(merged), str(CORPUS / name), str(FOUND / name)]
    subprocess.run(command, capture_output=True, env=os.environ | building.OPTIONS, check=True)
    for path in sorted((CORPUS / name).iterdir()):
        if not path.name.startswith("case-"):  # those that a person wrote, or that failed once, stay
            path.unlink()
    known = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    for path in merged.iterdir():
        content = path.read_bytes()
        if content not in known:
            (CORPUS / name / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(building.NAMES)}")
    parser.add_argument("--seconds", type=int, help="how long each runs")
    parser.add_argument("--runs", type=int, help="how many executions each has")
    parser.add_argument("--keep", action="store_true", help="add to the corpus what reached new code")
    given = parser.parse_args()
    names = tuple(given.names) or building.NAMES
    if unknown := set(names) - set(building.NAMES):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    if why := building.unavailable("clang"):
        print(f"fuzz: {why}; install clang with its runtime (libclang-rt), then run this again", file=sys.stderr)
        return 1
    programs = building.build("clang")
    FAILURES.mkdir(parents=True, exist_ok=True)
    passed = True
    for name in names:
        if given.seconds or given.runs:
            passed = run(name, programs[name], given.seconds, given.runs) and passed
        if given.keep:
            keep(name, programs[name])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
