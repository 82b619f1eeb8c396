"""Requests and decisions over the API, against a real server with the example extensions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import until
from tests.services.rows import rows

API = "/api/v1"


def refused(answer, status, code):
    """Check that a call was refused in the documented format."""
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()


def fetch(served, client, path):
    return client.post(f"{API}/modules/weather/actions/fetch", json={"params": {"url": f"{served.web.url}{path}"}})


def test_request_is_listed(served, admin, ask):
    """A request is in the list, the queue and its detail, with its user and choices."""
    number = ask("/a/b")
    listed = admin.get(f"{API}/requests", params={"text": "is_listed", "user": "uma"}).json()["items"]
    assert [item["id"] for item in listed] == [number]
    assert listed[0]["access"]["subject"] == "module:weather"
    assert listed[0]["state"] == "pending"
    group = admin.get(f"{API}/requests/queue", params={"text": "is_listed"}).json()["items"]
    assert [(one["newest_id"], one["users"], one["risk"]) for one in group] == [(number, ["uma"], "medium")]
    detail = admin.get(f"{API}/requests/{number}").json()
    assert detail["risk"] == "medium"
    assert [reason["code"] for reason in detail["risk_reasons"]] == ["loopback", "operation"]
    assert group[0]["risk_reasons"] == detail["risk_reasons"]
    assert {(one["risk"], one["risk_reasons"][0]["code"]) for one in detail["choices"]} == {("medium", "loopback")}
    assert detail["request"]["raw_target"] == f"{served.web.url}/test_request_is_listed/a/b"
    targets = [choice["target"] for choice in detail["choices"]]
    assert targets[0] == detail["request"]["access"]["target"]
    assert served.web.url in [target.rstrip("/") for target in targets]
    assert detail["history"][0]["action"] == "requested"
    assert detail["resume"] is None


def test_a_body_may_be_left_out(admin, ask):
    """Operations without required values accept an HTTP request without a body."""
    approved = admin.post(f"{API}/requests/{ask('/a')}/approve")
    assert approved.status_code == 200
    assert admin.post(f"{API}/decisions/{approved.json()['decision']['id']}/revoke").status_code == 200
    assert admin.post(f"{API}/requests/{ask('/b')}/approve-session").status_code == 200
    assert admin.post(f"{API}/requests/{ask('/c')}/deny").status_code == 200
    assert admin.post(f"{API}/modules/weather/render").status_code == 200


def test_a_decision_that_is_sent_again_has_the_first_answer(served, admin, ask):
    """The same key and body decide once; without a key the second is a conflict."""
    number, other, key = ask("/a"), ask("/b"), {"Idempotency-Key": "one"}
    path = f"{API}/requests/{number}/approve"
    first = admin.post(path, json={"reason": "needed"}, headers=key)
    again = admin.post(path, content='{ "reason":"needed" }', headers={**key, "Content-Type": "application/json"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    actions = [record["action"] for record in admin.get(f"{API}/requests/{number}").json()["history"]]
    assert actions.count("approved") == 1
    refused(admin.post(path, json={"reason": "needed"}), 409, "external_access_conflict")
    refused(admin.post(path, json={"reason": "other"}, headers=key), 409, "idempotency_conflict")
    refused(admin.post(f"{API}/requests/{other}/approve", headers=key), 409, "idempotency_conflict")


def test_keys_belong_to_their_caller(served, admin, uma, ask):
    """The key of another administrator is separate, and a key gives no rights."""
    number, key = ask(), {"Idempotency-Key": "theirs"}
    path = f"{API}/requests/{number}/deny"
    assert admin.post(path, headers=key).status_code == 200
    with served.bearer(served.person("second-admin", role="super")) as eve:
        refused(eve.post(path, headers=key), 409, "external_access_conflict")
    refused(uma.post(path, headers=key), 403, "external_access_admin_required")
    note = f"{API}/requests/{number}/notes"
    first, again = (uma.post(note, json={"text": "please"}, headers=key) for _ in range(2))
    assert (first.status_code, first.json()) == (201, again.json())


def test_a_decision_that_failed_is_tried_anew(admin, ask):
    """A refusal is not stored: the same key works later."""
    key = {"Idempotency-Key": "failed"}
    refused(admin.post(f"{API}/requests/nothing/deny", headers=key), 404, "external_access_request_unknown")
    assert admin.post(f"{API}/requests/{ask()}/deny", headers=key).status_code == 200


def test_every_operation_that_decides_takes_a_key(admin, ask):
    """One request, many, none, notes and revocations accept a key."""
    one, two, three = (ask(f"/{name}") for name in "abc")
    unasked = {"subject": "module:weather", "resource_type": "network", "operation": "receive", "effect": "denial"}
    calls = {
        f"/requests/{one}/approve-session": {},
        "/requests/decide": {"request_ids": [two, "nothing"], "act": "deny"},
        f"/requests/{three}/notes": {"text": "why?"},
        "/decisions": {**unasked, "target": "https://keyed.example"},
    }
    decided = {}
    for place, body in calls.items():
        first, again = (admin.post(f"{API}{place}", json=body, headers={"Idempotency-Key": place}) for _ in range(2))
        assert first.status_code == again.status_code < 300, place
        assert first.json() == again.json(), place
        decided[place] = first.json()
    revoke = f"{API}/decisions/{decided['/decisions']['decision']['id']}/revoke"
    first, again = (admin.post(revoke, headers={"Idempotency-Key": "revoke"}) for _ in range(2))
    assert first.json() == again.json()
    document = admin.get(f"{API}/openapi.json").json()
    takers = {
        path.removeprefix(API)
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if any(one["name"] == "Idempotency-Key" for one in operation.get("parameters", ()))
    }
    verbs = {f"/requests/{{request_id}}/{verb}" for verb in ("approve", "approve-session", "deny", "notes")}
    assert takers == {*verbs, "/requests/decide", "/decisions", "/decisions/{decision_id}/revoke"}


@rows("key", ["", "x" * 201, "a b", "ä".encode(), b"a\tb"])
def test_bad_keys(admin, key):
    """Empty, long and non-printable keys are refused, with the header as the place."""
    problem = refused(admin.post(f"{API}/requests/x/deny", headers={"Idempotency-Key": key}), 422, "invalid_input")
    assert [one["pointer"] for one in problem["problems"]] == ["/Idempotency-Key"]


def test_what_was_mistyped_is_told(admin):
    """Misspelled filters and members get a suggestion; a body that is not JSON is a bad request."""
    problem = refused(admin.get(f"{API}/requests", params={"stat": "pending"}), 422, "invalid_input")["problems"][0]
    assert (problem["pointer"], problem["suggestion"]) == ("/stat", "state")
    deny = f"{API}/requests/x/deny"
    problem = refused(admin.post(deny, json={"raeson": "no"}), 422, "invalid_input")["problems"][0]
    assert (problem["pointer"], problem["suggestion"]) == ("/raeson", "reason")
    unreadable = admin.post(deny, content='{"reason"', headers={"Content-Type": "application/json"})
    refused(unreadable, 400, "bad_request")


def test_approve_for_session(served, admin, uma, ask):
    """A session approval resumes the module and allows later calls; the audit log has all steps."""
    number = ask()
    decided = admin.post(f"{API}/requests/{number}/approve-session", json={"reason": "for the demo"})
    assert decided.status_code == 200
    decision = decided.json()["decision"]
    assert (decision["effect"], decision["scope"], decision["created_by"]) == ("approval", "session", served.admin)
    answer = until(lambda: (found := fetch(served, uma, "/test_approve_for_session")).status_code == 200 and found)
    assert answer.json()["result"] == {"forecast": "GET /test_approve_for_session", "for": "uma"}

    def resumed():
        found = admin.get(f"{API}/requests/{number}").json()["resume"]
        return found and found["state"] == "succeeded"

    until(resumed, "the resumption")
    actions = [record["action"] for record in admin.get(f"{API}/requests/{number}").json()["history"]]
    assert {"requested", "approved_for_session", "resume_succeeded"} <= set(actions)


def test_approve_permanently_for_a_time(served, admin, ask):
    """A permanent approval can be broader than the request, and can expire."""
    number = ask("/x/y")
    target = f"{served.web.url}/test_approve_permanently_for_a_time"
    body = {"target": target, "lifetime_seconds": 3600, "reason": "month's end"}
    decision = admin.post(f"{API}/requests/{number}/approve", json=body).json()["decision"]
    assert decision["access"]["target"] == target
    left = datetime.fromisoformat(decision["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < left <= timedelta(hours=1)
    shown = admin.get(f"{API}/decisions/{decision['id']}").json()
    assert shown.pop("version") > 0
    assert {**shown, "last_used": None} == decision  # what was asked for goes on by itself, and uses it
    listed = admin.get(f"{API}/approvals", params={"text": "for_a_time"}).json()["items"]
    assert [one["id"] for one in listed] == [decision["id"]]


def test_deny_and_change(served, admin, uma, ask):
    """A denial stays until revoked; a second decision is a conflict without a change."""
    number = ask()
    decision = admin.post(f"{API}/requests/{number}/deny", json={"reason": "not this one"}).json()["decision"]
    shown = admin.get(f"{API}/requests/{number}").json()
    assert decision["id"] not in [one["id"] for one in shown["similar"]]
    late = admin.post(f"{API}/requests/{number}/approve", json={})
    assert served.admin in refused(late, 409, "external_access_conflict")["detail"]
    until(lambda: not fetch(served, uma, "/test_deny_and_change").json()["pending_request_id"], "the denial")
    assert decision["id"] in [one["id"] for one in admin.get(f"{API}/denials").json()["items"]]
    revoked = admin.post(f"{API}/decisions/{decision['id']}/revoke", json={"reason": "a mistake"})
    assert revoked.json()["ended_by"] == served.admin
    shown = admin.get(f"{API}/requests/{number}").json()["request"]
    assert (shown["state"], shown["ended_by"], shown["decision_id"]) == ("revoked", served.admin, decision["id"])
    for state, listed in (("denied", False), ("revoked", True)):
        found = admin.get(f"{API}/requests", params={"state": state, "limit": 1000}).json()["items"]
        assert (number in [one["id"] for one in found]) is listed
    refused(admin.post(f"{API}/decisions/{decision['id']}/revoke", json={}), 409, "external_access_conflict")
    ended = admin.get(f"{API}/denials", params={"state": "ended"}).json()["items"]
    assert decision["id"] in [one["id"] for one in ended]


def test_target_must_cover(admin, ask):
    """A target that does not cover the request is refused with its place."""
    number = ask()
    answer = admin.post(f"{API}/requests/{number}/approve", json={"target": "https://elsewhere.example/"})
    assert refused(answer, 422, "invalid_input")["problems"][0]["pointer"] == "/target"
    assert admin.get(f"{API}/requests/{number}").json()["request"]["state"] == "pending"


def test_notes(admin, ask):
    """A note is stored with a request and decides nothing."""
    number = ask()
    note = "What is it for?"
    made = admin.post(f"{API}/requests/{number}/notes", json={"text": note})
    assert (made.status_code, made.json()["after"]["text"]) == (201, note)
    detail = admin.get(f"{API}/requests/{number}").json()
    assert (detail["request"]["state"], detail["history"][0]["action"]) == ("pending", "noted")
    assert admin.get(f"{API}/audit/{made.json()['sequence']}").json() == made.json()


def test_bulk(admin, ask):
    """Many requests are decided after a preview; a failed one does not stop the others."""
    numbers = [ask(f"/{part}") for part in "abc"]
    admin.post(f"{API}/requests/{numbers[0]}/deny", json={})
    order = {"request_ids": [*numbers, "nothing"], "act": "session", "reason": "all of it"}
    preview = admin.post(f"{API}/requests/decide", json={**order, "dry_run": True}).json()
    assert [(item["done"], item["code"]) for item in preview["items"]] == [
        (False, "external_access_conflict"),
        (True, ""),
        (True, ""),
        (False, "external_access_request_unknown"),
    ]
    assert admin.get(f"{API}/requests/{numbers[1]}").json()["request"]["state"] == "pending"
    done = admin.post(f"{API}/requests/decide", json=order).json()
    assert [(item["done"], item["code"]) for item in done["items"]] == [
        (False, "external_access_conflict"),
        (True, ""),
        (True, ""),
        (False, "external_access_request_unknown"),
    ]
    assert admin.get(f"{API}/requests/{numbers[2]}").json()["request"]["state"] == "approved_for_session"


@rows("verb", ["approve-session", "approve", "deny"])
def test_a_decision_from_a_state_that_has_changed_is_a_conflict(served, admin, ask, verb):
    """Another session was approved for the same meanwhile; with the present version it is decided."""
    number = ask(f"/{verb}/one")
    path = f"{API}/requests/{number}"
    seen = admin.get(path).json()
    assert seen["version"] == seen["choices"][0]["version"]
    with served.bearer(served.person(f"vera-{verb}"), Scope.MODULES_RUN) as vera:
        assert admin.post(f"{API}/requests/{ask(f'/{verb}/one', vera)}/approve-session").status_code == 200
    stale = admin.post(f"{path}/{verb}", json={"expected_version": seen["version"]})
    refused(stale, 409, "external_access_conflict")
    present = admin.get(path).json()
    assert present["request"]["state"] == "pending"
    broader = present["choices"][1]
    body = {"expected_version": broader["version"], "target": broader["target"]}
    assert admin.post(f"{path}/{verb}", json=body).json()["decision"]["access"]["target"] == broader["target"]


def test_versions_of_many(served, admin, ask):
    """A preview tells them; a request whose state has changed since is a conflict, and the others are decided."""
    numbers = [ask("/a"), ask("/b")]
    order = {"request_ids": numbers, "act": "deny"}
    previewed = admin.post(f"{API}/requests/decide", json={**order, "dry_run": True}).json()["items"]
    with served.bearer(served.person("vera-many"), Scope.MODULES_RUN) as vera:
        admin.post(f"{API}/requests/{ask('/a', vera)}/approve-session")
    versions = {item["id"]: item["version"] for item in previewed}
    done = admin.post(f"{API}/requests/decide", json={**order, "expected_versions": versions}).json()["items"]
    assert [(item["done"], item["code"]) for item in done] == [(False, "external_access_conflict"), (True, "")]


def test_an_unasked_decision_from_a_state_that_has_changed_is_a_conflict(admin):
    """The version is 0 before the first decision, and that of the decision in force after it."""
    access = {"subject": "module:reports", "resource_type": "network", "operation": "receive"}
    body = {**access, "target": "https://stale-unasked.example/v1", "effect": "denial"}
    number = admin.post(f"{API}/decisions", json={**body, "expected_version": 0}).json()["decision"]["id"]
    body["effect"] = "approval"
    refused(admin.post(f"{API}/decisions", json={**body, "expected_version": 0}), 409, "external_access_conflict")
    shown = admin.get(f"{API}/decisions/{number}").json()
    assert shown["ended_at"] is None
    made = admin.post(f"{API}/decisions", json={**body, "expected_version": shown["version"]})
    assert made.status_code == 201
    refused(admin.post(f"{API}/decisions", json={**body, "expected_version": -1}), 422, "invalid_input")


def test_unasked(admin):
    """An access without a request can be decided, and is shown with its subject."""
    body = {
        "subject": "module:reports",
        "resource_type": "network",
        "operation": "receive",
        "target": "https://rates.example.com/daily",
        "effect": "approval",
    }
    made = admin.post(f"{API}/decisions", json=body)
    assert made.status_code == 201
    number = made.json()["decision"]["id"]
    shown = admin.get(f"{API}/subjects/module/reports").json()
    assert number in [one["decision"]["id"] for one in shown["approvals"]]
    wrong = admin.post(f"{API}/decisions", json={**body, "operation": "recieve"})
    assert refused(wrong, 422, "invalid_input")["problems"][0]["suggestion"] == "receive"
    wrong = admin.post(f"{API}/decisions", json={**body, "subject": "modul:x"})
    problem = refused(wrong, 422, "invalid_input")["problems"][0]
    assert (problem["pointer"], problem["suggestion"]) == ("/subject", "module")


def test_pages_follow_each_other(admin, ask):
    """Pages continue after the last item; a forged cursor is refused."""
    numbers = {ask(f"/{part}") for part in range(5)}
    seen, after = [], ""
    while True:
        query = {"text": "follow_each_other", "limit": 2, "after": after}
        page = admin.get(f"{API}/requests", params=query).json()
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
        if not after:
            break
    assert len(seen) == 5
    assert set(seen) == numbers
    assert refused(admin.get(f"{API}/requests?after=xyz"), 422, "invalid_input")["problems"][0]["pointer"] == "/after"


@rows(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("state=pendin", "/state/0"),
        ("subject=nobody", "/subject"),
        ("older_than=yesterday", "/older_than"),
        ("older_than=2026-01-01T00:00:00", "/older_than"),
        ("stat=pending", "/stat"),
    ],
)
def test_filters_are_checked(admin, query, pointer):
    """Invalid and unknown filters are refused."""
    problems = refused(admin.get(f"{API}/requests?{query}"), 422, "invalid_input")["problems"]
    assert problems[0]["pointer"] == pointer


def test_every_operation_refuses_an_unknown_query_parameter(served, admin):
    """With the pointer, also where no parameter is known at all; without a token it is a 401 as ever."""
    document = admin.get(f"{API}/openapi.json").json()
    found = [(method, path) for path, methods in document["paths"].items() for method in methods]
    assert len(found) > 40
    for method, path in found:
        address = re.sub(r"\{\w+\}", "nothing", path)
        answer = admin.request(method.upper(), address, params={"no_such_name": "1"})
        pointers = [one["pointer"] for one in refused(answer, 422, "invalid_input")["problems"]]
        assert "/no_such_name" in pointers, (method, path)
    with served.client() as unknown:
        refused(unknown.get(f"{API}/subjects?no_such_name=1"), 401, "not_signed_in")


def test_age(admin, ask):
    """Requests can be filtered by their first time."""
    number = ask()
    now = datetime.now(UTC)
    for query, expected in (
        ({"newer_than": (now - timedelta(hours=1)).isoformat()}, [number]),
        ({"older_than": (now - timedelta(hours=1)).isoformat()}, []),
    ):
        found = admin.get(f"{API}/requests", params={"text": "test_age", **query}).json()["items"]
        assert [item["id"] for item in found] == expected


@rows(
    "body",
    [
        b'{"reason": "' + b"x" * 2001 + b'"}',
        b'{"lifetime_seconds": 0}',
        b'{"lifetime_seconds": 1e30}',
        b'{"lifetime_seconds": "60"}',
        b'{"lifetime_seconds": true}',
        b'{"target": ""}',
        b'{"target": 7}',
        b'{"target": "https://example.com/\\ud800"}',
        b'{"unknown": 1}',
        b"[]",
    ],
)
def test_bad_verdicts(admin, ask, body):
    """Oversized, mistyped and unknown fields are refused, and nothing is decided."""
    number = ask()
    headers = {"Content-Type": "application/json"}
    answer = admin.post(f"{API}/requests/{number}/approve", content=body, headers=headers)
    refused(answer, 422, "invalid_input")
    assert admin.get(f"{API}/requests/{number}").json()["request"]["state"] == "pending"


def test_too_large(admin, ask):
    """A body beyond the limit is refused before it is read."""
    number = ask()
    answer = admin.post(f"{API}/requests/{number}/deny", json={"reason": "x" * (2 << 20)})
    refused(answer, 413, "body_too_large")


@rows("path", ["requests/x", "decisions/x", "audit/999999999", "tasks/x", "subjects/module/x"])
def test_unknown(admin, path):
    """A missing object is a 404 in the documented format."""
    assert admin.get(f"{API}/{path}").status_code == 404


def test_requester_sees_what_is_their_own(admin, uma, served, ask):
    """A user who may not decide sees only own requests, and decides nothing."""
    mine, other = ask(), ask("/other", admin)
    listed = [item["id"] for item in uma.get(f"{API}/requests", params={"limit": 1000}).json()["items"]]
    assert mine in listed
    assert other not in listed
    detail = uma.get(f"{API}/requests/{mine}").json()
    assert (detail["similar"], detail["alike"]) == ([], [])
    refused(uma.get(f"{API}/requests/{other}"), 404, "external_access_request_unknown")
    refused(uma.get(f"{API}/requests?user={served.admin}"), 403, "external_access_admin_required")
    for path in ("requests/queue", "approvals", "denials", "audit", "audit/export", "audit/verify", "subjects"):
        refused(uma.get(f"{API}/{path}"), 403, "external_access_admin_required")
    for act in ("approve", "approve-session", "deny"):
        refused(uma.post(f"{API}/requests/{mine}/{act}", json={}), 403, "external_access_admin_required")
    assert admin.get(f"{API}/requests/{mine}").json()["request"]["state"] == "pending"
