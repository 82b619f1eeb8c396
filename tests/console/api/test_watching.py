"""Health, metrics and the audit log for programs."""

from __future__ import annotations

import csv
import io
import json

import httpx
from prometheus_client.parser import text_string_to_metric_families

from democrai_sandbox.access.audit import verify_export
from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PLAIN, until
from tests.services.rows import rows

API = "/api/v1"


def numbers(client):
    """Every sample of the metrics, by name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_live_and_ready(served):
    """The health checks are public and have names and states only."""
    with httpx.Client(base_url=served.url, **PLAIN, timeout=60) as nobody:
        assert nobody.get("/health/live").json() == {"live": True}
        answer = nobody.get("/health/ready")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        checks = answer.json()["checks"]
        assert {"store", "schema", "snapshot", "events", "runtime"} <= set(checks)
        assert set(checks.values()) == {"ok"}
        assert answer.headers["cache-control"] == "no-store"


def test_metrics_are_not_for_everybody(served, uma):
    """Numbers are for administrators, by a session or by a token with the scope."""
    with httpx.Client(base_url=served.url, **PLAIN, timeout=60) as nobody:
        assert nobody.get("/metrics").status_code == 401
    assert uma.get("/metrics").status_code == 403
    with served.bearer(served.administrator(), Scope.AUDIT_READ) as other:
        assert other.get("/metrics").status_code == 403
    with served.bearer(served.administrator(), Scope.STATUS_READ) as right, served.signed_in() as person:
        assert right.get("/metrics").status_code == 200
        assert person.get("/metrics").status_code == 200


def test_metrics(served, admin, ask):
    """Checks, pending requests, decisions and extensions are counted."""
    before = numbers(admin)
    assert before["democrai_store_reachable",] == 1
    assert before["democrai_events_connected",] == 1
    assert 0 <= before["democrai_refresh_lag_seconds",] < 60
    assert before["democrai_helper_failures_total",] == 0
    assert before["democrai_extensions", ("kind", "module"), ("state", "broken")] >= 1
    running = admin.get(f"{API}/tasks", params={"state": "running", "limit": 1000}).json()["items"]
    assert before["democrai_tasks", ("state", "running")] == len(running)
    number = ask()
    waiting = numbers(admin)
    assert waiting["democrai_pending_requests",] == before["democrai_pending_requests",] + 1
    assert waiting["democrai_pending_oldest_seconds",] > 0

    def denied(found):
        return sum(value for name, value in found.items() if name[0] == "democrai_checks_total" and is_no(name))

    def is_no(name):
        return dict(name[1:])["result"] in ("denied", "pending")

    assert denied(waiting) > denied(before)
    admin.post(f"{API}/requests/{number}/deny", json={})

    def counted():
        found = numbers(admin)["democrai_decision_seconds_count",]
        return found > before["democrai_decision_seconds_count",]

    until(counted, "the count of the decision")
    assert numbers(admin)["democrai_pending_requests",] == before["democrai_pending_requests",]


def test_build(admin):
    """The metrics say which version runs."""
    (build,) = [dict(name[1:]) for name in numbers(admin) if name[0] == "democrai_build_info"]
    assert set(build) == {"version", "python", "node"}


def test_export(admin, ask):
    """The export is complete and verifiable; with a filter it equals the list."""
    number = ask()
    whole = admin.get(f"{API}/audit/export")
    assert whole.headers["content-type"].startswith("application/x-ndjson")
    assert "attachment" in whole.headers["content-disposition"]
    lines = whole.text.splitlines()
    assert verify_export(lines).ok
    assert admin.get(f"{API}/audit/verify").json()["ok"] is True
    part = admin.get(f"{API}/audit/export", params={"request": number}).text.splitlines()
    listed = admin.get(f"{API}/audit", params={"request": number}).json()["items"]
    assert [json.loads(line)["sequence"] for line in part] == [item["sequence"] for item in reversed(listed)]
    table = admin.get(f"{API}/audit/export", params={"format": "csv", "request": number})
    assert table.headers["content-type"].startswith("text/csv")
    assert len(list(csv.reader(io.StringIO(table.text, newline="")))) == len(listed) + 1
    assert admin.get(f"{API}/audit/export?format=xml").status_code == 422


@rows("note", ["=HYPERLINK(1)", "\u202e\u200b<b>", "+1\n-2"])
def test_hostile_text(admin, ask, note):
    """Hostile text is unchanged in JSON, and is not a formula in CSV."""
    number = ask(f"/{ord(note[0])}")
    admin.post(f"{API}/requests/{number}/deny", json={"reason": note})
    records = admin.get(f"{API}/audit", params={"request": number}).json()["items"]
    assert any(note in json.dumps(record, ensure_ascii=False).replace("\\n", "\n") for record in records)
    table = admin.get(f"{API}/audit/export", params={"format": "csv", "request": number}).text
    for row in csv.reader(io.StringIO(table, newline="")):
        assert not any(cell.lstrip(" ").startswith(("=", "+", "-", "@")) for cell in row)


def test_audit_filters(served, admin, ask):
    """Records are filtered by action, actor, subject and time."""
    number = ask()
    admin.post(f"{API}/requests/{number}/deny", json={})
    found = admin.get(f"{API}/audit", params={"action": "denied", "actor": served.admin, "request": number}).json()
    assert [record["action"] for record in found["items"]] == ["denied"]
    at = found["items"][0]["at"]
    for query, expected in (({"since": at}, 1), ({"until": at}, 0), ({"subject": "module:reports"}, 0)):
        items = admin.get(f"{API}/audit", params={"action": "denied", "request": number, **query}).json()["items"]
        assert len(items) == expected, query
    for wrong in ("action=nothing", "subject=x", "since=now", "who=ada"):
        assert admin.get(f"{API}/audit?{wrong}").status_code == 422
