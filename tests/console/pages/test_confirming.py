"""Permanent approvals: shown before and after, and confirmed by a second click or the password."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.console.pages.asking import decide, words
from tests.console.pages.reading import Page, form, read
from tests.console.serving import PASSWORD, serving
from tests.console.sessions import enter
from tests.services.golden import sentence
from tests.services.rows import rows


def ask(client, request_id, **more):
    """Press "Approve permanently" on the page of a request."""
    filled = form(client.get(f"/requests/{request_id}"), "/decide")
    return client.post(f"/requests/{request_id}/decide", data={**filled, "act": "permanent", **more})


def confirm(client, answer, **more):
    """Press the button of the confirmation page."""
    filled = form(answer, "/decide")
    return client.post(f"/requests/{answer.url.path.split('/')[2]}/decide", data={**filled, "act": "permanent", **more})


@pytest.fixture
def three(desk, request):
    """A request, one of another user for the same access, and one below it."""
    target = f"https://three.example/{request.node.name}"
    users = (("uma", target), ("ben", target), ("cleo", f"{target}/below"))
    return [desk.ask(where, user=user, session=user) for user, where in users]


def test_one_click_decides_nothing(desk, ada, three):
    """The first click shows scope, duration and the other answered requests."""
    answer = ask(ada, three[0])
    assert answer.status_code == 200
    assert [desk.state(one) for one in three] == ["pending"] * 3
    (effect,) = Page(answer).parts("effect")
    sentence("effect before", effect)
    assert "password" not in Page(answer).fields
    done = confirm(ada, answer)
    assert done.status_code == 303
    assert [desk.state(one) for one in three] == ["approved"] * 3


def test_the_page_after_says_what_was_done_and_undoes_it(desk, ada, three):
    """The page repeats the effect and offers the undo, which reopens all three."""
    answer = decide(ada, three[0], "permanent", reason="a slip")
    page = read(ada, answer.headers["location"])
    assert page.done == "approved"
    sentence("effect after", page.parts("yes")[0])
    undo = next(link for link in page.links if link.endswith("/undo"))
    sentence("undo", read(ada, undo).between("<h1>", "<form"))
    assert [desk.state(one) for one in three] == ["approved"] * 3
    undone = ada.post(undo)
    assert undone.status_code == 303
    assert read(ada, undone.headers["location"]).done == "undone"
    assert [desk.state(one) for one in three] == ["pending"] * 3
    assert ada.post(undo).status_code == 409


@rows("act", ["session", "deny"])
def test_other_decisions_say_what_they_do_too(desk, ada, act):
    """Their effect is shown before and after, and can be undone."""
    one = desk.ask(f"https://effect-of-{act}.example/v1")
    before = read(ada, f"/requests/{one}")
    sentence("effects of the buttons", before.parts("effects")[0])
    answer = decide(ada, one, act)
    page = read(ada, answer.headers["location"])
    sentence(f"effect of {act}", page.parts("yes")[0])
    assert ada.post(next(link for link in page.links if link.endswith("/undo"))).status_code == 303
    assert desk.state(one) == "pending"


def test_undoing_puts_back_what_was_replaced(desk, ada):
    """Undoing an approval restores the replaced denial."""
    one = desk.ask("https://put-back.example/v1")
    denial = decide(ada, one, "deny").headers["location"].rpartition("about=")[2]
    path = f"/decisions/{denial}/approve"
    made = ada.post(path, data=form(ada.get(path), "/approve")).headers["location"]
    undo = next(link for link in read(ada, made).links if link.endswith("/undo"))
    assert "put-back.example" in " ".join(read(ada, undo).parts("panel"))
    assert ada.post(undo).status_code == 303
    assert desk.store.decision(denial).ended_at is None


def test_a_high_risk_takes_the_password(desk, ada):
    """Without the right password nothing is decided, and the input is kept."""
    one = desk.ask("/srv/data/table.csv", operation="delete")
    answer = ask(ada, one, reason="to be kept", lifetime="86400")
    assert "password" in Page(answer).fields
    for password, status in (("", 422), ("not the password", 401)):
        again = confirm(ada, answer, password=password)
        assert again.status_code == status
        assert Page(again).error("password")
        assert form(again, "/decide")["reason"] == "to be kept"
        assert form(again, "/decide")["lifetime"] == "86400"
        assert desk.state(one) == "pending"
    assert confirm(ada, again, password=PASSWORD).status_code == 303
    assert desk.state(one) == "approved"
    assert desk.store.request(one).reason == "to be kept"


def test_guesses_of_the_password_are_slowed_down(served, desk):
    """After failures the right password has to wait, too."""
    cookie, _ = enter(served.accounts, served.person("guess", role="super").id)
    one = desk.ask("/srv/data/guessed.csv", operation="delete")
    with served.client(cookies=cookie) as client:
        statuses = [decide(client, one, "permanent", password="wrong").status_code for _ in range(6)]
        assert statuses[:5] == [401] * 5
        answer = decide(client, one, "permanent")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
    assert desk.state(one) == "pending"


def test_a_denial_and_a_session_take_no_password(desk, ada):
    """Only permanent approvals need it."""
    for act in ("session", "deny"):
        one = desk.ask(f"/srv/data/{act}.csv", operation="delete")
        assert decide(ada, one, act, password="").status_code == 303


def test_unasked_approvals_take_the_password_too(desk, ada):
    """Approvals from an explanation, or instead of a denial, need it."""
    rule = {"subject": "module:weather", "access": "filesystem:delete", "target": "/srv/unasked", "effect": "approval"}
    asking = ada.post("/explain/decide", data=rule)
    filled = {**form(asking, "/explain/decide"), "confirmed": "yes"}
    assert ada.post("/explain/decide", data=filled).status_code == 422
    assert ada.post("/explain/decide", data={**filled, "password": PASSWORD}).status_code == 303
    one = desk.ask("/srv/denied-first", operation="delete")
    denial = decide(ada, one, "deny").headers["location"].rpartition("about=")[2]
    path = f"/decisions/{denial}/approve"
    filled = form(ada.get(path), "/approve")
    assert ada.post(path, data=filled).status_code == 422
    assert ada.post(path, data={**filled, "password": PASSWORD}).status_code == 303


def test_a_session_takes_the_api_no_way_round(served, desk):
    """A session needs a recent password in the API for a high risk; a token does not."""
    rita = served.person("rita", role="super")
    stale, _ = enter(served.accounts, rita.id, confirmed=timedelta(minutes=20))
    one, low = desk.ask("/srv/data/api.csv", operation="delete"), desk.ask()
    with served.client(cookies=stale) as client:
        bulk = {"request_ids": [one], "act": "permanent"}
        unasked = {"subject": "module:weather", "resource_type": "filesystem", "operation": "delete"}
        for path, body in (
            (f"/api/v1/requests/{one}/approve", {}),
            ("/api/v1/requests/decide", bulk),
            ("/api/v1/decisions", {**unasked, "target": "/srv/data/api", "effect": "approval"}),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "confirmation_needed"), path
        assert client.post(f"/api/v1/requests/{low}/approve", json={}).status_code == 200
        assert desk.state(one) == "pending"
    with served.bearer(rita) as machine:
        assert machine.post(f"/api/v1/requests/{one}/approve", json={}).status_code == 200


def test_the_configuration_turns_the_password_off(tmp_path):
    """With ``console.reauth_high_risk`` off the second click is enough."""
    from tests.console.pages.asking import Desk

    with serving(tmp_path, {"console": {"reauth_high_risk": False}}) as served:
        desk = Desk(served)
        one = desk.ask("/srv/data/off.csv", operation="delete")
        with served.signed_in() as client:
            answer = ask(client, one)
            assert "password" not in Page(answer).fields
            assert confirm(client, answer).status_code == 303, words(answer)
        assert desk.state(one) == "approved"
        desk.close()
