"""``democrai-sandbox approvals``: list and revoke."""

from __future__ import annotations

from tests.cli.goldens import golden


def approved(asked, target, *scope):
    request = asked.wants(target)
    found = asked.data("requests", "approve", request, *(scope or ("--permanent",)), "--yes")
    return found["items"][0]["decision"]["id"]


def is_live(asked, decision, *more):
    return decision in {one["id"] for one in asked.data("approvals", "list", *more)["items"]}


def test_what_is_listed(asked):
    """The list shows approvals with scope, administrator and end, and with --denials the denials."""
    approved(asked, "https://held.example.org/reports/today")
    approved(asked, "https://held.example.org/session", "--session")
    denied = asked.wants("https://held.example.org/never")
    assert asked.says("requests", "deny", denied, "--reason", "no", "--yes").status == 0
    arguments = ("approvals", "list", "--text", "held.example")
    golden("approvals-list.terminal", asked.terminal(*arguments, columns=160).text)
    golden("approvals-list.piped", asked.says(*arguments).out)
    golden("approvals-list-denials.piped", asked.says(*arguments, "--denials").out)
    found = asked.data(*arguments, "--scope", "session")
    assert found["schema"] == "democrai-sandbox/approvals.list/1"
    assert [one["access"]["target"] for one in found["items"]] == ["https://held.example.org/session"]
    none = asked.says(*arguments, "--state", "ended")
    golden("approvals-list-none.piped", none.err)
    assert (none.status, none.out) == (0, "")


def test_revoking_one(asked):
    """A dry run changes nothing; a second revocation is a conflict."""
    request = asked.wants("https://revoked.example.org/one")
    decision = asked.data("requests", "approve", request, "--permanent", "--yes")["items"][0]["decision"]["id"]
    dry = asked.says("approvals", "revoke", decision, "--dry-run")
    golden("approvals-revoke.preview", dry.out)
    assert (dry.status, decision in dry.out) == (0, True)
    assert is_live(asked, decision)
    found = asked.data("approvals", "revoke", decision, "--reason", "over", "--yes")
    assert (found["schema"], found["items"][0]["done"]) == ("democrai-sandbox/approvals.revoke/1", True)
    assert not is_live(asked, decision)
    again = asked.says("approvals", "revoke", decision, "--yes")
    assert again.status == 4
    assert "by admin" in again.out
    assert [state for state in ("approved", "revoked") if request in _listed(asked, state)] == ["revoked"]
    shown = asked.data("requests", "show", request)["request"]
    assert (shown["state"], shown["ended_by"]) == ("revoked", "admin")


def _listed(asked, state):
    return {one["id"] for one in asked.data("requests", "list", "--state", state)["items"]}


def test_revoking_what_filters_choose(asked):
    """The question has the number and the subject; only matching decisions end."""
    chosen = [approved(asked, f"https://chosen.example.org/{name}") for name in ("a", "b")]
    other = approved(asked, "https://unchosen.example.org/c")
    arguments = ("approvals", "revoke", "--subject", "module:wishes", "--text", "//chosen.example")
    refused = asked.terminal(*arguments, typed="\n")
    assert refused.status == 1
    golden("approvals-revoke.question", refused.text)
    assert all(is_live(asked, one) for one in chosen)
    done = asked.terminal(*arguments, typed="yes\n")
    assert done.status == 0
    assert not any(is_live(asked, one) for one in chosen)
    assert is_live(asked, other)
    nothing = asked.says(*arguments, "--yes")
    golden("approvals-revoke-none.piped", nothing.err)
    assert (nothing.status, nothing.out) == (0, "")
