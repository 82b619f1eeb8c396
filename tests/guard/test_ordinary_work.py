"""Ordinary work is not affected by a guard: declared access works in every usual way."""

from __future__ import annotations

import inspect

import pytest

from tests.guard.harness import Case
from tests.guard.workload import concurrency, data, files, folders, language, libraries
from tests.guard.workload.run import run_all

WORKLOADS = {
    module.__name__.rpartition(".")[2]: module for module in (files, folders, data, language, concurrency, libraries)
}
ITEMS = [
    (name, item)
    for name, module in WORKLOADS.items()
    for item, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not item.startswith("_")
]
OPTIONAL = {
    "numpy",
    "pydantic",
    "requests",
    "certifi",
    "jinja2",
    "yaml",
    "attrs",
    "hypothesis",
    "tzdata",
    "packaging",
    "pluggy",
    "urllib3",
    "pygments",
}


def one_root(case):
    """Return the guard of every workload: one root and the runtime paths."""
    return {"subject": "demo", "allowed_paths": [str(case.root)]}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_ordinary_work(tmp_path, workload):
    """Ordinary work succeeds inside a guard with one root and the runtime paths."""
    case = Case(tmp_path)
    items = [item for name, item in ITEMS if name == workload]
    outcomes = case.run(run_all, WORKLOADS[workload].__file__, items, one_root(case))
    missing = {item: outcome for item, outcome in outcomes.items() if outcome.startswith("missing ")}
    assert {item: outcome for item, outcome in outcomes.items() if outcome != "ok" and item not in missing} == {}
    assert {outcome.removeprefix("missing ") for outcome in missing.values()} <= OPTIONAL


def test_work_below_a_symlinked_root(tmp_path):
    """A root that is a symbolic link works like its target folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    case = Case(tmp_path)
    for module in (files, folders):
        items = [item for workload, item in ITEMS if workload == module.__name__.rpartition(".")[2]]
        seen = case.run(run_all, module.__file__, items, one_root(case))
        assert {item: outcome for item, outcome in seen.items() if outcome != "ok"} == {}


def test_the_same_work_without_a_guard(tmp_path):
    """The work itself is valid: it passes unguarded, except where it detects a guard."""
    wrong = {}
    for name, module in WORKLOADS.items():
        (tmp_path / name).mkdir()
        items = [item for workload, item in ITEMS if workload == name]
        seen = Case(tmp_path / name).run(run_all, module.__file__, items, None)
        wrong |= {
            item: outcome for item, outcome in seen.items() if outcome != "ok" and not outcome.startswith("missing ")
        }
    assert set(wrong) == {"own_dir_opener"}, wrong
