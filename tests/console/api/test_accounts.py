"""API permissions: scopes, tokens, sessions, and unauthenticated callers."""

from __future__ import annotations

import httpx
import pytest

from democrai_sandbox.host.scopes import Scope
from tests.console.serving import PLAIN
from tests.services.rows import rows

API = "/api/v1"


@pytest.fixture(scope="module")
def operations(admin):
    """Every operation of the OpenAPI document: method, filled path and scope."""
    document = admin.get(f"{API}/openapi.json").json()
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            filled = path
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    value = "1" if parameter["schema"].get("type") == "integer" else "module"
                    filled = filled.replace("{" + parameter["name"] + "}", value)
            found.append((operation["operationId"], method.upper(), filled, operation.get("x-scope")))
    return found


def test_document(admin, operations):
    """Each operation has a unique name, a sentence, a tag and a valid scope."""
    document = admin.get(f"{API}/openapi.json").json()
    assert len({name for name, *_ in operations}) == len(operations) > 30
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["description"].rstrip(".")
            assert len(operation["tags"]) == 1
            assert "422" in operation["responses"]
    assert {scope for *_, scope in operations} - {None} == {scope.value for scope in Scope}
    assert [name for name, *_, scope in operations if scope is None] == ["show_me"]
    text = admin.get(f"{API}/openapi.json").text
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


def test_scopes(served, operations):
    """A token without the scope of an operation is refused."""
    without = {}
    for scope in Scope:
        rest = [other for other in Scope if other is not scope]
        without[scope.value] = served.bearer(served.administrator(), *rest)
    for name, method, path, scope in operations:
        if scope is None:
            continue
        answer = without[scope].request(method, path, json={} if method == "POST" else None)
        # A body is looked at beside the scope; one that is wrong may be told first.
        assert answer.status_code in (403, 422), (name, answer.text)
        if answer.status_code == 403:
            assert answer.json()["code"] == "scope_missing"
            assert scope in answer.json()["detail"]
    for client in without.values():
        client.close()


@rows("header", [None, "Bearer nonsense", "Bearer dsb_" + "x" * 43, "Basic YTpi", "Bearer"])
def test_nobody(served, operations, header):
    """Without a session or a valid token, every operation is refused."""
    headers = {} if header is None else {"Authorization": header}
    with httpx.Client(base_url=served.url, **PLAIN, headers=headers, timeout=60) as client:
        for name, method, path, _ in operations:
            answer = client.request(method, path)
            assert answer.status_code in (401, 403), (name, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"


def test_token_in_the_address(served):
    """A token in the address is ignored, because addresses are logged."""
    secret = served.token(served.administrator())
    with httpx.Client(base_url=served.url, **PLAIN, timeout=60) as client:
        assert client.get(f"{API}/me", params={"access_token": secret, "token": secret}).status_code == 401


def test_me(served, uma, admin):
    """A caller gets its identity and rights."""
    mine = uma.get(f"{API}/me").json()
    assert (mine["user_id"], mine["may_decide"], len(mine["scopes"])) == ("uma", False, len(Scope))
    assert admin.get(f"{API}/me").json()["may_decide"] is True
    with served.signed_in("uma") as client:
        assert client.get(f"{API}/me").json()["scopes"] is None


def test_sessions_work_too(served):
    """A session works from this origin; from another, changes are refused."""
    served.person("uma")
    with served.signed_in("uma") as client:
        assert client.post(f"{API}/modules/weather/render", json={}).status_code == 200
        client.headers["Sec-Fetch-Site"] = "cross-site"
        answer = client.post(f"{API}/modules/weather/render", json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")


def test_tokens(served, uma):
    """The secret of a token is shown once; the token is listed, used and revoked."""
    made = uma.post(f"{API}/tokens", json={"label": "ci", "scopes": ["modules:run"], "lifetime_seconds": 3600})
    assert made.status_code == 201
    secret, number = made.json()["secret"], made.json()["token"]["id"]
    listed = uma.get(f"{API}/tokens")
    assert number in [token["id"] for token in listed.json()["items"]]
    assert secret not in listed.text
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=served.url, **PLAIN, headers=headers, timeout=60) as client:
        assert client.post(f"{API}/modules/weather/render", json={}).status_code == 200
        assert client.get(f"{API}/tasks").status_code == 403
        assert uma.delete(f"{API}/tokens/{number}").json() == {"ended": 1}
        assert client.get(f"{API}/me").status_code == 401


def test_tokens_of_others(admin, uma):
    """The API neither shows nor ends tokens of other users."""
    other = admin.get(f"{API}/tokens").json()["items"][0]["id"]
    assert other not in [token["id"] for token in uma.get(f"{API}/tokens").json()["items"]]
    assert uma.delete(f"{API}/tokens/{other}").status_code == 404
    assert admin.get(f"{API}/me").status_code == 200


def test_tokens_give_no_more_than_they_have(served, uma):
    """A token creates none with further scopes or a longer lifetime."""
    order = {"label": "small", "scopes": ["accounts:manage"], "lifetime_seconds": 600}
    secret = uma.post(f"{API}/tokens", json=order).json()["secret"]
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=served.url, **PLAIN, headers=headers, timeout=60) as small:
        for more in (
            {"scopes": ["accounts:manage", "modules:run"], "lifetime_seconds": 60},
            {"scopes": ["accounts:manage"]},
            {"scopes": ["accounts:manage"], "lifetime_seconds": 3600},
        ):
            answer = small.post(f"{API}/tokens", json={"label": "larger", **more})
            assert answer.status_code == 422, answer.text
        allowed = {"label": "same", "scopes": ["accounts:manage"], "lifetime_seconds": 60}
        assert small.post(f"{API}/tokens", json=allowed).status_code == 201


@rows(
    "order",
    [
        {"label": "", "scopes": ["modules:run"]},
        {"label": "x", "scopes": []},
        {"label": "x", "scopes": ["modules:rum"]},
        {"label": "x", "scopes": ["modules:run"], "lifetime_seconds": 0},
        {"label": "x", "scopes": ["modules:run"], "lifetime_seconds": 10**12},
        {"label": "x", "scopes": "modules:run"},
    ],
)
def test_bad_tokens(uma, order):
    """A token without a label, without scopes, with an unknown scope or an excessive lifetime is refused."""
    assert uma.post(f"{API}/tokens", json=order).status_code == 422


def test_sessions(served, uma):
    """The sessions of the caller are listed and ended."""
    with served.signed_in("uma") as client:
        sessions = client.get(f"{API}/sessions").json()["items"]
        (present,) = [session["id"] for session in sessions if session["is_present"]]
        assert present in [session["id"] for session in uma.get(f"{API}/sessions").json()["items"]]
        assert uma.delete(f"{API}/sessions/{present}").json() == {"ended": 1}
        assert client.get(f"{API}/me").status_code == 401
    with served.signed_in("uma") as one, served.signed_in("uma") as other:
        assert one.delete(f"{API}/sessions").json()["ended"] >= 1
        assert one.get(f"{API}/me").status_code == 200
        assert other.get(f"{API}/me").status_code == 401
    assert uma.delete(f"{API}/sessions/nothing").status_code == 404
