"""Typical programs for a few packages give the same results beside an idle guard, inside a guard and in a worker."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from compat.__main__ import HERE, host, name_of, run, verdict

NAMES = (
    "click",
    "cryptography",
    "httpx",
    "jinja2",
    "jsonschema",
    "numpy",
    "pyyaml",
    "redis",
    "requests",
    "stdlib_concurrency",
    "stdlib_files",
    "uvloop",
)
PROGRAMS = (
    *(HERE / "programs" / f"use_{name}.py" for name in NAMES),
    Path(__file__).with_name("use_module_subclass.py"),
)


@cache
def plain(program):
    return run("plain", program)


@pytest.fixture(scope="module")
def in_workers():
    return host(list(PROGRAMS))[1]


@pytest.mark.parametrize("mode", ["idle", "guarded"])
@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_a_program_works_in_a_process_with_a_guard(program, mode):
    assert "value" in plain(program)
    assert verdict(run(mode, program), plain(program)) == "same"


def test_programs_work_in_confined_workers(in_workers):
    verdicts = {name_of(program): verdict(in_workers[name_of(program)], plain(program)) for program in PROGRAMS}
    assert verdicts == dict.fromkeys(verdicts, "same")
