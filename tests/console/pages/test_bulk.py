"""Deciding about many requests at once."""

from __future__ import annotations

import re

from tests.console.pages.asking import decide, words
from tests.console.pages.reading import Page
from tests.services.golden import sentence
from tests.services.rows import rows


def preview(client, act, *ids):
    return client.post("/requests/bulk", data={"act": act, "ids": list(ids)})


def confirm(client, act, *ids, reason=""):
    return client.post("/requests/bulk/confirm", data={"act": act, "ids": list(ids), "reason": reason})


def listed(page):
    """The ids that the confirmation would send."""
    return re.findall(r'name="ids" value="(\w+)"', page.text)


def heading(page):
    return re.search(r"<h1>(.*)</h1>", page.text)[1]


def numbers(page):
    """The numbers in the heading: how many were decided, of how many."""
    return [int(number) for number in re.findall(r"\d+", heading(page))]


def states(page):
    """The state that each row shows, with its remark."""
    cells = re.findall(r'<td role="cell" data-label="State">(.*?)</td>', page.text, re.DOTALL)
    return [words(cell).strip() for cell in cells]


def test_the_preview_shows_every_request_and_decides_nothing(desk, ada):
    """A selected row stands for all who wait for the same: each of them is listed before anything happens."""
    target = "https://previewed.example/v1"
    theirs = [desk.ask(target, user=user, session=user) for user in ("uma", "ben", "carla")]
    single = desk.ask("https://single.example/v1")
    page = preview(ada, "deny", theirs[-1], single)
    assert page.status_code == 200
    assert "4" in heading(page)
    assert sorted(listed(page)) == sorted([*theirs, single])
    for user in ("uma", "ben", "carla"):
        assert user in words(page)
    assert {desk.state(one) for one in (*theirs, single)} == {"pending"}


def test_the_result_says_what_came_of_each(desk, ada):
    """After the confirmation every row is decided, and says so."""
    ids = [desk.ask() for _ in range(3)]
    page = confirm(ada, "deny", *ids, reason="not these")
    sentence("all done", heading(page))
    assert numbers(page) == [3, 3]
    assert [desk.state(one) for one in ids] == ["denied"] * 3
    assert {desk.store.request(one).reason for one in ids} == {"not these"}


def test_one_permanent_approval_answers_all_of_a_group(desk, ada):
    """Requests of others that the first decision answered are done, not in conflict."""
    ids = [desk.ask("https://together.example/v1", user=user, session=user) for user in ("uma", "ben", "carla")]
    page = confirm(ada, "permanent", *ids)
    assert numbers(page) == [3, 3]
    assert states(page) == ["done"] * 3
    assert {desk.state(one) for one in ids} == {"approved"}


def test_a_colleagues_decision_is_a_conflict_and_stays(served, desk, ada):
    """What somebody decided between preview and confirmation is left as it is; the others are done."""
    first, second = desk.ask(), desk.ask()
    page = preview(ada, "permanent", first, second)
    with served.signed_in() as colleague:
        decide(colleague, first, "deny")
    result = confirm(ada, "permanent", *listed(page))
    assert numbers(result) == [1, 2]
    sentence("conflict", "\n".join(sorted(states(result))))
    assert desk.state(first) == "denied"
    assert desk.state(second) == "approved"


def test_without_a_session_a_row_is_skipped(desk, ada):
    """What cannot be approved for a session is in the preview with the reason, and is not sent."""
    with_one, without = desk.ask(), desk.ask(session="")
    page = preview(ada, "session", with_one, without)
    assert listed(page) == [with_one]
    sentence("without a session", "\n".join(sorted(states(page))))
    result = confirm(ada, "session", with_one, without)
    assert numbers(result) == [1, 2]
    assert desk.state(without) == "pending"
    assert desk.state(with_one) == "approved_for_session"


@rows("act", ["", "approve", "revoke"])
def test_an_unknown_act_decides_nothing(desk, ada, act):
    """Only the three acts exist."""
    one = desk.ask()
    assert preview(ada, act, one).status_code == 422
    assert confirm(ada, act, one).status_code == 422
    assert desk.state(one) == "pending"


def test_nothing_selected_is_said(desk, ada):
    """No selection, unknown ids and decided ones leave nothing to do."""
    done = desk.ask()
    decide(ada, done, "deny")
    for ids in ((), ("unknown",), ("x" * 500,), (done,)):
        page = preview(ada, "deny", *ids)
        assert page.status_code == 422
        assert listed(page) == []
        sentence("nothing selected", Page(page).parts("notice")[0])


def test_a_reason_that_is_too_long_decides_nothing(desk, ada):
    """The limit is said, and what was written is kept."""
    one = desk.ask()
    page = confirm(ada, "deny", one, reason="y" * 2001)
    assert page.status_code == 422
    assert "2000" in Page(page).parts("notice")[0]
    assert "y" * 2001 in page.text
    assert desk.state(one) == "pending"


def test_who_may_not_decide_is_refused(served, desk):
    """Neither preview nor confirmation is for people who may not decide."""
    served.person("uma")
    one = desk.ask(user="uma")
    with served.signed_in("uma") as uma:
        assert preview(uma, "deny", one).status_code == 403
        assert confirm(uma, "deny", one).status_code == 403
    assert desk.state(one) == "pending"


def test_hostile_rows_are_shown(desk, ada):
    """The preview shows targets of others as every page does."""
    one = desk.ask("/srv/<b>\u202etxt.exe", operation="execute")
    page = preview(ada, "deny", one)
    assert "<b>" not in page.text.replace("<b>sandbox", "")
    assert "\u202e" not in page.text
    assert "RIGHT-TO-LEFT OVERRIDE" in page.text
