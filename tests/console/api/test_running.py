"""Modules, tasks, extensions and subjects over the API."""

from __future__ import annotations

import pytest

from tests.console.serving import serving, until
from tests.services.rows import rows

API = "/api/v1"


def call(client, path, **params):
    return client.post(f"{API}/modules/{path}", json={"params": params})


def test_render_action_command(served, uma):
    """Calls run as the caller and return plain data."""
    assert call(uma, "reports/render").json()["result"]["for"] == "uma"
    written = call(
        uma,
        "reports/actions/write",
        month="may",
        sales=str(served.folder / "sales"),
        rates=f"{served.web.url}/v1/rates",
    )
    assert written.status_code == 200, written.text
    assert call(uma, "reports/commands/read", month="may").json()["result"] == written.json()["result"]


def test_large_results(uma):
    """A result beyond the limit is a failure of the module; the server continues."""
    assert len(call(uma, "odd/actions/large", size=5 * 1024**2).json()["result"]["text"]) == 5 * 1024**2
    for kind in ("text", "bytes"):
        answer = call(uma, "odd/actions/large", size=17 * 1024**2, kind=kind)
        assert (answer.status_code, answer.json()["code"]) == (502, "extension_failed")
        assert "16,777,216" in answer.json()["detail"]
    assert call(uma, "odd/actions/large", size=1).status_code == 200


def test_denied(served, uma):
    """A denial is a 403 with its parts, the hint and the pending request."""
    answer = call(uma, "weather/actions/fetch", url=f"{served.web.url}/denied")
    told = answer.json()
    assert answer.status_code == 403
    assert told["code"] == "sandbox_network_denied"
    assert (told["subject"], told["operation"]) == ("module:weather", "receive")
    assert told["target"].endswith("/denied")
    assert told["pending_request_id"] in told["hint"]
    assert told["request_id"] != told["pending_request_id"]


@rows(
    ("path", "status", "code"),
    [
        ("nothing/render", 404, "extension_unknown"),
        ("weather/actions/fetc", 404, "extension_unknown"),
        ("broken/render", 409, "extension_broken"),
        ("weather/actions/fetch", 502, "extension_failed"),
        ("weather/tasks/nothing", 404, "extension_unknown"),
        ("nothing/tasks/nothing", 404, "extension_unknown"),
    ],
)
def test_calls_that_fail(uma, path, status, code):
    """Unknown, broken and failing modules have their codes."""
    answer = call(uma, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "Traceback" not in answer.text


@rows("body", [b'{"params": []}', b'{"params": 1}', b'{"param": {}}', b"1"])
def test_bad_params(uma, body):
    """Parameters must be an object with known names."""
    headers = {"Content-Type": "application/json"}
    assert uma.post(f"{API}/modules/weather/render", content=body, headers=headers).status_code == 422


def test_nested_without_end(uma):
    """Deeply nested parameters are refused, and the server continues."""
    deep = b'{"params": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}}"
    answer = uma.post(f"{API}/modules/weather/render", content=deep, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert uma.get(f"{API}/me").status_code == 200


def test_task(served, uma, admin):
    """A task is started, followed to its end, and visible to its owner and administrators."""
    started = call(uma, "digest/tasks/collect", pages=[f"{served.web.url}/digest/1"])
    assert started.status_code == 202
    number = started.json()["id"]

    def ended():
        found = uma.get(f"{API}/tasks/{number}").json()
        return found if found["finished_at"] else None

    task = until(ended, "the task")
    assert task["origin"]["user_id"] == "uma"
    assert task["state"] in ("done", "failed")
    for client in (uma, admin):
        listed = client.get(f"{API}/tasks", params={"module": "digest"}).json()["items"]
        assert number in [item["id"] for item in listed]
    assert admin.post(f"{API}/tasks/{number}/cancel").json() == {"cancelled": False}


def test_tasks_of_others(served, uma, admin):
    """A task of another user looks missing."""
    number = call(admin, "digest/tasks/collect", pages=[]).json()["id"]
    assert uma.get(f"{API}/tasks/{number}").status_code == 404
    assert uma.post(f"{API}/tasks/{number}/cancel").status_code == 404
    assert number not in [item["id"] for item in uma.get(f"{API}/tasks").json()["items"]]


def test_task_pages(uma):
    """Tasks are listed in pages up to the last."""
    for _ in range(3):
        assert call(uma, "digest/tasks/collect", pages=[]).status_code == 202
    first = uma.get(f"{API}/tasks", params={"limit": 2}).json()
    assert len(first["items"]) == 2
    seen = {item["id"] for item in first["items"]}
    after = first["next"]
    while after:
        page = uma.get(f"{API}/tasks", params={"limit": 2, "after": after}).json()
        assert page["items"]
        assert not seen & {item["id"] for item in page["items"]}
        seen |= {item["id"] for item in page["items"]}
        after = page["next"]


def test_extensions(uma, admin):
    """All users see functions; administrators also see folders and problems."""
    listed = {item["name"]: item for item in uma.get(f"{API}/extensions").json()["items"]}
    assert ("action", "fetch") in [(offer["kind"], offer["name"]) for offer in listed["weather"]["offers"]]
    assert listed["broken"]["state"] == "broken"
    assert "folder" not in listed["broken"]
    assert uma.get(f"{API}/extensions/module/broken").status_code == 403
    detail = admin.get(f"{API}/extensions/module/broken").json()
    assert detail["problems"][0]["suggestion"] == "access"
    assert detail["problems"][0]["line"] == 1
    assert '"acess"' in detail["manifest"]
    assert admin.get(f"{API}/extensions/engine/nothing").status_code == 404
    assert admin.get(f"{API}/extensions/thing/weather").status_code == 422


def test_subjects(served, uma, admin):
    """A subject has declarations, decisions and observations."""
    call(uma, "weather/actions/fetch", url=f"{served.web.url}/subjects")
    shown = admin.get(f"{API}/subjects/module/weather").json()
    assert any(seen["result"] == "denied" and seen["target"].endswith("/subjects") for seen in shown["observed"])
    assert any(one["access"]["target"].endswith("/subjects") for one in shown["requests"])
    listed = {item["subject"]: item for item in admin.get(f"{API}/subjects").json()["items"]}
    assert listed["module:weather"]["counts"]["pending"] >= 1
    assert admin.get(f"{API}/subjects/module/reports").json()["declared"]


def test_status(admin, uma):
    """Administrators see the measured state of every layer."""
    answer = admin.get(f"{API}/status")
    assert answer.status_code == 200, answer.text
    lines = {line["name"]: line for line in answer.json()["lines"]}
    assert lines["store"]["state"] == "ok"
    assert {"guard", "snapshot", "events", "landlock", "seccomp", "helper", "extensions"} <= set(lines)
    assert uma.get(f"{API}/status").status_code == 403


def test_explain(served, admin, uma):
    """An explanation predicts an access by layer, and changes nothing."""
    before = admin.get(f"{API}/audit").json()["items"][0]["sequence"]
    body = {
        "subject": "module:weather",
        "resource_type": "network",
        "operation": "receive",
        "target": f"{served.web.url}/never-asked",
    }
    answer = admin.post(f"{API}/explain", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["layers"]
    assert told["verdict"]
    assert admin.get(f"{API}/audit").json()["items"][0]["sequence"] == before
    assert uma.post(f"{API}/explain", json=body).status_code == 403
    assert admin.post(f"{API}/explain", json={**body, "subject": "x"}).status_code == 422
    inside = admin.post(f"{API}/explain", json={**body, "chain": ["module:reports"]}).json()
    assert [one["subject"] for one in inside["chain"]] == ["module:reports", "module:weather"]
    assert inside["advice"]
    wrong = admin.post(f"{API}/explain", json={**body, "chain": ["reports"]})
    assert (wrong.status_code, wrong.json()["problems"][0]["pointer"]) == (422, "/chain/0")


def test_explain_a_line(served, admin, uma):
    """An error line is explained with the current state; a foreign line is refused."""
    line = f"External URL is locked. (sandbox_network_denied:weather:{served.web.url}/never-asked)"
    told = admin.post(f"{API}/explain/line", json={"line": line}).json()
    assert (told["code"], told["subject"], told["is_ours"]) == ("sandbox_network_denied", "weather", True)
    assert {one["access"]["operation"] for one in told["explanations"]} == {"receive", "send"}
    assert uma.post(f"{API}/explain/line", json={"line": line}).status_code == 403
    refused = admin.post(f"{API}/explain/line", json={"line": "hello"})
    assert (refused.status_code, refused.json()["code"]) == (422, "error_unknown")
    assert admin.post(f"{API}/explain/line", json={"line": "x" * 70_000}).status_code == 422


def test_what_json_cannot_hold(served, uma):
    """Bytes are base64."""
    result = call(uma, "odd/render").json()["result"]
    assert result == {"bytes": {"base64": "AP8="}}


def test_params_and_results_go_through(uma):
    """Parameters with any characters come back unchanged."""
    params = {"text": "\u202e\x00<script>", "list": [1, 2.5, None, True], "deep": {"": {"a/b~": []}}}
    assert call(uma, "odd/actions/echo", **params).json()["result"] == params


def test_call_that_takes_too_long(uma):
    """A call beyond its timeout is a 504."""
    answer = call(uma, "odd/actions/sleep", seconds=60)
    assert (answer.status_code, answer.json()["code"]) == (504, "worker_timeout")


def test_cancel(uma):
    """A running task is canceled by its owner."""
    number = call(uma, "odd/tasks/wait", seconds=600).json()["id"]
    assert uma.post(f"{API}/tasks/{number}/cancel").json() == {"cancelled": True}
    until(lambda: uma.get(f"{API}/tasks/{number}").json()["state"] == "cancelled", "the end of the task")


ODD = """
from datetime import date
from democrai_sandbox import sdk

@sdk.action("object")
def thing(): return {"a": [1, object()]}

@sdk.action("deep")
async def deep():
    found = []
    for _ in range(100): found = [found]
    return found

@sdk.action("limit")
def limit():
    found = []
    for _ in range(64): found = [found]
    return found

@sdk.action("date")
def day(): return {"day": date(2026, 5, 4)}
"""


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_a_result_that_cannot_be_passed_on_is_a_fault_of_the_extension(tmp_path, isolation):
    """A 502 with the place in the result, in process and in a worker."""
    folder = tmp_path / "modules" / "odd"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"name": "odd"}')
    (folder / "module.py").write_text(ODD)
    config = {"modules_path": str(folder.parent), "sandbox": {"isolation": {"module:odd": isolation}}}
    with serving(tmp_path, config, extensions=False) as served, served.bearer(served.administrator()) as client:
        for action, pointer in (("object", "/a/1"), ("deep", ""), ("limit", "")):
            answer = client.post(f"/api/v1/modules/odd/actions/{action}")
            assert (answer.status_code, answer.json()["code"]) == (502, "extension_result_invalid")
            assert [problem["pointer"] for problem in answer.json()["problems"]] == [pointer]
        assert client.post("/api/v1/modules/odd/actions/date").json() == {"result": {"day": "2026-05-04"}}
