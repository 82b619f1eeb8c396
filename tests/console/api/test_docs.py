"""docs/api.md and docs/monitoring.md: complete, correct, with working examples."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml

from democrai_sandbox.console.problems import STATUSES
from democrai_sandbox.errors.catalogue import ENTRIES
from democrai_sandbox.host.scopes import Scope
from tests.console.pages.asking import Desk
from tests.services.golden import sentence

DOCS = Path(__file__).parents[3] / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
MONITORING = (DOCS / "monitoring.md").read_text(encoding="utf-8")
ALERTS = DOCS.parent / "deploy" / "prometheus" / "alerts.yaml"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_operations(admin):
    """Every operation is in the table with its scope, and every row is an operation."""
    rows = set(re.findall(r"^\| `([A-Z]+) (\S+)` \| `?([\w:]+)`? \|", API, re.MULTILINE))
    document = admin.get("/api/v1/openapi.json").json()
    described = {
        (method.upper(), path.removeprefix("/api/v1"), operation.get("x-scope", "none"))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert rows == described


def test_scopes():
    """Every scope is explained."""
    assert set(re.findall(r"^\| `(\w+:\w+)` \|", API, re.MULTILINE)) == {scope.value for scope in Scope}


def test_statuses():
    """Every status that an error can have is explained."""
    explained = {int(status) for status in re.findall(r"^\| (\d{3}) \|", API, re.MULTILINE)}
    found = {HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.REQUEST_TIMEOUT}
    found |= {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR}
    assert {int(status) for _, status in STATUSES} | set(map(int, found)) <= explained


def test_types_of_problems(served):
    """The type of a problem is the path of a public page about its code."""
    with served.client() as nobody:
        for method, path in (("GET", "/api/v1/me"), ("GET", "/api/v1/nowhere"), ("DELETE", "/api/v1/me")):
            problem = nobody.request(method, path).json()
            assert problem["type"] == f"/errors/{problem['code']}"
            page = nobody.get(problem["type"])
            assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (200, "text/html")
            assert problem["code"] in page.text
        assert {nobody.get(f"/errors/{code}").status_code for code in ENTRIES} == {200}
        assert nobody.get("/errors/nothing").status_code == 404


def test_names_of_schemas(admin):
    """Schemas are named after their content, not after a module."""
    schemas = admin.get("/api/v1/openapi.json").json()["components"]["schemas"]
    assert [name for name in schemas if "__" in name or "-" in name] == []
    sentence("names of schemas", "\n".join(sorted(schemas)))


def test_bodies_are_required_only_where_something_has_to_be_said(admin):
    """An operation with optional members only needs no body."""
    document = admin.get("/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if body := operation.get("requestBody"):
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                needed = bool(document["components"]["schemas"][name].get("required"))
                assert body.get("required", False) is needed, (method, path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_examples(served, tmp_path):
    """The examples work against a real server."""
    with closing(Desk(served)) as desk:
        desk.ask("https://documented.example", operation="send")  # what risks most, and is newest, comes first
    secret = served.token(served.administrator())
    environ = {**os.environ, "URL": served.url, "TOKEN": secret, "no_proxy": "*", "HOME": str(tmp_path)}
    for example in blocks(API, "sh"):
        command = ["bash", "-euo", "pipefail", "-c", example]
        done = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
    assert (tmp_path / "audit.jsonl").read_text().count("\n") > 3
    assert '"approved_for_session"' in (tmp_path / "audit.jsonl").read_text()


def test_metrics(admin):
    """Documented and existing metrics are the same."""
    families = set(re.findall(r"^# TYPE (\w+) \w+$", admin.get("/metrics").text, re.MULTILINE))
    there = {name for name in families if not name.endswith("_created")}
    assert set(re.findall(r"^\| `(democrai_\w+)", MONITORING, re.MULTILINE)) == there


def test_alerts(admin):
    """The shipped rules are explained, and use existing metrics."""
    text = admin.get("/metrics").text
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == re.findall(r"^\| `(Democrai\w+)` \|", MONITORING, re.MULTILINE)
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        for name in re.findall(r"democrai_\w+", rule["expr"]):
            assert name in text, name


def test_checks(served, admin):
    """Every check of readiness is explained."""
    told = set(re.findall(r"^\| `(\w+)` \|", MONITORING, re.MULTILINE))
    explained = {name for name in told if not name.lower().startswith("democrai")}
    assert set(admin.get("/health/ready").json()["checks"]) | {"spawn_server", "helper", "keeper"} == explained
