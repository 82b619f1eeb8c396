"""Snapshot: immutable, independent of the order of changes, consistent with the rule matcher."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.access.snapshot import Snapshot
from democrai_sandbox.access.targets import TargetParser
from democrai_sandbox.access.values import Changes, DecisionRow
from democrai_sandbox.policy import DecisionCode

TARGETS = (
    "https://a.test",
    "https://a.test/v1",
    "https://a.test/v1/x",
    "a.test",
    "*.test.example",
    "10.0.0.0/8",
    "localhost:80",
)
ASKED = (
    "https://a.test/v1/x/y",
    "https://a.test/v2",
    "b.test.example:443",
    "http://10.1.1.1/",
    "http://127.0.0.1/",
    "a.test",
)


def row(number, target="https://a.test", *, effect="approval", session="", expires=None, ended=False, subject="demo"):
    """Return a decision as nodes load it."""
    scope = "session" if session else "permanent"
    return DecisionRow(
        f"d{number}", "module", subject, "network", "receive", target, effect, scope, session, expires, ended
    )


def ask(snapshot, target, *, session="", now=0):
    """Return the code of the result, or None."""
    found = snapshot.find(("module", "demo"), TargetParser().read("network", "receive", target), session, now)
    return found and found.code


decisions = st.builds(
    row,
    st.integers(0, 8),
    st.sampled_from(TARGETS),
    effect=st.sampled_from(("approval", "denial")),
    session=st.sampled_from(("", "s1")),
    ended=st.booleans(),
).map(lambda made: made if made.effect == "approval" else made._replace(scope="permanent", session_key=""))


def settled(rows):
    """Return the rows in force: the last state of each id, one access per id."""
    latest = {}
    for made in rows:
        first = latest.get(made.id, made)
        latest[made.id] = first._replace(ended=made.ended)
    return [made for made in latest.values() if not made.ended]


@given(st.lists(decisions, max_size=25), st.integers(0, 25))
def test_changes_one_by_one_come_to_the_same_as_all_at_once(rows, asked_at):
    """This also applies if a subject has asked in between, so that its tables exist already."""
    kinds = {}
    rows = [kinds.setdefault(made.id, made)._replace(ended=made.ended) for made in rows]
    step = Snapshot()
    for number, made in enumerate(rows):
        if number == asked_at:
            ask(step, ASKED[0])
        step = step.changed(Changes(number + 1, (made,)))
    whole = Snapshot().changed(Changes(1, tuple(settled(rows))))
    for target in ASKED:
        for session in ("", "s1"):
            assert ask(step, target, session=session) == ask(whole, target, session=session)


def test_an_older_snapshot_is_not_changed_by_a_newer_one():
    """The old snapshot keeps giving the same results."""
    before = Snapshot().changed(Changes(1, (row(1),)))
    assert ask(before, "https://a.test") == DecisionCode.PERMANENT_APPROVAL
    after = before.changed(Changes(2, (row(1, ended=True), row(2, effect="denial"))))
    assert ask(before, "https://a.test") == DecisionCode.PERMANENT_APPROVAL
    assert ask(after, "https://a.test") == DecisionCode.DENIED
    assert (before.generation, after.generation) == (1, 2)


def test_a_decision_ends_at_its_microsecond():
    """It is in force before that microsecond, but not at it."""
    snapshot = Snapshot().changed(Changes(1, (row(1, expires=100),)))
    assert [ask(snapshot, "https://a.test", now=now) is not None for now in (99, 100, 101)] == [True, False, False]


def test_spellings_of_loopback_share_a_key_but_not_a_decision():
    """Ending the approval of one spelling leaves the other in force."""
    both = Snapshot().changed(Changes(1, (row(1, "localhost:80"), row(2, "127.0.0.1:80"))))
    one = both.changed(Changes(2, (row(1, "localhost:80", ended=True),)))
    none = one.changed(Changes(3, (row(2, "127.0.0.1:80", ended=True),)))
    assert [bool(ask(snapshot, "http://localhost/")) for snapshot in (both, one, none)] == [True, True, False]


def test_many_threads_asking_first_lose_nothing():
    """Whichever thread builds the tables, all get the same result, and a concurrent change is not lost."""
    for _ in range(5):
        rows = tuple(row(number, f"https://a.test/{number}") for number in range(100))
        snapshot = Snapshot().changed(Changes(1, rows))
        wrong = []
        start = threading.Barrier(5)

        def look(snapshot=snapshot, wrong=wrong, start=start):
            start.wait()
            wrong.extend(n for n in range(0, 100, 7) if ask(snapshot, f"https://a.test/{n}") is None)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        later = snapshot.changed(Changes(2, (row(999, "https://b.test"),)))
        for thread in threads:
            thread.join()
        assert wrong == []
        assert ask(later, "https://a.test/7") is not None
        assert ask(later, "https://b.test") is not None


def approved(snapshot, now=0, **which):
    """Return the targets of the approvals in force."""
    return sorted(found.target for found in snapshot.approved("network", now, **which))


def test_approvals_in_force_are_listed_without_what_is_denied_expired_or_ended():
    """The list works before and after the subject's first check."""
    rows = (
        row(1, "https://a.test/v1"),
        row(2, "https://b.test/v1", session="monday"),
        row(3, "https://c.test", expires=10),
        row(4, "https://d.test", ended=True),
        row(5, "https://e.test/v1"),
        row(6, "https://e.test", effect="denial"),
        row(7, "*.f.example"),
        row(8, "*.f.example", effect="denial"),
        row(9, "*.g.example"),
        row(10, "https://h.test", subject="other"),
    )
    snapshot = Snapshot().changed(Changes(1, rows))
    mine = ["*.g.example", "https://a.test/v1", "https://b.test/v1", "https://c.test"]
    for _ in range(2):
        assert approved(snapshot, subject=("module", "demo")) == mine
        assert approved(snapshot, 10, subject=("module", "demo")) == mine[:3]
        assert approved(snapshot) == sorted([*mine, "https://h.test"])
        assert approved(snapshot, subject=("module", "none")) == []
        assert ask(snapshot, "https://a.test/v1/x") == DecisionCode.PERMANENT_APPROVAL
    assert set(snapshot.subjects) == {("module", "demo"), ("module", "other")}
    later = snapshot.changed(Changes(2, (row(1, "https://a.test/v1", ended=True),)))
    assert "https://a.test/v1" not in approved(later)
    assert "https://a.test/v1" in approved(snapshot)


def test_an_approval_that_ends_before_its_subject_has_asked_is_not_listed():
    """The last state of each row counts."""
    snapshot = Snapshot().changed(Changes(1, (row(1),))).changed(Changes(2, (row(1, ended=True),)))
    assert approved(snapshot) == []
