"""Users of an embedding application, scopes of tokens, and the console below a path."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
import pytest

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PLAIN, until
from tests.services.commands import Forked, instead
from tests.services.ports import kept_port
from tests.services.rows import rows

OWN = {"Sec-Fetch-Site": "same-origin"}


class Foreign:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.keeper = kept_port()
        port = self.keeper.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = self.folder / "log"
        with self.log.open("wb") as log:
            program = instead("tests.console.foreign_application", folder, port)
            self.process = Forked([], environ=dict(os.environ), streams=(log, log, log), before=program)

        def is_up():
            if self.process.poll() is not None:
                raise AssertionError(self.log.read_text())
            try:
                return httpx.get(f"{self.url}/sandbox/health/live", **PLAIN, timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        until(is_up, "the application")

    def client(self, user="", **headers):
        given = {**OWN, **({"X-User": user} if user else {}), **headers}
        return httpx.Client(base_url=f"{self.url}/sandbox", headers=given, **PLAIN, timeout=60)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    found = Foreign(tmp_path_factory.mktemp("foreign"))
    yield found
    found.process.terminate()
    found.process.wait(60)
    found.keeper.close()


def test_the_application_says_who_somebody_is(foreign):
    """Name, roles and session come from the application."""
    with foreign.client("ada", Cookie="theirs=monday") as client:
        me = client.get("/api/v1/me").json()
    assert (me["user_id"], me["name"], me["session_key"]) == ("ada", "Ada <b>Lovelace</b>", "ada-monday")
    assert me["may_decide"] is True
    for user, may in (("uma", False), ("otto", False)):
        with foreign.client(user) as client:
            assert client.get("/api/v1/me").json()["may_decide"] is may


def test_nobody_is_sent_to_the_sign_in_of_the_application(foreign):
    """The redirect has the return address; the API answers 401."""
    for user in ("", "mallory"):
        with foreign.client(user) as client:
            answer = client.get("/requests?state=all")
            assert answer.status_code == 303
            expected = "/their/sign-in?from=sandbox&next=/sandbox/requests%3Fstate%3Dall"
            assert answer.headers["location"] == expected
            assert client.get("/api/v1/me").status_code == 401


def test_a_header_that_came_twice_is_not_taken_for_one(foreign):
    """A repeated identity header is refused."""
    headers = [("X-User", "ada"), ("X-User", "uma"), *OWN.items()]
    with httpx.Client(base_url=f"{foreign.url}/sandbox", headers=headers, **PLAIN, timeout=60) as client:
        assert client.get("/api/v1/me").status_code == 401


@rows("path", ["/login", "/account", "/account/confirm", "/people", "/people/ada/disable", "/logout"])
def test_there_are_no_accounts_of_ours(foreign, path):
    """Pages about passwords and users do not exist."""
    with foreign.client("ada") as client:
        assert client.get(path).status_code in {404, 405}
        assert client.post(path).status_code in {404, 405}
        assert "/sandbox/account" not in client.get("/requests").text


def test_every_address_of_a_page_is_below_the_path(foreign):
    """Links, forms and files are below the mount point."""
    with foreign.client("ada") as client:
        page = client.get("/requests")
        assert page.status_code == 200
        addresses = re.findall(r'(?:href|src|action)="([^"#]+)', page.text)
        assert len(addresses) > 8
        assert [one for one in addresses if not one.startswith(("/sandbox/", "?"))] == []
        for one in {one for one in addresses if "/static/" in one}:
            assert client.get(foreign.url + one).status_code == 200
        assert "Ada &lt;b&gt;Lovelace" in page.text


def test_the_hosts_of_the_application_are_its_own_business(foreign):
    """Any host name is accepted; forms of other sites are refused."""
    host = {"Host": "app.example.com"}
    with foreign.client("ada", **host) as client:
        assert client.get("/requests").status_code == 200
        for site in ("cross-site", "same-site"):
            answer = client.post("/api/v1/explain", json={}, headers={"Sec-Fetch-Site": site})
            assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")
    bare = {"X-User": "ada", **host, "Origin": "http://app.example.com"}
    with httpx.Client(base_url=f"{foreign.url}/sandbox", headers=bare, **PLAIN, timeout=60) as client:
        assert client.post("/api/v1/explain", json={}).status_code == 422
        other = client.post("/api/v1/explain", json={}, headers={"Origin": "http://evil.example"})
        assert other.json()["code"] == "origin_refused"


def test_somebody_who_is_shut_out_is_nobody_at_once(foreign):
    """Roles are read for every HTTP request."""
    with foreign.client("ada") as client:
        assert client.get("/api/v1/me").status_code == 200
        mark = foreign.folder / "shut-out"
        mark.touch()
        try:
            assert client.get("/api/v1/me").status_code == 401
            assert client.get("/requests").status_code == 303
        finally:
            mark.unlink()


def test_nobody_is_asked_for_a_password_that_is_kept_elsewhere(foreign):
    """The setting affects accounts of the console only."""
    order = {"subject": "module:x", "resource_type": "filesystem", "operation": "read", "target": "/srv/never"}
    with foreign.client("ada") as client:
        answer = client.post("/api/v1/decisions", json={**order, "effect": "denial"})
    assert answer.status_code == 201, answer.text


# ---- tokens


def test_each_scope_opens_its_own_doors_and_no_others(served):
    """Without the scope the answer is 403 with its name; with it the call works."""
    doors = {
        Scope.REQUESTS_READ: "/api/v1/requests",
        Scope.APPROVALS_READ: "/api/v1/approvals",
        Scope.SUBJECTS_READ: "/api/v1/subjects",
        Scope.TASKS_READ: "/api/v1/tasks",
        Scope.AUDIT_READ: "/api/v1/audit",
        Scope.STATUS_READ: "/api/v1/status",
        Scope.ACCOUNTS_MANAGE: "/api/v1/tokens",
    }
    administrator = served.administrator()
    for scope in doors:
        with served.bearer(administrator, scope) as client:
            for other, path in doors.items():
                answer = client.get(path)
                assert answer.status_code == (200 if other is scope else 403), (scope, path)
                if other is not scope:
                    assert answer.json()["code"] == "scope_missing"
                    assert other in answer.json()["detail"]


def test_a_scope_gives_nothing_that_the_owner_may_not(served):
    """A token with every scope has at most the rights of its owner."""
    uma = served.person("uma")
    with served.bearer(uma) as hers, served.bearer(served.administrator()) as admin:
        request = served.stop_weather(hers, "/forecast/of-uma")
        answer = hers.post(f"/api/v1/requests/{request}/approve", json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "external_access_admin_required")
        assert admin.get(f"/api/v1/requests/{request}").json()["request"]["state"] == "pending"


def test_a_token_cannot_make_a_stronger_one(served):
    """A token cannot create a token with further scopes."""
    with served.bearer(served.administrator(), Scope.ACCOUNTS_MANAGE) as client:
        answer = client.post("/api/v1/tokens", json={"label": "more", "scopes": ["accounts:manage", "requests:decide"]})
        assert answer.status_code == 422
        assert "requests:decide" in answer.json()["detail"]
        assert client.post("/api/v1/tokens", json={"label": "same", "scopes": ["accounts:manage"]}).status_code == 201
