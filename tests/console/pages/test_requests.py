"""Queue, single requests, and decisions."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from democrai_sandbox.access.values import AuditAction, AuditFilter
from democrai_sandbox.access.values import PageRequest as Part
from tests.console.pages.asking import button, decide, words
from tests.console.pages.reading import SOON, Page, form, read
from tests.console.serving import until
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture(scope="module")
def uma(served):
    """A user who may not decide."""
    served.person("uma")
    with served.signed_in("uma") as client:
        yield client


def alert(answer):
    """The text of the alert on a page."""
    return Page(answer).between('role="alert"', "</div>")


# ---- the queue -------------------------------------------------------------------------------------------------------


def test_the_start_is_the_queue(ada):
    """The first page is the queue."""
    assert ada.get("/").headers["location"] == "/requests"


def test_those_who_wait_for_the_same_are_one_row(desk, ada):
    """Three users with the same request are one row with their number."""
    for user in ("uma", "ben", "carla"):
        desk.ask("https://grouped.example/v1", user=user, session=user)
    page = ada.get("/requests", params={"text": "grouped.example"})
    assert page.text.count("grouped.example/v1</bdi>") + page.text.count("</span>/v1</bdi>") == 1
    assert "and 1 more" in words(page)
    assert "3 sessions" in words(page)


def test_what_risks_more_comes_first(desk, ada):
    """Rows are ordered by risk, regardless of their time."""
    for operation, scheme in (("send", "http"), ("connect", "https"), ("receive", "https")):
        desk.ask(f"{scheme}://ordered.example", operation=operation)
    shown = words(ada.get("/requests", params={"text": "ordered.example"}))
    assert shown.index("high risk") < shown.index("medium risk") < shown.index("low risk")


@rows(
    ("query", "found"),
    [
        ({"text": "FILTERED.example/a"}, {"a"}),
        ({"text": "filtered.example", "user": "zoe"}, {"b"}),
        ({"text": "filtered.example", "organization": "north"}, {"c"}),
        ({"text": "filtered.example", "kind": "engine"}, {"d"}),
        ({"text": "filtered.example", "subject": "engine:whisper"}, {"d"}),
        ({"text": "filtered.example", "kind": "engine", "subject": "whisper"}, {"d"}),
        ({"text": "filtered.example", "resource": "filesystem"}, set()),
        ({"text": "filtered.example", "age": "over-7d"}, {"e"}),
        ({"text": "filtered.example", "age": "1h"}, {"a", "b", "c", "d"}),
    ],
)
def test_filters_are_in_the_address(desk, ada, query, found):
    """Each filter works and is part of the address."""
    if not desk.store.queue(*_nothing("filtered.example")).items:
        desk.ask("https://filtered.example/a")
        desk.ask("https://filtered.example/b", user="zoe")
        desk.ask("https://filtered.example/c", organization="north")
        desk.ask("https://filtered.example/d", subject="engine:whisper")
        desk.ask("https://filtered.example/e", ago=timedelta(days=9))
    page = ada.get("/requests", params=query)
    assert set(re.findall(r"https://filtered\.example</span>/(\w)</bdi>", page.text)) == found
    assert page.status_code == 200


def _nothing(text):
    from democrai_sandbox.access.values import PageRequest, RequestFilter

    return RequestFilter(text=text), PageRequest()


def test_a_filter_that_means_nothing_is_said_and_lists_nothing(desk, ada):
    """An invalid filter lists nothing."""
    desk.ask()
    for query in ({"kind": "modul"}, {"subject": "weather"}, {"state": "gone"}, {"age": "9y"}, {"resource": "url"}):
        page = read(ada, "/requests", status=422, params=query)
        assert next(iter(query)) in page.parts("notice")[0].lower()
        sentence("nothing listed", page.parts("empty")[0])


def test_pages_follow_the_last_row(desk, ada):
    """The second page continues after the last row; new rows do not shift it."""
    for number in range(30):
        desk.ask(f"https://paged.example/{number}")
    first = ada.get("/requests", params={"text": "paged.example"})
    seen = re.findall(r"paged\.example</span>/(\d+)</bdi>", first.text)
    desk.ask("https://paged.example/99")
    after = re.search(r'rel="next" href="([^"]+)"', first.text).group(1).replace("&amp;", "&")
    rest = re.findall(r"paged\.example</span>/(\d+)</bdi>", ada.get(after).text)
    assert len(seen) == 25
    assert sorted(map(int, seen + rest)) == list(range(30))


def test_states_are_counted(desk, ada):
    """Each state has a tab with its number, under the same filter."""
    one = desk.ask("https://counted.example/1")
    desk.ask("https://counted.example/2")
    decide(ada, one, "deny")
    page = words(ada.get("/requests", params={"text": "counted.example"}))
    for label in ("Pending 1", "Denied 1", "All 2"):
        assert label in page
    denied = words(ada.get("/requests", params={"text": "counted.example", "state": "denied"}))
    assert "counted.example /1" in denied
    assert "by ada" in denied


def test_an_open_page_is_told_what_became_of_its_rows(desk, ada):
    """Decided rows get the result and the user; new ones are counted."""
    one = desk.ask("https://watched.example/1")
    page = ada.get("/requests", params={"text": "watched.example"})
    since = re.search(r'data-since="([^"]+)"', page.text).group(1)
    decide(ada, one, "deny")
    desk.ask("https://watched.example/2")
    told = ada.get("/requests/states", params={"ids": f"{one},unknown", "since": since, "text": "watched.example"})
    assert told.json()["states"] == {one: {"state": "denied", "words": "denied by ada"}}
    assert told.json()["new"] == 1


@rows("query", [{"since": "yesterday"}, {"since": "2026-01-01"}, {"ids": "x" * 300}, {"ids": ",,"}])
def test_a_page_that_asks_strangely_is_told_nothing(ada, query):
    """Invalid ids and times are ignored."""
    told = ada.get("/requests/states", params=query)
    assert told.status_code == 200
    assert told.json()["states"] == {}
    assert told.json()["new"] == 0


# ---- one request -----------------------------------------------------------------------------------------------------


def test_a_request_is_shown_in_full(desk, ada):
    """All facts of a request, with the requested and the normalized target."""
    target = "https://full.example/v1/reports"
    one = desk.ask(
        target,
        subject="tool:demo.fetch",
        raw="HTTPS://Full.example:443/v1/reports/?day=1",
        chain=("module:reports", "agent:helper", "tool:demo.fetch"),
        user="uma",
        organization="north",
    )
    desk.ask(target, subject="tool:demo.fetch", user="ben", session="other")
    page = words(ada.get(f"/requests/{one}"))
    for said in (
        "module:reports agent:helper tool:demo.fetch",
        "https://full.example /v1/reports",
        "HTTPS://Full.example:443 /v1/reports/?day=1",
    ):
        assert said in page, said
    shown = read(ada, f"/requests/{one}")
    sentence("asked in full", shown.between('<section class="panel asked"', "<dt>Session"))
    assert "ben" in shown.between('id="alike"', "</section>")
    assert "tool:demo.fetch" in shown.between('id="history"', "</section>")


def test_what_the_manifest_declares_stands_beside(served, desk, ada):
    """The declared rules of the subject are listed."""
    one = desk.ask("https://other.example/x", subject="module:reports", operation="receive")
    assert served.web.url in read(ada, f"/requests/{one}").between('id="declared"', "</section>")
    file = desk.ask("/srv/elsewhere/may.csv", subject="module:reports", operation="read")
    assert str(served.folder) in read(ada, f"/requests/{file}").between('id="declared"', "</section>")


def test_an_unknown_request_is_not_found(ada):
    """An unknown id is a 404 page."""
    assert ada.get("/requests/01unknown").status_code == 404
    assert decide(ada, "01unknown", "deny").status_code == 404


def test_hostile_texts_are_shown_and_do_nothing(desk, ada):
    """Markup and invisible characters are visible text on every page."""
    target = '/srv/<script>alert(1)</script>"\u202efdp.exe\u200b'
    one = desk.ask(target, operation="read", user="\u202enimda", raw=target)
    decide_later = f"/requests/{one}"
    for path in ("/requests?text=%2Fsrv%2F%3Cscript", decide_later):
        page = ada.get(path)
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
        assert "\u200b" not in page.text
        assert "RIGHT-TO-LEFT OVERRIDE" in page.text
        assert "<script>alert(1)</script>" in words(page)


def test_a_long_target_keeps_its_host(desk, ada):
    """The list shortens the path only; the page has the whole target."""
    host = ".".join(["a" * 60] * 4)
    target = f"https://{host}/{'x' * 3000}/end"
    one = desk.ask(target)
    listed = ada.get("/requests", params={"text": "x" * 100})
    assert f'<span class="origin">https://{host}</span>' in listed.text
    assert "x" * 3000 not in words(listed)
    assert f"{'x' * 3000}/end" in ada.get(f"/requests/{one}").text


def test_half_a_character_does_not_break_a_page(desk, ada):
    """A file name that is not UTF-8 can be shown and decided."""
    one = desk.ask("/srv/half\udcff", operation="read")
    page = ada.get(f"/requests/{one}")
    assert page.status_code == 200
    assert "U+DCFF" in page.text
    assert decide(ada, one, "deny").status_code == 303


# ---- deciding --------------------------------------------------------------------------------------------------------


def test_approving_for_the_session(desk, ada):
    """The approval is for the session of the request, and the page offers the undo."""
    one = desk.ask()
    answer = decide(ada, one, "session", reason="for the report")
    assert answer.status_code == 303
    page = read(ada, answer.headers["location"])
    assert page.done == "approved_for_session"
    decided = page.between('id="decided"', "</section>")
    assert "ada" in decided
    assert "for the report" in decided
    assert any(link.endswith("/revoke") for link in page.links)
    assert desk.state(one) == "approved_for_session"


def test_approving_permanently_for_a_time(desk, ada):
    """A permanent approval can expire."""
    one = desk.ask()
    answer = decide(ada, one, "permanent", lifetime="86400")
    assert answer.status_code == 303
    assert desk.state(one) == "approved"
    assert "23 hours" in read(ada, f"/requests/{one}").between('id="decided"', "</section>")


def test_denying_with_a_reason(desk, ada):
    """The reason is stored with the request."""
    one = desk.ask()
    reason = "use the mirror\nnot this host"
    assert decide(ada, one, "deny", reason=reason).status_code == 303
    page = read(ada, f"/requests/{one}")
    assert " ".join(reason.split()) in page.between('id="decided"', "</section>")
    assert any(link.startswith("/decisions/") for link in page.links)


def test_no_session_no_approval_for_it(desk, ada):
    """The button is disabled with the reason; sending the form decides nothing."""
    one = desk.ask(session="")
    page = ada.get(f"/requests/{one}")
    assert "disabled" in button(page, "Approve for this session")
    sentence("no session", Page(page).parts("off")[0])
    answer = decide(ada, one, "session")
    assert answer.status_code == 409
    sentence("no session, sent anyway", alert(answer))
    assert desk.state(one) == "pending"


def test_more_than_was_asked_is_spelled_out_first(desk, ada):
    """A broader approval has a confirmation page with the rule."""
    one = desk.ask("https://broad.example/v1/reports/7")
    choices = ada.get(f"/requests/{one}").text.count('name="choice"')
    assert choices >= 3
    last = str(choices - 1)
    asked = decide(ada, one, "permanent", choice=last, reason="all of it", confirmed="")
    assert asked.status_code == 200
    sentence("more than was asked", Page(asked).between("<h1>", "<form"))
    assert desk.state(one) == "pending"
    done = decide(ada, one, "permanent", choice=last, reason="all of it", confirmed="yes")
    assert done.status_code == 303
    assert "https://broad.example " in read(ada, f"/requests/{one}").between("<dt>Covers", "</section>")


def test_every_choice_has_its_risk(desk, ada):
    """With its reasons: that of its own place, and that of what was asked for, which it covers."""
    one = desk.ask("/home/uma/app/.env", operation="read")
    page = read(ada, f"/requests/{one}")
    exact, folder, *_ = page.parts("risk")
    assert exact.startswith("high risk") and "contains keys" in exact
    assert folder == exact
    assert len(page.parts("risk")) == len(page.parts("choice"))


def test_something_broader_than_a_high_risk_takes_the_password(desk, ada):
    """The folder around a secret file is no way around the password."""
    one = desk.ask("/srv/around/app/.env", operation="read")
    answer = decide(ada, one, "permanent", choice="1", password="")
    assert (answer.status_code, desk.state(one)) == (422, "pending")
    assert "password" in Page(answer).fields


@rows(
    "form",
    [{}, {"act": ""}, {"act": "approve"}, {"act": "deny", "choice": "99"}, {"act": "deny", "choice": "-1"},
     {"act": "deny", "choice": "/"}, {"act": "deny", "choice": "٣"}],
)  # fmt: skip
def test_a_form_without_a_clear_act_decides_nothing(desk, ada, form):
    """A missing or unknown action or choice gives a message."""
    one = desk.ask("https://unclear.example/v1")
    answer = ada.post(f"/requests/{one}/decide", data=form)
    assert answer.status_code == 422
    sentence("no clear act", alert(answer))
    assert desk.state(one) == "pending"


def test_enter_in_a_field_decides_nothing(desk, ada):
    """The first button, which Enter presses, decides nothing."""
    one = desk.ask("https://enter.example/v1/reports")
    page = ada.get(f"/requests/{one}").text
    form = page[page.index('id="decision"') :]
    first = re.search(r"<button[^>]*>", form).group()
    assert 'name="act" value=""' in first
    assert "disabled" not in first
    assert "autofocus" not in page
    answer = ada.post(
        f"/requests/{one}/decide", data={"act": "", "choice": "1", "reason": "half a", "lifetime": "3600"}
    )
    assert answer.status_code == 422
    assert alert(answer)
    assert "half a" in answer.text
    assert re.search(r'name="choice" value="1" checked', answer.text)
    assert re.search(r'value="3600" selected', answer.text)
    assert desk.state(one) == "pending"


def test_a_reason_that_is_too_long_is_said_beside_its_field(desk, ada):
    """The input is kept."""
    one = desk.ask()
    answer = decide(ada, one, "deny", reason="y" * 2001)
    assert answer.status_code == 422
    told = Page(answer).error("reason")
    assert "2000" in told
    assert "2001" in told
    assert "y" * 2001 in answer.text
    assert desk.state(one) == "pending"


def test_the_second_decision_is_a_conflict(served, desk, ada):
    """The second user gets the first decision, and nothing changes."""
    one = desk.ask()
    decide(ada, one, "deny", reason="no")
    with served.signed_in() as other:
        answer = decide(other, one, "permanent")
        assert answer.status_code == 409
        sentence("already decided", Page(answer).parts("trouble")[0], also=SOON)
    assert desk.state(one) == "denied"
    assert desk.store.request(one).decided_by == "ada"


def test_a_broader_denial_stands_in_the_way(desk, ada):
    """The approval is refused, with a link to the denials."""
    broad = desk.ask("https://walled.example/v1")
    narrow = desk.ask("https://walled.example/v2")
    choices = ada.get(f"/requests/{broad}").text.count('name="choice"')
    later = desk.ask("https://walled.example/v3", user="ben", session="b")
    assert decide(ada, broad, "deny", choice=str(choices - 1)).status_code == 303
    assert desk.state(narrow) == desk.state(later) == "denied"
    again = desk.ask("https://walled.example/v4")
    answer = decide(ada, again, "permanent")
    assert answer.status_code == 409
    told = Page(answer)
    sentence("denial in the way", told.parts("trouble")[0])
    assert any(link.startswith("/denials?") for link in told.links)
    assert desk.state(again) == "pending"


def test_notes_are_kept(desk, ada):
    """A note is in the history with its user; an empty one is refused."""
    one = desk.ask()
    note = "Which report is it for?\nSee ticket 7"
    assert ada.post(f"/requests/{one}/notes", data={"text": note}).status_code == 303
    history = read(ada, f"/requests/{one}").between('id="history"', "</section>")
    assert "Noted by ada" in history
    assert " ".join(note.split()) in history
    empty = ada.post(f"/requests/{one}/notes", data={"text": "  "})
    assert empty.status_code == 422
    sentence("empty note", Page(empty).error("note"))


def test_a_note_that_is_sent_twice_is_kept_once(desk, ada, uma):
    """By a double click or a reload; another text, and the same text from a page that was opened anew, is a note."""
    one = desk.ask()
    path = f"/requests/{one}"
    for client in (ada, uma):
        filled = form(client.get(path), "/notes")
        twice = partial(client.post, f"{path}/notes", data={**filled, "text": "a"})
        with ThreadPoolExecutor(4) as pool:
            sent = [one.result() for one in [pool.submit(twice) for _ in range(4)]]
        assert {read(client, answer.headers["location"]).done for answer in [*sent, twice()]} == {"noted"}
        client.post(f"{path}/notes", data={**filled, "text": "b"})
        client.post(f"{path}/notes", data={**form(client.get(path), "/notes"), "text": "a"})
    wanted = AuditFilter(actions=(AuditAction.NOTED,), request_id=one)
    notes = [(record.actor, record.after["text"]) for record in desk.store.audit(wanted, Part()).items]
    assert notes[::-1] == [(who, text) for who in ("ada", "uma") for text in "aba"]


# ---- those who may not decide ----------------------------------------------------------------------------------------


def test_somebody_sees_their_own_requests_only(desk, uma):
    """A user who may not decide sees only own requests."""
    desk.ask("https://mine.example/1", user="uma")
    desk.ask("https://theirs.example/1", user="ben")
    page = words(uma.get("/requests"))
    assert "mine.example" in page
    assert "theirs.example" not in page


def test_buttons_are_disabled_with_the_reason(desk, uma):
    """Without the right, the buttons are disabled, and forms refused."""
    one = desk.ask(user="uma")
    page = uma.get(f"/requests/{one}")
    for label in ("Approve for this session", "Approve permanently…", "Deny"):
        assert "disabled" in button(page, label)
    sentence("not for everybody", Page(page).parts("info")[0])
    assert "similar" not in Page(page).ids
    assert decide(uma, one, "deny").status_code == 403
    assert desk.state(one) == "pending"


def test_what_a_path_leads_to_is_shown_to_those_who_decide(desk, ada, uma, tmp_path):
    """Deciders see the type of a path; requesters do not."""
    (tmp_path / "there.csv").touch()
    one = desk.ask(str(tmp_path / "there.csv"), operation="read", user="uma")
    label = f"The file {tmp_path}/there.csv"
    shown = read(ada, f"/requests/{one}")
    assert label in shown.text
    assert "there.csv and everything" not in shown.text
    assert label not in read(uma, f"/requests/{one}").text
    with_cookie = uma.get(f"/api/v1/requests/{one}").json()
    assert "The file" not in with_cookie["choices"][0]["label"]


def test_requests_of_others_are_not_shown(desk, uma):
    """The page of another user's request is refused."""
    other = desk.ask(user="ben")
    assert uma.get(f"/requests/{other}").status_code in {403, 404}
    assert decide(uma, other, "deny").status_code in {403, 404}
    assert uma.get("/requests/states", params={"ids": other}).json()["states"] == {}


def test_people_of_an_organization_do_not_decide(served, desk):
    """The super role in an organization is not enough."""
    served.person("olga", role="super", organization_id="north")
    with served.signed_in("olga") as olga:
        one = desk.ask(user="olga")
        sentence("not for people of an organization", read(olga, f"/requests/{one}").parts("info")[0])
        assert decide(olga, one, "permanent").status_code == 403
    assert desk.state(one) == "pending"


def test_nobody_sees_anything(served, desk):
    """Without a session every page redirects to the sign-in."""
    one = desk.ask()
    with served.client() as nobody:
        for path in ("/", "/requests", f"/requests/{one}", "/requests/states", "/approvals", "/denials"):
            answer = nobody.get(path)
            assert answer.status_code == 303, path
            assert "/login" in answer.headers["location"]
        assert decide(nobody, one, "deny").status_code in {303, 403}
    assert desk.state(one) == "pending"


def test_another_site_cannot_decide(served, desk, ada):
    """A form from another site is refused in spite of the cookie."""
    one = desk.ask()
    answer = ada.post(
        f"/requests/{one}/decide",
        data={"act": "permanent", "choice": "0"},
        headers={"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    )
    assert answer.status_code == 403
    assert desk.state(one) == "pending"


# ---- the whole way ---------------------------------------------------------------------------------------------------


def test_what_was_stopped_goes_on_after_the_approval(served, ada):
    """After the approval the page shows the resumed action."""
    with served.bearer(served.person("uma")) as machine:
        one = served.stop_weather(machine, "/whole/way")
    assert "fetch" in read(ada, f"/requests/{one}").between("<dt>Resumes with", "<dt>Asked")
    assert decide(ada, one, "permanent", confirmed="yes").status_code == 303

    def finished():
        page = words(ada.get(f"/requests/{one}"))
        return page if "succeeded" in page or "failed" in page else ""

    page = until(finished, "the end of the action")
    assert "succeeded" in page
    assert "/whole/way" in served.web.asked
    told = ada.get("/requests/states", params={"ids": one})
    assert json.loads(told.text)["states"][one]["state"] == "approved"


def test_the_panel_of_a_resumed_action_asks_to_be_fetched_again_until_it_has_ended(desk, ada):
    """It refreshes only while the action runs."""
    one = desk.ask("https://resumed.example/page", action="go_on")
    resume = desk.resume(one, node="elsewhere")
    assert 'data-refresh="2"' in read(ada, f"/requests/{one}").source
    desk.store.finish_resume(resume, node="elsewhere", error="", retry_at=None, now=datetime.now(UTC))
    page = read(ada, f"/requests/{one}")
    assert "succeeded" in page.part("resuming")
    assert "data-refresh" not in page.source
