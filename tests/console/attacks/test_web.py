"""Every route called by a foreign page, without a user, without rights, and with tokens of other scopes."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

import httpx

from democrai_sandbox.console import api, pages
from democrai_sandbox.host.authentication import Visit
from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PLAIN, SAME_ORIGIN
from tests.services.rows import rows

SAFE = ("GET", "HEAD")
FOR_ANYBODY = {("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/login"), ("POST", "/login")} | {
    ("GET", "/live"),  # tells nobody that it is over, see tests/console/test_live.py
    ("GET", "/errors/{code}"),  # a page of the manual
}
FOR_EVERYBODY = {
    ("GET", "/api/v1/requests"),
    ("GET", "/api/v1/extensions"),
    ("GET", "/api/v1/tasks"),
    ("GET", "/api/v1/me"),
    ("GET", "/api/v1/tokens"),
    ("GET", "/api/v1/sessions"),
    ("GET", "/requests"),
    ("GET", "/requests/states"),
    ("GET", "/account"),
    ("GET", "/account/confirm"),
    ("GET", "/extensions"),
    ("GET", "/tasks"),
}
"""What somebody who may not decide is shown: what is their own, and which extensions there are."""


def every_route():
    """Yield method and path of every route."""
    for prefix, routers in (("/api/v1", api.routers()), ("", (*api.unversioned(), *pages.routers()))):
        for router in routers:
            for route in router.routes:
                for method in sorted(route.methods):
                    yield method, prefix + route.path


ROUTES = tuple(every_route())
UNSAFE = tuple(one for one in ROUTES if one[0] not in SAFE)


def filled(path, value="x"):
    return re.sub(r"\{[^}]+\}", value, path)


def send(served, method, path, headers=()):
    """Send exactly these headers, also repeated ones; return status and text."""
    split = urlsplit(served.url)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        body = None if method in SAFE else b"a=b"
        given = [*headers, ("Content-Type", "application/x-www-form-urlencoded")]
        if not any(name == "Host" for name, _ in given):
            given.append(("Host", split.netloc))
        if body is not None:
            given.append(("Content-Length", str(len(body))))
        for name, value in given:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def foreign(served):
    """Headers of HTTP requests from a foreign page, and headers that imitate ours."""
    own = urlsplit(served.url).netloc
    return (
        [],
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site"), ("Origin", f"http://{own}")],
        [("Sec-Fetch-Site", "SAME-ORIGIN")],
        [("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "")],
        [("Origin", "null")],
        [("Origin", "http://127.0.0.1:1")],
        [("Origin", f"https://{own}")],
        [("Origin", f"http://{own}.example.com")],
        [("Origin", f"http://{own}"), ("Origin", "http://example.com")],
        [("X-HTTP-Method-Override", "GET")],
    )


def test_there_are_routes():
    """The list covers the whole console."""
    assert len(ROUTES) > 80
    assert len(UNSAFE) > 30


def test_no_page_of_others_changes_anything(served):
    """Every changing route refuses a cookie without our origin."""
    with served.signed_in() as client:
        cookie = ("Cookie", "; ".join(f"{name}={value}" for name, value in client.cookies.items()))
    let_through = [
        (method, path, headers, status)
        for method, path in UNSAFE
        for headers in foreign(served)
        for status, text in [send(served, method, filled(path), [cookie, *headers])]
        if (status, "origin_refused" in text) != (403, True)
    ]
    assert let_through == []


def test_nobody_sees_nothing(served):
    """Without a session or token only the sign-in and health checks answer."""
    let_through = []
    with httpx.Client(base_url=served.url, headers=SAME_ORIGIN, timeout=60, **PLAIN) as client:
        for method, path in ROUTES:
            status = client.request(method, filled(path)).status_code
            is_for_programs = path.startswith(("/api/", "/metrics"))
            if (method, path) not in FOR_ANYBODY and status != (401 if is_for_programs else 303):
                let_through.append((method, path, status))
    assert let_through == []


def test_somebody_who_may_not_decide_gets_only_what_is_their_own(served):
    """With all scopes and a session, data of others looks missing or is refused."""
    uma, zed = served.person("uma"), served.person("zed")
    with served.bearer(zed) as other, served.signed_in("zed"):
        ids = {"request_id": served.stop_weather(other, "/forecast/of-zed")}
        ids["session_id"] = other.get("/api/v1/sessions").json()["items"][0]["id"]
        ids["token_id"] = other.get("/api/v1/tokens").json()["items"][0]["id"]
    ids |= {"name": "zed", "user_id": "zed", "person_id": "zed", "sequence": "1"}
    seen = []
    with served.bearer(uma) as machine, served.signed_in("uma") as browser:
        for method, path in ROUTES:
            if "modules/" in path or path in {"/live", "/logout"} or (method, path) in FOR_ANYBODY:
                continue
            if path.startswith("/account") and method not in SAFE and "{" not in path:
                continue  # one's own
            place = re.sub(r"\{(\w+)[^}]*\}", lambda found: ids.get(found[1], "module"), path)
            client = machine if path.startswith(("/api/", "/metrics")) else browser
            body = {"json": {}} if client is machine and method not in SAFE else {}
            answer = client.request(method, place, **body)
            if answer.status_code < 400 and "of-zed" in answer.text:
                seen.append((method, path, "shows what is zed's"))
            if answer.status_code == 200 and (method, path) not in FOR_EVERYBODY:
                seen.append((method, path, answer.status_code))
    assert seen == [("DELETE", "/api/v1/sessions", 200)]  # one's own as well
    assert [one.id for one in served.accounts.sessions_of("zed")] == [ids["session_id"]]


@rows("scope", list(Scope))
def test_a_token_opens_what_its_scope_names(served, scope):
    """A token with one scope is refused for all others first."""
    opened = set()
    with served.bearer(served.administrator(), scope) as client:
        for method, path in ROUTES:
            if not path.startswith(("/api/", "/metrics")) or path == "/api/v1/me":
                continue
            body = {} if method in SAFE else {"json": {}}
            answer = client.request(method, filled(path, "nothing"), **body)
            if (answer.status_code, answer.json().get("code") if answer.status_code == 403 else "") != (
                403,
                "scope_missing",
            ):
                opened.add(path.removeprefix("/api/v1").split("/")[1])
    assert opened <= OPENED_BY[scope], opened


OPENED_BY = {
    Scope.REQUESTS_READ: {"requests"},
    Scope.REQUESTS_DECIDE: {"requests", "decisions", "shadows"},
    Scope.APPROVALS_READ: {"approvals", "denials", "decisions"},
    Scope.APPROVALS_REVOKE: {"decisions"},
    Scope.SUBJECTS_READ: {"subjects", "extensions", "mcp-servers", "models", "explain", "shadows"},
    Scope.EXTENSIONS_MANAGE: {"extensions", "mcp-servers", "models"},
    Scope.MODULES_RUN: {"modules"},
    Scope.TASKS_READ: {"tasks"},
    Scope.TASKS_CANCEL: {"tasks"},
    Scope.AUDIT_READ: {"audit"},
    Scope.STATUS_READ: {"status", "metrics"},
    Scope.ACCOUNTS_MANAGE: {"tokens", "sessions"},
}


def test_a_token_opens_no_page(served):
    """A token header does not bypass the host check of pages."""
    with served.bearer(served.administrator()) as client:
        assert client.get("/requests").status_code == 303
    headers = [("Authorization", "Bearer x"), ("Host", "rebound.example.com"), ("Origin", "http://rebound.example.com")]
    assert send(served, "GET", "/login", headers)[0] == 421
    assert send(served, "POST", "/login", headers)[0] == 421
    assert send(served, "POST", "/login", [("Authorization", "Bearer x")])[0] == 403


# ---- texts of others


HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
MARKS = ("<script>alert", "<img src=x")


def linked(page, seen):
    """Yield the linked paths of a page, each once."""
    for found in re.findall(r"""(?:href|action)="(/[^"#]*)""", page):
        path = found.replace("&amp;", "&")
        if path not in seen and not path.startswith(("/static", "/logout", "/live")):
            seen.add(path)
            yield path


def plant(served, client):
    """Store a text in every place for foreign text; return the places that echo it."""
    with served.bearer(served.administrator()) as machine:
        answer = machine.post(
            "/api/v1/modules/weather/actions/fetch", json={"params": {"url": served.web.url + "/f?q=%3Cscript%3Ealert"}}
        )
        number = answer.json()["pending_request_id"]
        machine.post(f"/api/v1/requests/{number}/notes", json={"text": HOSTILE}).raise_for_status()
        machine.post("/api/v1/tokens", json={"label": HOSTILE, "scopes": ["tasks:read"]}).raise_for_status()
        unasked = {"subject": "module:weather", "resource_type": "filesystem", "operation": "read"}
        unasked |= {"target": f"/srv/{HOSTILE}", "effect": "denial", "reason": HOSTILE}
        machine.post("/api/v1/decisions", json=unasked).raise_for_status()
        machine.post(f"/api/v1/requests/{number}/deny", json={"reason": HOSTILE}).raise_for_status()
    refused = client.post("/login", data={"name": HOSTILE, "password": "x", "next": HOSTILE})
    assert not any(mark in refused.text for mark in MARKS)
    served.accounts.sign_in(served.admin, served.password, Visit({"user-agent": HOSTILE}, {}, HOSTILE, "/login"))
    return [
        f"{path}?{httpx.QueryParams({name: HOSTILE})}"
        for path in ("/requests", "/approvals", "/denials", "/audit", "/tasks", "/subjects", "/extensions", "/explain")
        for name in ("q", "subject", "target", "user", "state", "done", "after", "kind")
    ]


def test_no_text_of_others_becomes_part_of_a_page(served):
    """Foreign text is escaped on every page."""
    with served.signed_in() as browser:
        browser.headers["User-Agent"] = HOSTILE
        waiting = ["/", "/account", "/people", "/status", "/requests?state=all", "/denials", "/audit", "/subjects"]
        waiting += plant(served, browser)
        seen, looked = set(waiting), 0
        while waiting and looked < 250:
            answer = browser.get(waiting.pop(0), follow_redirects=True)
            looked += 1
            assert answer.status_code < 500, answer.url
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            if answer.headers["Content-Type"].startswith("text/html"):
                assert not any(mark in answer.text for mark in MARKS), answer.url
                waiting.extend(linked(answer.text, seen))
    assert looked > 60
