"""HTTP answers for errors: every error has its status, and internal details stay inside."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from enum import StrEnum
from typing import Annotated, Literal

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from democrai_sandbox import errors
from democrai_sandbox.console import problems
from democrai_sandbox.console.problems import request_id
from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, Problem
from tests.console.pages.reading import Page
from tests.console.serving import PLAIN
from tests.services.golden import sentence
from tests.services.rows import rows

HALF = "\ud800"
CONFLICT = "already denied by ada"
SECRET = "a secret of the machine"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = ""


class Color(StrEnum):
    RED = "red"
    GREEN = "green"


class Body(BaseModel):
    number: int
    color: Color = Color.RED
    inner: Inner = Inner()
    several: list[Inner] = []


class Strict(Inner):
    number: int = 0
    kind: Literal["near", "far"] = "near"


class Filters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    state: Color = Color.RED
    subject: str = ""


def pending():
    denial = errors.NetworkDenied(
        "https://api.example.com/v1", subject="weather", subject_kind="module", operations=("receive",)
    )
    denial.decision = AccessDecision(False, DecisionCode.PENDING, True, "External URL is locked.", "r-1")
    return denial


RAISED = {
    "invalid": (InvalidInputError([Problem("/target", f"odd {HALF}", "even")]), 422),
    "no_target": (errors.NetworkTargetMissingError(), 422),
    "not_super": (errors.ExternalAccessAdminRequired("the user is scoped to an organization"), 403),
    "request": (errors.RequestUnknown("there is no request x"), 404),
    "decision": (errors.DecisionUnknown("there is no decision x"), 404),
    "extension": (errors.ExtensionUnknown("there is no module 'x'"), 404),
    "task": (errors.TaskUnknown("there is no task x"), 404),
    "conflict": (errors.DecisionConflict(CONFLICT), 409),
    "denied": (pending(), 403),
    "broken": (errors.ExtensionBroken("module x: /entry: there is no file"), 409),
    "failed": (errors.ExtensionFailed("oops", kind="ValueError", traceback="File secret.py"), 502),
    "odd result": (errors.ResultInvalid.of([Problem("/a/1", "not plain data: object")]), 502),
    "slow": (errors.CallTimeout("action fetch did not end within 1 s"), 504),
    "away": (errors.StoreUnavailable(), 503),
    "unchecked": (errors.ExternalAccessCheckFailed(), 503),
    "full": (errors.TaskQueueFull("as many tasks wait as may"), 429),
    "nobody": (errors.NotSignedIn("/login?next=/x"), 401),
    "refused": (errors.SignInRefused(), 401),
    "throttled": (errors.SignInThrottled(7), 429),
    "unconfirmed": (errors.ConfirmationNeeded("/account/confirm"), 403),
    "scope": (errors.ScopeMissing("audit:read"), 403),
    "account": (errors.AccountUnknown("there is no such token"), 404),
    "taken": (errors.AccountConflict("there is somebody called ada already"), 409),
    "kernel": (errors.KernelLayerError("the helper said something private"), 503),
    "guard": (errors.GuardUsageError("something private"), 500),
    "foreign": (RuntimeError(SECRET), 500),
}


@pytest.fixture(scope="module")
def client():
    app = FastAPI(redirect_slashes=False)

    @app.get("/api/v1/raise/{name}")
    @app.get("/pages/{name}")
    def fail(name: str):
        raise RAISED[name][0]

    @app.post("/api/v1/body")
    def body(given: Body, limit: int = 1):
        return {"request": request_id()}

    @app.post("/api/v1/strict")
    def strict(given: Strict):
        return {}

    @app.get("/api/v1/filtered")
    def filtered(query: Annotated[Filters, Query()]):
        return {}

    problems.install(app, lambda: False)
    return TestClient(app, follow_redirects=False)


@rows("name", RAISED)
def test_statuses(client, name):
    """Each error has the status of the table, its code, and the request id of the header."""
    error, status = RAISED[name]
    answer = client.get(f"/api/v1/raise/{name}")
    document = answer.json()
    assert answer.status_code == document["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["code"] == (error.code if status != 500 else "internal_error")
    assert document["type"] == f"/errors/{document['code']}"
    assert document["title"]
    assert document["request_id"] == answer.headers["x-request-id"]


def test_every_error_of_a_visitor_has_a_status():
    """Every error that a client can cause is in the table."""
    own = {"ConfigInvalid", "SchemaOutdated", "ResumeContextUnreadable", "Problem", "Subject"}
    own |= {name for name in errors.__all__ if issubclass(_kind(name), errors.HostRefused)}
    own |= {"GuardSealedError", "GuardUsageError", "NoRuntime", "NodeRefused", "SandboxError"}
    missing = [
        name
        for name in errors.__all__
        if name not in own and not any(issubclass(_kind(name), kind) for kind, _ in problems.STATUSES)
    ]
    assert missing == []


def _kind(name):
    found = getattr(errors, name)
    return found if isinstance(found, type) and issubclass(found, Exception) else type("NotAnError", (), {})


def test_denial(client):
    """A denial has its parts, the hint and the pending request."""
    document = client.get("/api/v1/raise/denied").json()
    assert document["subject"] == "module:weather"
    assert document["operation"] == "receive"
    assert document["target"] == "https://api.example.com/v1"
    assert document["pending_request_id"] == "r-1"
    assert "r-1" in document["hint"]


def test_problems_are_listed(client):
    """Problems have their place and a suggestion, also with lone surrogates."""
    document = client.get("/api/v1/raise/invalid").json()
    assert document["problems"] == [{"pointer": "/target", "message": "odd \\ud800", "suggestion": "even"}]


@rows("name", ["foreign", "kernel", "guard", "failed"])
def test_nothing_inside_is_told(client, name):
    """Internal error texts and tracebacks of extensions are not sent."""
    text = client.get(f"/api/v1/raise/{name}").text
    assert "secret" not in text
    assert "private" not in text


def test_faults_are_logged(client, caplog):
    """An internal error is logged under the request id of the answer."""
    with caplog.at_level(logging.ERROR, "democrai_sandbox.console"):
        document = client.get("/api/v1/raise/foreign").json()
    logged = next(record for record in caplog.records if record.exc_info)
    assert document["request_id"] in logged.getMessage()
    assert SECRET in caplog.text


def test_headers(client):
    """A throttled sign-in has Retry-After, a 401 the authentication scheme."""
    assert client.get("/api/v1/raise/throttled").headers["retry-after"] == "7"
    assert client.get("/api/v1/raise/nobody").headers["www-authenticate"] == "Bearer"


@rows(
    ("body", "pointer"),
    [
        (b'{"number": "x"}', "/number"),
        (b"{}", "/number"),
        (b'{"number": 1, "a/b": "\\ud800"}', None),
        (b"[1]", ""),
    ],
)
def test_bodies(client, body, pointer):
    """An invalid body is a 422 with its place; the input is not repeated."""
    answer = client.post("/api/v1/body", content=body, headers={"Content-Type": "application/json"})
    if pointer is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 422
    assert [problem["pointer"] for problem in answer.json()["problems"]] == [pointer]


def test_query_problems(client):
    """An invalid parameter is named."""
    answer = client.post("/api/v1/body?limit=many", json={"number": 1})
    assert [problem["pointer"] for problem in answer.json()["problems"]] == ["/limit"]


@rows("body", [b"{", b'{"number": 1', b"{'number': 1}", b"\xff\xfe", b"[" * 100_000])
def test_unreadable_bodies(client, body):
    """Invalid JSON, binary data and deep nesting are bad requests."""
    answer = client.post("/api/v1/body", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert answer.headers["content-type"] == "application/problem+json"


@rows(
    ("method", "path", "body", "found"),
    [
        ("POST", "/api/v1/strict", {"raeson": "x"}, {"/raeson": "reason"}),
        ("POST", "/api/v1/strict", {"numbr": 1, "zzz": 2}, {"/numbr": "number", "/zzz": ""}),
        ("POST", "/api/v1/strict", {"kind": "neer"}, {"/kind": "near"}),
        ("POST", "/api/v1/body", {"number": 1, "inner": {"reasn": ""}}, {"/inner/reasn": "reason"}),
        ("POST", "/api/v1/body", {"number": 1, "several": [{}, {"raison": ""}]}, {"/several/1/raison": "reason"}),
        ("POST", "/api/v1/body", {"number": 1, "color": "gren"}, {"/color": "green"}),
        ("GET", "/api/v1/filtered?stat=red", None, {"/stat": "state"}),
        ("GET", "/api/v1/filtered?subjct=x&state=rde", None, {"/subjct": "subject", "/state": "red"}),
        ("GET", f"/api/v1/filtered?{'x' * 3000}=1", None, {f"/{'x' * 3000}": ""}),
    ],
)
def test_misspelt_names_get_a_suggestion(client, method, path, body, found):
    """An unknown name or value gets the nearest valid one."""
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422
    assert {problem["pointer"]: problem["suggestion"] for problem in answer.json()["problems"]} == found


def test_paths_and_methods(client):
    """Unknown paths and wrong methods have the same format."""
    absent = client.get("/api/v1/nothing")
    assert (absent.status_code, absent.json()["code"]) == (404, "not_found")
    assert absent.json()["type"] == "/errors/not_found"
    wrong = client.delete("/api/v1/body")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/api/v1/wait", "/wait"])
def test_whoever_is_cut_off_at_the_end_is_told_to_come_back(path):
    """A stopping server answers long calls with 503 instead of an error."""
    app, is_waiting, is_ending = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.get(path)
    async def wait():
        is_waiting.set()
        await asyncio.Event().wait()

    problems.install(app, is_ending.is_set)

    async def ask():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(
                uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
            )
            serving = asyncio.create_task(server._serve([listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
            async with httpx.AsyncClient(timeout=30, **PLAIN) as client:
                asked = asyncio.create_task(client.get(url))
                await asyncio.wait_for(is_waiting.wait(), 30)
                is_ending.set()
                server.should_exit = True
                answer = await asked
            await serving
            return answer

    answer = asyncio.run(ask())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["x-request-id"] in answer.text
    sentence("cut off", answer.json()["detail"] if path.startswith("/api/") else Page(answer).parts("lead")[0])


def test_numbers_are_not_taken(client):
    """A request id of the client is ignored."""
    answers = [client.post("/api/v1/body", json={"number": 1}, headers={"X-Request-Id": "chosen"}) for _ in range(2)]
    numbers = [answer.headers["x-request-id"] for answer in answers]
    assert [answer.json()["request"] for answer in answers] == numbers
    assert len(set(numbers)) == 2
    assert "chosen" not in numbers


def test_access_lines(client, caplog):
    """Each HTTP request is one log line, with its path and without its query."""
    with caplog.at_level(logging.INFO, "democrai_sandbox.console.access"):
        answer = client.get("/api/v1/%0Afaked%20line?token=x")
    (record,) = [record for record in caplog.records if record.name.endswith("access")]
    assert record.request_id == answer.headers["x-request-id"]
    assert (record.method, record.status, record.path) == ("GET", 404, "/api/v1/%0Afaked%20line")
    assert "\n" not in record.getMessage()
    assert "token" not in record.getMessage()


def test_pages_send_people_to_sign_in(client):
    """Pages redirect to the sign-in and to the password confirmation."""
    for name, place in (("nobody", "/login?next=/x"), ("unconfirmed", "/account/confirm")):
        answer = client.get(f"/pages/{name}")
        assert (answer.status_code, answer.headers["location"]) == (303, place)


def test_pages_say_it_in_words(client):
    """An error page has the status and the request id, without JSON."""
    answer = client.get("/pages/conflict")
    assert answer.status_code == 409
    assert answer.headers["content-type"].startswith("text/html")
    assert CONFLICT in answer.text
    assert answer.headers["x-request-id"] in answer.text


def test_mounted():
    """Below a mount point, programs still get documents."""
    inner, outer = FastAPI(), FastAPI()

    @inner.get("/api/v1/conflict")
    def conflict():
        raise errors.DecisionConflict("already denied")

    problems.install(inner, lambda: False)
    outer.mount("/sandbox", inner)
    answer = TestClient(outer).get("/sandbox/api/v1/conflict")
    assert answer.json()["type"] == "/sandbox/errors/external_access_conflict"
    assert (answer.status_code, answer.json()["code"]) == (409, "external_access_conflict")


def test_refusal_before_the_application():
    """Middleware refusals have the same formats."""
    scope = {"type": "http", "method": "POST", "path": "/api/v1/tasks", "root_path": "", "headers": []}
    answer = problems.refusal(scope, 403, "origin_refused", "it comes from another site")
    assert json.loads(answer.body)["code"] == "origin_refused"
