"""Pages of approvals and denials: list, revoke, change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from democrai_sandbox.access.values import DecisionEffect, DecisionScope, NewDecision
from democrai_sandbox.console.pages.decisions import remarks
from tests.console.pages.asking import approve_again, decide, words
from tests.console.pages.reading import Page, read
from tests.console.serving import until
from tests.console.sessions import enter
from tests.services.golden import sentence
from tests.services.rows import rows


def decided(desk, client, act, target=None, **more):
    """Request, decide, and return the id of the decision."""
    one = desk.ask(target, **more)
    answer = decide(client, one, act)
    assert answer.status_code == 303, words(answer)
    return answer.headers["location"].rpartition("about=")[2]


def row_of(page, number):
    """The row of a request in a list."""
    return page.between(f'data-id="{number}"', "</tr>")


def ended(desk, decision_id):
    return desk.store.decision(decision_id).ended_at is not None


# ---- lists -----------------------------------------------------------------------------------------------------------


def test_approvals_say_who_gave_them_and_for_what(desk, ada):
    """Each row has rule, subject, scope, administrator and last use."""
    decided(desk, ada, "permanent", "https://listed.example/permanent")
    decided(desk, ada, "session", "https://listed.example/session", session="the-session")
    page = words(ada.get("/approvals", params={"text": "listed.example"}))
    assert "listed.example /permanent" in page
    assert "the-session" in page
    assert page.count("by ada") == 2
    assert page.count("never") == 2
    assert "listed.example /permanent" not in words(ada.get("/denials", params={"text": "listed.example"}))


@rows(
    ("query", "found"),
    [
        ({"scope": "session"}, {"b"}),
        ({"scope": "permanent"}, {"a"}),
        ({"subject": "module:weather"}, {"a", "b"}),
        ({"subject": "engine:whisper"}, set()),
        ({"resource": "filesystem"}, set()),
        ({"session": "narrow"}, {"b"}),
        ({"live": "ended"}, {"c"}),
        ({"live": "all"}, {"a", "b", "c"}),
    ],
)
def test_approvals_can_be_filtered(desk, ada, query, found):
    """Scope, subject, resource, session and state are filters."""
    if "narrowed.example" not in ada.get("/approvals", params={"text": "narrowed.example"}).text.partition("<table")[2]:
        decided(desk, ada, "permanent", "https://narrowed.example/a")
        decided(desk, ada, "session", "https://narrowed.example/b", session="narrow")
        gone = decided(desk, ada, "permanent", "https://narrowed.example/c")
        assert ada.post(f"/decisions/{gone}/revoke").status_code == 303
    page = words(ada.get("/approvals", params={"text": "narrowed.example", **query}))
    assert {letter for letter in "abc" if f"narrowed.example /{letter}" in page} == found


def test_a_filter_that_means_nothing_lists_nothing(ada):
    """An invalid filter is reported."""
    for query in ({"scope": "forever"}, {"subject": "weather"}, {"live": "maybe"}, {"resource": "url"}):
        assert ada.get("/approvals", params=query).status_code == 422, query


def test_what_is_of_no_use_and_what_ends_soon_is_pointed_out():
    """Unused and soon ending approvals have a note, ended ones none."""
    now = datetime(2026, 6, 1, tzinfo=UTC)
    unused = timedelta(days=30)

    def of(**fields):
        import types

        usual = {
            "effect": DecisionEffect.APPROVAL,
            "created_at": now,
            "last_used": None,
            "expires_at": None,
            "ended_at": None,
        }
        return remarks(types.SimpleNamespace(**{**usual, **fields}), now, unused)

    assert of() == []
    sentence("unused", "; ".join(of(created_at=now - timedelta(days=40))))
    (late,) = of(created_at=now - timedelta(days=90), last_used=now - timedelta(days=31))
    assert "31" in late
    assert of(created_at=now - timedelta(days=90), last_used=now - timedelta(days=2)) == []
    sentence("ends soon", "; ".join(of(expires_at=now + timedelta(days=3))))
    assert of(expires_at=now + timedelta(days=8)) == []
    assert of(created_at=now - timedelta(days=40), ended_at=now) == []
    assert of(effect=DecisionEffect.DENIAL, created_at=now - timedelta(days=400)) == []


def test_an_old_approval_is_pointed_out_in_the_list(desk, ada):
    """The note is on the page."""
    access = desk.store.request(desk.ask("https://dusty.example/v1")).access
    then = datetime.now(UTC) - timedelta(days=45)
    desk.store.decide(NewDecision(access, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "ada"), now=then)
    assert " 45 " in words(ada.get("/approvals", params={"text": "dusty.example"}))


# ---- revoking --------------------------------------------------------------------------------------------------------


def test_revoking_says_what_stops_and_how_fast(desk, ada):
    """The confirmation page names rule and delay, and changes nothing."""
    one = decided(desk, ada, "permanent", "https://stopped.example/v1")
    page = read(ada, f"/decisions/{one}/revoke")
    sentence("revoking", page.between("<h1>", "<dl"))
    (rule,) = page.parts("rule")
    assert "weather" in rule
    assert "https://stopped.example/v1" in rule
    assert "0.1 " in page.text
    assert not ended(desk, one)


def test_revoking_and_approving_again(desk, ada):
    """After a revocation the page offers a new approval."""
    one = decided(desk, ada, "permanent", "https://undone.example/v1")
    answer = ada.post(f"/decisions/{one}/revoke", data={"reason": "by mistake"})
    assert answer.status_code == 303
    assert ended(desk, one)
    page = read(ada, answer.headers["location"])
    assert page.done == "revoked"
    assert f"/decisions/{one}/approve" in page.links
    again = approve_again(ada, one)
    assert again.status_code == 303
    shown = read(ada, again.headers["location"])
    assert shown.done == "approved"
    assert "undone.example" in words(ada.get("/approvals", params={"text": "undone.example"}))


def test_revoking_twice_is_a_conflict(desk, ada):
    """The second revocation is a conflict without a change."""
    one = decided(desk, ada, "permanent")
    assert ada.post(f"/decisions/{one}/revoke").status_code == 303
    answer = ada.post(f"/decisions/{one}/revoke")
    assert answer.status_code == 409
    told = Page(answer).parts("notice")[0]
    assert "ada" in told
    sentence("revoking twice", told)


def test_a_revocation_reaches_the_module(served, ada):
    """An approved call works; after the revocation it is denied."""
    with served.bearer(served.person("uma")) as machine:
        one = served.stop_weather(machine, "/revoked/later")
        answer = decide(ada, one, "permanent", confirmed="yes")
        decision = answer.headers["location"].rpartition("about=")[2]
        call = {"json": {"params": {"url": f"{served.web.url}/revoked/later"}}}

        def status(wanted):
            return machine.post("/api/v1/modules/weather/actions/fetch", **call).status_code == wanted

        until(lambda: status(200), "the call")
        assert ada.post(f"/decisions/{decision}/revoke").status_code == 303
        until(lambda: status(403), "the denial")


# ---- denials ---------------------------------------------------------------------------------------------------------


def test_a_denial_becomes_an_approval(desk, ada):
    """The change is confirmed first and ends the denial."""
    one = decided(desk, ada, "deny", "https://changed.example/v1")
    assert f"/decisions/{one}/approve" in read(ada, f"/decisions/{one}").links
    page = read(ada, f"/decisions/{one}/approve")
    sentence("approving instead of a denial", page.between("<h1>", "<dl"))
    assert not ended(desk, one)
    answer = approve_again(ada, one, reason="asked around")
    assert answer.status_code == 303
    assert ended(desk, one)
    assert "asked around" in words(ada.get(answer.headers["location"]))
    assert "changed.example" not in words(ada.get("/denials", params={"text": "changed.example"})).partition("Clear")[2]


def test_a_denial_is_removed(desk, ada):
    """The access is undecided again: the next attempt files a request."""
    one = decided(desk, ada, "deny", "https://removed.example/v1")
    page = read(ada, f"/decisions/{one}/revoke")
    sentence("removing a denial", page.between("<h1>", "<dl"))
    answer = ada.post(f"/decisions/{one}/revoke")
    assert answer.headers["location"].startswith("/denials")
    assert read(ada, answer.headers["location"]).done == "denial_removed"
    assert ended(desk, one)
    assert desk.state(desk.ask("https://removed.example/v1")) == "pending"


# ---- who may ---------------------------------------------------------------------------------------------------------


def test_others_neither_see_nor_change_decisions(served, desk, ada):
    """Users who may not decide get the reason; unknown ids are not found."""
    one = decided(desk, ada, "permanent")
    served.person("uma")
    with served.signed_in("uma") as uma:
        for path in ("/approvals", "/denials", f"/decisions/{one}", f"/decisions/{one}/revoke"):
            assert uma.get(path).status_code == 403, path
        assert uma.post(f"/decisions/{one}/revoke").status_code == 403
        assert uma.post(f"/decisions/{one}/approve").status_code == 403
    assert not ended(desk, one)
    assert ada.get("/decisions/unknown").status_code == 404
    assert ada.post("/decisions/unknown/revoke").status_code == 404


def test_a_message_is_one_of_ours(ada):
    """An address cannot inject text into the page."""
    page = ada.get("/approvals", params={"done": "<b>All is well</b>", "about": '"><script>'})
    assert "All is well" not in page.text
    assert "<script>" not in page.text.replace("<script src", "")


def test_the_password_is_asked_again_when_the_configuration_wants_it(served, desk):
    """``console.reauth_minutes`` requires a recent password."""
    rita = served.person("rita", role="super")
    fresh, _ = enter(served.accounts, rita.id)
    stale, _ = enter(served.accounts, rita.id, confirmed=timedelta(hours=1))
    with served.client(cookies=fresh) as client:
        one = desk.ask("https://fresh.example/v1")
        assert "location" in decide(client, one, "permanent").headers
        assert desk.state(one) == "approved"
    with served.client(cookies=stale) as client:
        two = desk.ask("https://stale.example/v1")
        answer = decide(client, two, "permanent", password="")
        assert answer.status_code == 422
        assert Page(answer).error("password")
        assert desk.state(two) == "pending"
        assert decide(client, two, "deny").status_code == 303


# ---- requests whose decision has ended -------------------------------------------------------------------------------


def test_lists_show_that_an_approval_was_revoked(desk, ada):
    """Lists show the request as revoked, with the user."""
    one = desk.ask("https://over.example/lists")
    decision = decide(ada, one, "permanent").headers["location"].rpartition("about=")[2]
    assert one in read(ada, "/requests?state=approved&text=over.example").source
    assert ada.post(f"/decisions/{decision}/revoke").status_code == 303
    assert one not in read(ada, "/requests?state=approved&text=over.example").source
    for state in ("ended", "all"):
        row = row_of(read(ada, f"/requests?state={state}&text=over.example"), one)
        assert "revoked by ada" in row
        assert "approved" not in row
    subject = read(ada, "/subjects/module/weather").between(f"/requests/{one}", "</tr>")
    assert "revoked" in subject
    assert "approved" not in subject


def test_the_page_of_a_request_says_what_was_decided_and_that_it_ended(desk, ada):
    """Both users are named."""
    one = desk.ask("https://over.example/page")
    decision = decide(ada, one, "permanent").headers["location"].rpartition("about=")[2]
    assert ada.post(f"/decisions/{decision}/revoke").status_code == 303
    page = read(ada, f"/requests/{one}")
    decided = page.between('aria-labelledby="decided"', "</section>")
    assert "approved By ada" in decided
    assert "Now revoked" in decided
    assert "revoked" in page.parts("row")[0]


def test_a_decision_is_not_listed_as_similar_to_itself(desk, ada):
    """Similar decisions exclude the own one."""
    first = decided(desk, ada, "permanent", "https://itself.example/first")
    one = desk.ask("https://itself.example/second")
    own = decide(ada, one, "permanent").headers["location"].rpartition("about=")[2]
    source = read(ada, f"/requests/{one}").source.partition('aria-labelledby="similar"')[2].partition("</section>")[0]
    assert f"/decisions/{first}" in source
    assert f"/decisions/{own}" not in source


def test_an_address_that_is_loaded_again_confirms_only_what_holds(desk, ada):
    """After a revocation an old address confirms no approval."""
    one = desk.ask()
    address = decide(ada, one, "permanent").headers["location"]
    decision = address.rpartition("about=")[2]
    assert read(ada, address).done == "approved"
    assert read(ada, f"/decisions/{decision}?done=approved").done == "approved"
    assert ada.post(f"/decisions/{decision}/revoke").status_code == 303
    assert read(ada, address).done == ""
    assert read(ada, f"/decisions/{decision}?done=approved").done == ""


def test_a_list_confirms_an_end_only_until_the_same_is_decided_again(desk, ada):
    """A revoked approval and a removed denial; also when more was decided, which covers it."""
    for act, done in (("permanent", "revoked"), ("deny", "denial_removed")):
        target = f"https://loaded-again-{act}.example/v1/item"
        address = ada.post(f"/decisions/{decided(desk, ada, act, target)}/revoke").headers["location"]
        page = read(ada, address)
        assert page.done == done
        sentence(done, page.part("message"))
        broader = desk.ask(target)
        assert decide(ada, broader, "deny", choice="1").status_code == 303
        assert "undecided" not in read(ada, address).part("message")
        ada.post(f"/decisions/{desk.store.request(broader).decision_id}/revoke")
        decided(desk, ada, "deny", target)
        assert read(ada, address).part("message") == ""


def test_an_undo_is_confirmed_only_while_the_request_waits(desk, ada):
    """Also after a decision about more than what was asked for."""
    one = desk.ask()
    decide(ada, one, "deny")
    address = ada.post(f"/decisions/{desk.store.request(one).decision_id}/undo").headers["location"]
    assert read(ada, address).done == "undone"
    decide(ada, one, "permanent", choice="1")
    assert read(ada, address).done == ""


def test_an_open_list_is_told_of_a_revocation(desk, ada):
    """The update names the user who revoked."""
    one = desk.ask()
    decision = decide(ada, one, "session").headers["location"].rpartition("about=")[2]
    assert ada.post(f"/decisions/{decision}/revoke").status_code == 303
    told = ada.get("/requests/states", params={"ids": one}).json()["states"][one]
    assert told == {"state": "revoked", "words": "revoked by ada"}


def test_a_denial_that_was_changed_shows_as_replaced(desk, ada):
    """A replaced denial is not listed as denied."""
    one = desk.ask("https://over.example/changed")
    decision = decide(ada, one, "deny").headers["location"].rpartition("about=")[2]
    assert approve_again(ada, decision).status_code == 303
    assert desk.state(one) == "replaced"
    assert "replaced" in row_of(read(ada, "/requests?state=ended&text=over.example"), one)
