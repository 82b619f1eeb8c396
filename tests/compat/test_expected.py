"""The list of reviewed differences: each result that differs has an entry, and each entry happens."""

from __future__ import annotations

import pytest

from compat import page
from compat.expected import Expected

ENTRY = """
[[expected]]
program = "a"
mode = "guarded"
result = "ModuleDenied: *"
reason = "It uses ctypes."
declare = "List it."
"""


def row(**results):
    return {
        "name": "a",
        "version": "1",
        "plain": "works",
        "idle": "same",
        "guarded": "same",
        "worker": "same",
        **results,
    }


@pytest.fixture
def expected(tmp_path):
    (tmp_path / "expected.toml").write_text(ENTRY)
    return Expected(tmp_path / "expected.toml")


def test_a_difference_with_an_entry_is_explained(expected):
    assert expected.unexplained([row(guarded="ModuleDenied: sandbox_module_denied:ctypes")]) == []
    assert expected.outdated() == []


def test_a_difference_without_an_entry_is_not_explained(expected):
    assert expected.unexplained([row(worker="differs")]) == ["a, worker: differs"]


def test_an_entry_that_does_not_happen_is_outdated(expected):
    assert expected.unexplained([row()]) == []
    assert expected.outdated() == ["a, guarded: ModuleDenied: *"]


def test_an_entry_without_a_reason_is_refused(tmp_path):
    (tmp_path / "expected.toml").write_text(ENTRY.replace("It uses ctypes.", ""))
    with pytest.raises(ValueError, match="expected.toml"):
        Expected(tmp_path / "expected.toml")


def test_more_failures_than_explained_are_refused():
    counts = {"plain": {"ran": 9, "failed": 0, "skipped": 0}, "guarded": {"ran": 9, "failed": 2, "skipped": 0}}
    one = {"mode": "guarded", "tests": ["t"], "reason": "r", "declare": ""}
    suite = {"name": "s", "version": "1", "counts": counts, "differences": [one]}
    with pytest.raises(ValueError, match="guarded: 2"):
        page.check(suite, ("plain", "guarded"))


def test_the_page_is_made_of_the_stored_results():
    assert page.PAGE.read_text() == page.text()


def test_the_stored_results_are_explained():
    content = page.stored()["programs"]
    expected = Expected()
    assert expected.unexplained(content["programs"]) == []
    assert expected.outdated() == []
