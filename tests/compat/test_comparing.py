"""Comparison of suites in three modes: what counts as a difference, and which one has a reason."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from compat.comparing import FILE, Comparison, Reviewed
from compat.running_suites import Outcomes, Suite

SUITE = Suite("demo", "1.0", "python", "program.py")


def outcomes(**words):
    return Outcomes({test: (word, "SomeError: text") for test, word in words.items()}, {"two": ["code use thing"]})


def comparison(tmp_path, entries, *, plain=None, idle=None, guarded=None, again=None):
    """Compare made-up runs of three tests; `again` is what the second run of a test gives in every mode."""
    path = tmp_path / "differences.toml"
    path.write_text(entries or "accept = []")
    plain = {"one": "ok", "two": "ok", "three": "skipped"} | (plain or {})
    modes = {"plain": plain, "idle": plain | (idle or {}), "guarded": plain | (guarded or {})}
    reviewed = Reviewed(path)

    def run(suite, mode, only=()):
        words = again if only and again else modes[mode]
        return SimpleNamespace(outcomes=outcomes(**words))

    return Comparison(SUITE, "3.11", reviewed, run), reviewed


ENTRY = '[[accept]]\ntest = "t*"\ndenied = "*use thing*"\nreason = "a reason"\ndeclare = "access"\n'


def test_a_difference_with_a_reason_is_explained(tmp_path):
    """It is in the result with its reason, and its entry is used."""
    found, reviewed = comparison(tmp_path, ENTRY, guarded={"two": "failed"})
    assert found.unexplained == []
    assert found.result()["differences"] == [
        {"mode": "guarded", "tests": ["two"], "reason": "a reason", "declare": "access"}
    ]
    assert reviewed.unused(["3.11"]) == []


def test_a_difference_without_a_reason_is_reported(tmp_path):
    """The pattern of the refusal does not match another test."""
    found, reviewed = comparison(tmp_path, ENTRY, guarded={"three": "failed"})
    assert found.unexplained == [("guarded", "three")]
    assert len(reviewed.unused(["3.11"])) == 1


def test_an_idle_guard_has_no_reasons(tmp_path):
    """What it changes is reported, also where an entry would match."""
    found, _ = comparison(tmp_path, ENTRY, idle={"two": "failed"})
    assert found.unexplained == [("idle", "two")]


def test_a_difference_that_does_not_happen_again_is_none(tmp_path):
    """Tests that depend on chance are run again in both modes."""
    found, _ = comparison(tmp_path, "", idle={"one": "failed"}, again={"one": "ok"})
    assert found.unexplained == []


def test_a_test_that_does_not_run_is_a_difference(tmp_path):
    """One that is missing under a guard, because its class could not be prepared."""
    found, _ = comparison(tmp_path, "", guarded={"extra": "failed"})
    assert found.unexplained == [("guarded", "extra")]


def test_a_suite_that_fails_by_itself_compares_nothing(tmp_path):
    """Most of its tests fail without a guard: that is an error, not a result."""
    found, _ = comparison(tmp_path, "", plain={"one": "failed", "two": "failed"})
    assert [mode for mode, _ in found.unexplained] == ["plain"]


def test_counts(tmp_path):
    """Tests, failures and skipped ones of each mode."""
    found, _ = comparison(tmp_path, ENTRY, guarded={"two": "failed"})
    counts = found.result()["counts"]
    assert counts["plain"] == {"ran": 3, "failed": 0, "skipped": 1}
    assert counts["guarded"] == {"ran": 3, "failed": 1, "skipped": 1}


def test_entries_need_a_reason(tmp_path):
    """An entry without one, or with a misspelled field, is an error."""
    for wrong in ('[[accept]]\ntest = "x"\n', '[[accept]]\ntest = "x"\nreason = "y"\ntests = "z"\n'):
        with pytest.raises(ValueError, match="entry"):
            comparison(tmp_path, wrong)


def test_the_reviewed_file_is_well_formed():
    """Each entry of compat/differences.toml has known fields only."""
    assert Reviewed(FILE).entries
