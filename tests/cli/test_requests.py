"""``democrai-sandbox requests``: list, show and decide."""

from __future__ import annotations

import pytest

from tests.cli.goldens import code_of, golden


def state_of(asked, request):
    return asked.data("requests", "show", request)["request"]["state"]


def test_what_is_listed(asked):
    """The list is the same in a terminal and in a pipe; filters work, and a limited list says so."""
    for path in ("/reports/2026/september/summary", "/today"):
        asked.wants(f"https://listed.example.org{path}")
    arguments = ("requests", "list", "--text", "listed.example")
    golden("requests-list.terminal", asked.terminal(*arguments).text)
    golden("requests-list.piped", asked.piped(*arguments).out)
    short = asked.says(*arguments, "-n", "1")
    assert short.out.count("listed.example.org") == 1
    golden("requests-list-more.piped", short.err)
    found = asked.data(*arguments)
    assert found["schema"] == "democrai-sandbox/requests.list/1"
    assert [one["access"]["target"][-5:] for one in found["items"]] == ["today", "mmary"]
    assert found["has_more"] is False
    assert asked.data(*arguments, "--newer-than", "1h", "--user", "uma", "--kind", "module")["items"] == found["items"]
    nothing = asked.says(*arguments, "--older-than", "1h")
    golden("requests-list-none.piped", nothing.err)
    assert (nothing.status, nothing.out) == (0, "")


def test_what_is_grouped(asked):
    """All requests for the same access are one row, with the risk."""
    asked.wants("https://grouped.example.org/a")
    arguments = ("requests", "list", "--grouped", "--text", "grouped.example")
    golden("requests-list-grouped.piped", asked.says(*arguments).out)
    found = asked.data(*arguments)
    assert (found["schema"], len(found["items"])) == ("democrai-sandbox/requests.list-grouped/1", 1)


def test_what_is_shown(asked):
    """One request with its facts, possible targets and history."""
    request = asked.wants("https://shown.example.org/reports/today")
    golden("requests-show.terminal", asked.terminal("requests", "show", request).text)
    golden("requests-show.piped", asked.says("requests", "show", request).out)
    assert asked.data("requests", "show", request)["schema"] == "democrai-sandbox/requests.show/1"


@pytest.mark.parametrize(
    ("scope", "kind", "ends"),
    [(("--session",), "session", False), (("--permanent",), "permanent", False), (("--for", "2h"), "permanent", True)],
    ids=["session", "permanent", "for"],
)
def test_approving(asked, scope, kind, ends):
    """The chosen scope is stored; a dry run stores nothing."""
    request = asked.wants(f"https://approved.example.org/{scope[0][2:]}")
    dry = asked.says("requests", "approve", request, *scope, "--dry-run")
    golden(f"requests-approve-{kind}-{ends}.preview", dry.out)
    assert dry.status == 0
    assert state_of(asked, request) == "pending"
    found = asked.data("requests", "approve", request, *scope, "--reason", "for the report", "--yes")
    assert (found["schema"], found["dry_run"]) == ("democrai-sandbox/requests.approve/1", False)
    decision = found["items"][0]["decision"]
    assert (decision["scope"], decision["reason"], decision["expires_at"] is not None) == (kind, "for the report", ends)


def test_a_broader_target(asked):
    """--target approves a covering target; another one is refused by the node."""
    request = asked.wants("https://broad.example.org/reports/today")
    other = asked.says("requests", "approve", request, "--permanent", "--target", "https://else.example.org", "--yes")
    assert (other.status, other.out) == (1, "")
    assert other.err.startswith("invalid_input: ")
    assert state_of(asked, request) == "pending"
    done = asked.says("requests", "approve", request, "--permanent", "--target", "https://broad.example.org", "--yes")
    assert done.status == 0
    assert "module:wishes receive https://broad.example.org: " in done.out
    (made,) = asked.data("approvals", "list", "--text", "broad.example.org")["items"]
    assert (made["access"]["target"], made["scope"]) == ("https://broad.example.org", "permanent")


def test_the_question_repeats_what_is_decided(asked):
    """A terminal asks once, with the access in the question; no changes nothing, yes decides."""
    request = asked.wants("https://question.example.org/today")
    refused = asked.terminal("requests", "deny", request, "--reason", "not now", typed="n\n")
    assert refused.status == 1
    golden("requests-deny.refused", refused.text)
    assert state_of(asked, request) == "pending"
    done = asked.terminal("requests", "deny", request, "--reason", "not now", typed="y\n")
    assert done.status == 0
    golden("requests-deny.confirmed", done.text)
    assert state_of(asked, request) == "denied"


def test_a_conflict_says_who_was_first(asked):
    """An answered request ends with 4 and the first decision, and changes nothing."""
    request = asked.wants("https://conflict.example.org/today")
    assert asked.says("requests", "deny", request, "--reason", "no", "--yes").status == 0
    for extra in ((), ("--dry-run",)):
        late = asked.says("requests", "approve", request, "--permanent", "--yes", *extra)
        assert (late.status, late.out) == (4, "")
        assert code_of(late.err) == "external_access_conflict"
        assert f" {request} " in late.err and " admin " in late.err
    golden("requests-approve-conflict.piped", late.err)
    assert state_of(asked, request) == "denied"


def test_many_at_once(asked):
    """Many requests are decided separately: preview, results, and the worst status."""
    waiting = [asked.wants(f"https://many.example.org/{name}") for name in ("a", "b")]
    decided = asked.wants("https://many.example.org/c")
    assert asked.says("requests", "deny", decided, "--reason", "no", "--yes").status == 0
    arguments = ("requests", "approve", *waiting, decided, "--permanent")
    preview = asked.says(*arguments, "--dry-run")
    assert preview.status == 4
    golden("requests-approve-many.preview", preview.out)
    assert {state_of(asked, one) for one in waiting} == {"pending"}
    asking = asked.terminal(*arguments, typed="n\n")
    golden("requests-approve-many.question", asking.text)
    done = asked.says(*arguments, "--yes")
    assert done.status == 4
    golden("requests-approve-many.done", done.out)
    assert {state_of(asked, one) for one in waiting} == {"approved"}


def test_one_that_does_not_exist(asked):
    """An unknown id ends with 1 and is named."""
    done = asked.says("requests", "show", "01zzzzzzzzzzzzzzzzzzzzzzzz")
    assert (done.status, done.out) == (1, "")
    assert "01zzzzzzzzzzzzzzzzzzzzzzzz" in done.err
    golden("requests-show-none.piped", done.err)
