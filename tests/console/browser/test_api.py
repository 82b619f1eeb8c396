"""The API from a page of the console: ``fetch`` with the session cookie, in a real browser."""

from __future__ import annotations

from urllib.parse import urlsplit

CALL = """async ([method, path, body, headers]) => {
    const answer = await fetch(path, {
        method, body, headers: {...(body === null ? {} : {'Content-Type': 'application/json'}), ...headers},
    });
    const kind = answer.headers.get('content-type').split(';')[0];
    return {status: answer.status, kind, allow: answer.headers.get('allow'), body: await answer.json()};
}"""


def called(page, method, path, body=None, **headers):
    """Return the answer that a page gets from the API."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return page.evaluate(CALL, [method, f"/api/v1{path}", body, sent])


def test_errors_lead_to_their_page(standing, desk):
    """The type of each error opens as a page."""
    number = desk.ask("https://api-errors.example")
    page = standing.window("ada")
    page.goto("/requests")
    found = {
        (400, "bad_request"): called(page, "POST", f"/requests/{number}/deny", '{"reason"'),
        (422, "invalid_input"): called(page, "POST", f"/requests/{number}/deny", '{"raeson": ""}'),
        (405, "method_not_allowed"): called(page, "PUT", f"/requests/{number}/deny", "{}"),
        (404, "external_access_request_unknown"): called(page, "GET", "/requests/nothing"),
    }
    for (status, code), answer in found.items():
        assert (answer["status"], answer["body"]["code"]) == (status, code)
        assert answer["kind"] == "application/problem+json"
        assert answer["body"]["type"] == f"/errors/{code}"
    assert found[422, "invalid_input"]["body"]["problems"][0]["suggestion"] == "reason"
    assert found[405, "method_not_allowed"]["allow"] == "POST"
    misspelt = called(page, "GET", "/requests?stat=pending")
    assert misspelt["body"]["problems"][0]["suggestion"] == "state"
    page.goto(found[400, "bad_request"]["body"]["type"])
    assert urlsplit(page.url).path == "/errors/bad_request"
    assert page.get_by_role("heading", level=1).inner_text() == "bad_request"
    assert desk.state(number) == "pending"


def test_a_decision_is_sent_again(standing, desk):
    """The same key gives one decision and one answer; another body is a conflict."""
    number = desk.ask("https://api-again.example")
    page = standing.window("ada")
    page.goto("/requests")
    path = f"/requests/{number}/deny"
    first, again = (called(page, "POST", path, Idempotency_Key="browser-1") for _ in range(2))
    assert (first["status"], first["body"]) == (200, again["body"])
    assert desk.state(number) == "denied"
    other = called(page, "POST", path, '{"reason": "other"}', Idempotency_Key="browser-1")
    assert (other["status"], other["body"]["code"]) == (409, "idempotency_conflict")
    plain = called(page, "POST", path)
    assert (plain["status"], plain["body"]["code"]) == (409, "external_access_conflict")
