"""Served process: the story over HTTP, and its orderly shutdown."""

from __future__ import annotations

import json
import signal

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PASSWORD, serving, until


def test_the_whole_story_over_http(served):
    """A module is denied, approved for the session, and resumed."""
    uma = served.person("uma")
    with served.bearer(uma, Scope.MODULES_RUN) as hers, served.bearer(served.administrator()) as admin:
        request = served.stop_weather(hers, "/forecast/oslo")
        found = admin.get(f"/api/v1/requests/{request}")
        assert found.status_code == 200, found.text
        assert found.json()["request"]["state"] == "pending"
        admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()

        def resumed():
            found = admin.get(f"/api/v1/requests/{request}").json()["resume"]
            return found if found and found["state"] in {"succeeded", "failed"} else None

        assert until(resumed, "going on")["state"] == "succeeded"
        shown = hers.post("/api/v1/modules/weather/render", json={"params": {}}).json()["result"]
        assert shown["forecast"] == "GET /forecast/oslo"
        assert not [page for page in shown["waiting for"] if page.endswith("/forecast/oslo")]
        actions = [found["action"] for found in admin.get(f"/api/v1/requests/{request}").json()["history"]]
        assert set(actions) >= {"requested", "approved_for_session", "resume_succeeded"}
    assert served.web.asked.count("/forecast/oslo") == 1


def test_lines_of_the_log_are_json_and_hold_no_secret(served):
    """One object per line with the request id, without secrets, hostile text escaped."""
    with served.signed_in(served.admin, served.password) as client:
        answer = client.get("/nowhere/%1b%5b2J%0aforged")
        number = answer.headers["x-request-id"]
    token = served.token(served.administrator())
    with served.client() as client:
        client.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"})

    def logged():
        return next((line for line in lines(served) if line.get("request_id") == number), None)

    found = until(logged, "the line")
    assert (found["status"], found["method"]) == (404, "GET")
    assert "forged" in found["path"]
    text = served.log.read_text()
    assert "\x1b" not in text
    for secret in (served.password, PASSWORD, token):
        assert secret not in text


def lines(served):
    return [json.loads(line) for line in served.log.read_text().splitlines()]


def test_signals_end_it_in_order(tmp_path):
    """The exit status is 0, also with open streams, and the next start uses the same state."""
    with serving(tmp_path, extensions=False) as found:
        first = found.password
        with found.signed_in() as client, client.stream("GET", "/live") as stream:
            heard = stream.iter_lines()
            next(heard)
            assert found.stop(signal.SIGTERM) == 0
            for _ in heard:  # to its end
                pass
        found.start()
        with found.signed_in(found.admin, first) as client:
            assert client.get("/health/live").status_code == 200
        assert [line for line in found.said if line.startswith("first login")] == []
        assert found.stop(signal.SIGINT) == 0
