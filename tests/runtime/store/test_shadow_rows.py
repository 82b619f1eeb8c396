"""Shadow runs: one per subject at a time, bounded findings that are summed, and an audit record of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from democrai_sandbox.access.store import open_store
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.store import (
    EntryExists,
    EntryUnknown,
    ShadowDifference,
    ShadowEffect,
    ShadowRun,
    registration_rows,
)
from tests.access.store.samples import NOW, at

REPORTS = ShadowRun("run1", Subject.parse("module:reports"), '{"name": "reports"}\udc80', NOW, "ada")
READ = ShadowDifference(
    ShadowEffect.DENIED, "filesystem", "read", "/srv/sales\udc80", 2, NOW, at(1), "uma", ("module:reports",)
)


def test_a_run_is_started_ended_and_audited(store, other, url):
    """A second one of the same subject waits for the end of the first; every change increases the generation."""
    access = open_store(url)
    before, (known, _) = access.generation(), access.audit_head()
    store.start_shadow(REPORTS)
    assert access.generation() == before + 1
    assert other.shadow("run1") == REPORTS
    with pytest.raises(EntryExists, match="module:reports"):
        other.start_shadow(replace(REPORTS, id="run2"))
    other.start_shadow(replace(REPORTS, id="run3", subject=Subject.parse("engine:reports")))
    assert store.end_shadow("run1", actor="bob", now=at(9)) is True
    assert other.end_shadow("run1", actor="eve", now=at(10)) is False
    assert other.shadow("run1") == replace(REPORTS, ended_at=at(9), ended_by="bob")
    assert [run.id for run in store.shadows(running=True)] == ["run3"]
    assert [run.id for run in store.shadows()] == ["run3", "run1"]
    store.start_shadow(replace(REPORTS, id="run4"))
    kept = [record for record in access.audit_rows(known) if record.after["subject"] == "module:reports"]
    assert [(record.action.value, record.actor, record.after["shadow_run"]) for record in kept] == [
        ("shadow_started", "ada", "run1"),
        ("shadow_ended", "bob", "run1"),
        ("shadow_started", "ada", "run4"),
    ]
    for ask in (store.shadow, lambda run_id: store.end_shadow(run_id, actor="ada", now=NOW)):
        with pytest.raises(EntryUnknown):
            ask("run9")
    access.close()


def test_findings_add_up_and_are_bounded(store, other, monkeypatch):
    """Equal findings are one row with the last example; those beyond the limit are counted, also after the end."""
    monkeypatch.setattr(registration_rows, "MOST_FINDINGS", 3)
    store.start_shadow(REPORTS)
    store.add_findings("run1", [READ, replace(READ, effect=ShadowEffect.ALLOWED, target="/a", count=1)])
    later = replace(READ, count=5, first_seen=at(2), last_seen=at(3), user_id="bob", chain=("module:reports", "tool:x"))
    other.add_findings("run1", [later])
    added = replace(later, count=7, first_seen=NOW)
    assert store.findings("run1") == (added, replace(READ, effect=ShadowEffect.ALLOWED, target="/a", count=1))
    many = [replace(READ, target=f"/{number}", count=10) for number in range(3)]
    store.end_shadow("run1", actor="ada", now=at(9))
    other.add_findings("run1", [*many, replace(READ, effect=ShadowEffect.ALLOWED, target="", count=4)])
    assert len(store.findings("run1")) == 3
    assert (store.shadow("run1").other_denied, store.shadow("run1").other_allowed) == (20, 4)
    assert store.finding_counts() == {"run1": (2, 1)}
    other.add_findings("forgotten", [READ])


def test_old_runs_are_forgotten(store, monkeypatch):
    """Only the latest runs of one subject are kept, with their findings."""
    monkeypatch.setattr(registration_rows, "_MOST_ENDED", 2)
    for number in range(4):
        store.start_shadow(replace(REPORTS, id=f"run{number}"))
        store.add_findings(f"run{number}", [READ])
        store.end_shadow(f"run{number}", actor="ada", now=at(number))
    assert [run.id for run in store.shadows()] == ["run3", "run2", "run1"]
    assert store.finding_counts().keys() == {"run1", "run2", "run3"}
