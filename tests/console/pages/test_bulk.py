"""Bulk decisions."""

from __future__ import annotations

import re
import sqlite3
from datetime import UTC, datetime

from democrai_sandbox.access.values import DecisionEffect, DecisionFilter, DecisionScope, NewDecision
from democrai_sandbox.access.values import PageRequest as Part
from tests.console.pages.asking import decide, words
from tests.console.pages.reading import Page, form, read
from tests.console.serving import PASSWORD
from tests.services.golden import sentence
from tests.services.rows import rows

ALL = Part()


def preview(client, act, *ids):
    return client.get("/requests/bulk", params={"act": act, "ids": list(ids)})


def send(client, act, *ids, seen=None, **more):
    """Send the deciding form with these requests."""
    seen = ["0" for _ in ids] if seen is None else seen
    return client.post("/requests/bulk/confirm", data={"act": act, "ids": list(ids), "seen": seen, **more})


def confirm(client, act, *ids, **more):
    """Send the deciding form, and return the resulting page."""
    answer = send(client, act, *ids, **more)
    assert answer.status_code == 303, words(answer)
    return client.get(answer.headers["location"])


def listed(page):
    """The ids in the confirmation form."""
    return re.findall(r'name="ids" value="(\w+)"><input type="hidden" name="seen"', page.text)


def heading(page):
    return re.search(r"<h1>(.*)</h1>", page.text)[1]


def numbers(page):
    """The numbers of decided and of all requests in the heading."""
    return [int(number) for number in re.findall(r"\d+", heading(page))]


def states(page):
    """The state of each row, with its note."""
    cells = re.findall(r'<td role="cell" data-label="State">(.*?)</td>', page.text, re.DOTALL)
    return [words(cell).strip() for cell in cells]


def test_the_preview_shows_every_request_and_decides_nothing(desk, ada):
    """A selected row includes all requests for the same access."""
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
    """After the confirmation every row is decided."""
    ids = [desk.ask() for _ in range(3)]
    page = confirm(ada, "deny", *ids, reason="not these")
    sentence("all done", heading(page))
    assert numbers(page) == [3, 3]
    assert [desk.state(one) for one in ids] == ["denied"] * 3
    assert {desk.store.request(one).reason for one in ids} == {"not these"}


def test_one_permanent_approval_answers_all_of_a_group(desk, ada):
    """Requests answered by the first decision are done, not in conflict."""
    ids = [desk.ask("https://together.example/v1", user=user, session=user) for user in ("uma", "ben", "carla")]
    page = confirm(ada, "permanent", *ids)
    assert numbers(page) == [3, 3]
    assert states(page) == ["approved"] * 3
    assert {desk.state(one) for one in ids} == {"approved"}


def test_a_colleagues_decision_is_a_conflict_and_stays(served, desk, ada):
    """A decision between preview and confirmation stays; the others are done."""
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
    """A request without a session is shown with the reason, and not sent."""
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
    """Only three actions exist."""
    one = desk.ask()
    assert preview(ada, act, one).status_code == 422
    assert send(ada, act, one).status_code == 422
    assert desk.state(one) == "pending"


def test_nothing_selected_is_said(desk, ada):
    """No selection, unknown ids and answered requests give a message."""
    done = desk.ask()
    decide(ada, done, "deny")
    assert send(ada, "deny").status_code == 422
    for ids in ((), ("unknown",), ("x" * 500,), (done,)):
        page = preview(ada, "deny", *ids)
        assert page.status_code == 422
        assert listed(page) == []
        sentence("nothing selected", Page(page).parts("notice")[0])


def test_a_reason_that_is_too_long_decides_nothing(desk, ada):
    """The limit is shown, and the input kept."""
    one = desk.ask()
    page = send(ada, "deny", one, reason="y" * 2001)
    assert page.status_code == 422
    assert "2000" in Page(page).parts("notice")[0]
    assert "y" * 2001 in page.text
    assert desk.state(one) == "pending"


def test_who_may_not_decide_is_refused(served, desk):
    """Neither preview nor confirmation works without the right."""
    served.person("uma")
    one = desk.ask(user="uma")
    with served.signed_in("uma") as uma:
        assert preview(uma, "deny", one).status_code == 403
        assert send(uma, "deny", one).status_code == 403
    assert desk.state(one) == "pending"


def test_hostile_rows_are_shown(desk, ada):
    """The preview escapes foreign targets."""
    one = desk.ask("/srv/<b>\u202etxt.exe", operation="execute")
    page = preview(ada, "deny", one)
    assert "<b>" not in page.text.replace("<b>sandbox", "")
    assert "\u202e" not in page.text
    assert "RIGHT-TO-LEFT OVERRIDE" in page.text


def test_a_denial_is_worded_as_one(desk, ada):
    """A denial never looks like an approval, before and after."""
    one = desk.ask("/srv/denied/one", operation="delete")
    before = Page(preview(ada, "deny", one))
    after = Page(confirm(ada, "deny", one))
    for page in (before, after):
        assert "may not delete /srv/denied/one" in page.text
        assert page.parts("yes") == []
    sentence("denying", before.parts("effect")[0])
    sentence("denied", after.parts("effect")[0])
    assert states(ada.get(f"/requests/bulk?act=deny&ids={one}")) == []


def test_the_result_is_a_page_of_its_own(desk, ada):
    """Reloading the result decides nothing again."""
    one, other = desk.ask(), desk.ask()
    answer = send(ada, "deny", one, other)
    assert answer.status_code == 303
    place = answer.headers["location"]
    first, again = ada.get(place), ada.get(place)
    assert numbers(first) == numbers(again) == [2, 2]
    host = desk.store.request(one).access.target
    assert len(desk.store.decisions(DecisionFilter(text=host, live=None), ALL).items) == 1


def test_many_are_undone_together(served, desk, ada):
    """Each decision of the bulk is undone; other decisions stay."""
    ids = [desk.ask("https://undone-together.example/v1", user=user, session=user) for user in ("uma", "ben")]
    ids.append(desk.ask("https://undone-together.example/v2"))
    elsewhere = desk.ask("https://undone-together.example/v3")
    decide(ada, elsewhere, "deny")
    page = confirm(ada, "deny", *ids)
    undo = re.search(r'action="(/requests/bulk/[^"]*/undo[^"]*)"', page.text)[1].replace("&amp;", "&")
    answer = ada.post(undo)
    assert answer.status_code == 303
    after = read(ada, answer.headers["location"])
    assert after.done == "undone"
    assert [desk.state(one) for one in (*ids, elsewhere)] == ["pending"] * 3 + ["denied"]
    assert "/undo?" not in after.source
    sentence("undone", heading(ada.get(answer.headers["location"])))


def wait_again(served, request_id):
    """Have a request wait although it was decided, as a node leaves it that registered it at the same moment."""
    waiting = "state = 'pending', decision_id = NULL, decided_at = NULL, decided_by = '', reason = ''"
    with sqlite3.connect(served.folder / "state" / "sandbox.db") as database:
        database.execute(f"UPDATE access_requests SET {waiting} WHERE id = ?", (request_id,))  # noqa: S608 - no text of others


def test_a_decision_that_is_not_undone_with_the_others_says_why(served, desk, ada):
    """A high risk comes back by a password alone, and nothing over a newer decision; the page says so before, too."""
    risky, newer, plain = "/srv/bulk/restored", "https://bulk-newer.example/v1", "https://bulk-plain.example/v1"
    ids = [desk.ask(risky, operation="delete"), desk.ask(newer), desk.ask(plain)]
    for one, act in zip(ids, ("permanent", "deny"), strict=False):
        assert decide(ada, one, act).status_code == 303
        wait_again(served, one)
    seen = re.findall(r'name="seen" value="(\d+)"', preview(ada, "permanent", *ids).text)
    page = confirm(ada, "permanent", *ids, seen=seen, password=PASSWORD)
    undo = re.search(r'action="(/requests/bulk/[^"]*/undo[^"]*)"', page.text)[1].replace("&amp;", "&")
    made = [desk.store.request(one).decision_id for one in ids]
    assert [f"/decisions/{one}/undo" in Page(page).links for one in made] == [True, False, False]
    access = desk.store.request(ids[1]).access
    desk.store.decide(
        NewDecision(access, DecisionEffect.APPROVAL, DecisionScope.SESSION, "ben", "another"), now=datetime.now(UTC)
    )
    after = read(ada, ada.post(undo).headers["location"])
    assert after.done == "undone_some"
    assert [desk.state(one) for one in ids] == ["approved", "approved", "pending"]
    assert [f"/decisions/{one}/undo" in after.links for one in made] == [True, True, False]
    for number, reason in enumerate(after.parts("why")):
        sentence(f"kept {number}", reason)


def test_many_of_high_risk_take_the_password(desk, ada):
    """One request of high risk needs the password for all."""
    low, high = desk.ask(), desk.ask("/srv/bulk/high", operation="delete")
    assert "password" in Page(preview(ada, "permanent", low, high)).fields
    assert "password" not in Page(preview(ada, "permanent", low)).fields
    assert "password" not in Page(preview(ada, "deny", low, high)).fields
    for password, status in (("", 422), ("wrong", 401)):
        answer = send(ada, "permanent", low, high, password=password, reason="kept")
        assert answer.status_code == status
        assert form(answer, "/confirm")["reason"] == "kept"
        assert {desk.state(one) for one in (low, high)} == {"pending"}
    confirm(ada, "permanent", low, high, password=PASSWORD)
    assert {desk.state(one) for one in (low, high)} == {"approved"}


def test_what_else_is_answered_is_said_before(desk, ada):
    """Requests below a selected one are counted."""
    one = desk.ask("https://reached.example/v1")
    desk.ask("https://reached.example/v1/below", user="ben")
    sentence("also answered", Page(preview(ada, "permanent", one)).parts("effect")[0])


def test_what_was_decided_about_the_same_meanwhile_is_a_conflict(desk, ada):
    """The row stays undecided, with the reason."""
    target = "https://bulk-stale.example/v1"
    one, other = desk.ask(target, session="first"), desk.ask(target, session="second")
    page = preview(ada, "deny", one)
    seen = form(page, "/confirm")["seen"]
    decide(ada, other, "session")
    result = confirm(ada, "deny", one, seen=seen)
    assert numbers(result) == [0, 1]
    assert desk.state(one) == "pending"
    for wrong in ([], ["x"]):
        assert send(ada, "deny", one, seen=wrong).status_code == 422
    assert desk.state(one) == "pending"


def test_the_way_back_keeps_the_filters(desk, ada):
    """The preview links back to the filtered list."""
    one = desk.ask("https://narrowed-bulk.example/v1")
    page = read(ada, f"/requests/bulk?act=deny&ids={one}&text=narrowed-bulk&kind=module")
    assert "/requests?text=narrowed-bulk&kind=module" in page.links
