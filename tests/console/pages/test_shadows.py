"""Shadow runs in a real process: API and pages."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.host.scopes import Scope
from tests.cli.goldens import within
from tests.console.pages.reading import Page, read
from tests.console.serving import until
from tests.services.golden import sentence


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


@pytest.fixture
def shadow(served, admin):
    """Start a shadow run without the first rule of module reports, and stop it afterwards."""
    manifest = json.loads((served.folder / "modules" / "reports" / "manifest.json").read_text())
    manifest["access"][0]["target"] = str(served.folder / "elsewhere")
    answer = admin.post("/shadows", data={"subject": "module:reports", "manifest": json.dumps(manifest)})
    assert answer.status_code == 303, Page(answer).text
    path = answer.headers["location"].removesuffix("?done=shadow_started")
    yield path
    assert admin.post(f"{path}/end").status_code == 303


def write(client, served):
    params = {"month": "may", "sales": str(served.folder / "sales"), "rates": f"{served.web.url}/v1/rates"}
    return client.post("/api/v1/modules/reports/actions/write", json={"params": params})


def test_a_candidate_is_tried_and_what_it_would_change_is_shown(served, admin, shadow):
    """The module works as before; page and API show the differences."""
    target = f"{served.folder}/sales/may.csv"
    before = read(admin, shadow)
    assert before.part("denied") == "Would be denied 0"
    sentence("nothing denied", before.between('aria-labelledby="denied"', "</section>"))
    assert write(admin, served).json() == {"result": "may: 12 sold; GET /v1/rates/may"}
    assert write(admin, served).status_code == 200
    number = shadow.rpartition("/")[2]
    with served.bearer(served.administrator(), Scope.SUBJECTS_READ) as client:
        found = until(lambda: client.get(f"/api/v1/shadows/{number}").json()["would_be_denied"], "a finding")
        until(lambda: client.get(f"/api/v1/shadows/{number}").json()["would_be_denied"][0]["count"] == 2, "both")
        report = client.get(f"/api/v1/shadows/{number}").json()
        listed = client.get("/api/v1/shadows").json()["items"][0]
        assert client.post(f"/api/v1/shadows/{number}/end").status_code == 403
    about = {name: found[0][name] for name in ("resource_type", "operation", "target", "user_id", "chain")}
    assert about == {
        "resource_type": "filesystem",
        "operation": "read",
        "target": target,
        "user_id": served.administrator().id,
        "chain": ["module:reports"],
    }
    assert [(one["effect"], one["pointer"]) for one in report["changes"]] == [
        ("added", "/access"),
        ("dropped", "/access"),
    ]
    assert (listed["subject"], listed["is_running"], listed["would_be_denied"]) == ("module:reports", True, 1)
    environ = {"DEMOCRAI_URL": served.url, "DEMOCRAI_TOKEN": served.token(served.administrator())}
    shown = within(("shadow", "show", number), environ)
    assert (shown.status, f"filesystem read  {target}" in shown.out) == (1, True)
    page = read(admin, shadow)
    sentence("something denied", page.parts("notice")[0])
    assert page.part("denied") == "Would be denied 1"
    denied = page.between('aria-labelledby="denied"', "</section>")
    assert "filesystem read" in denied
    assert target in denied.replace(" ", "")
    assert f"filesystem read {served.folder}/sales" in page.between('aria-labelledby="paper"', "</section>")
    assert shadow in read(admin, "/shadows").links


def test_a_candidate_that_is_wrong_is_refused_with_all_that_is_wrong(served, admin, shadow):
    """All problems have their line; the input is kept; a second run is refused."""
    text = '{"name": "weather",\n "acess": [],\n "access": [{"resource_type": "network"}]}'
    answer = admin.post("/shadows", data={"subject": "module:weather", "manifest": text})
    page = Page(answer)
    assert page.status == 422
    wrong = page.between('<ul class="plainlist error">', "</ul>")
    assert "/acess: line 2" in wrong
    assert "line 3" in wrong
    assert '"acess": []' in page.text
    before = len(admin.get("/api/v1/shadows").json()["items"])
    for subject, manifest, status, code, pointer, told in (
        ("module:weather", '{"name": "other"}', 422, "invalid_input", "/manifest/name", "'other'"),
        ("tool:weather.look", '{"name": "weather"}', 422, "invalid_input", "/subject", "module:weather"),
        ("mcp:weather", '{"name": "weather"}', 422, "invalid_input", "/subject", "module, engine, extractor"),
        ("module:nobody", '{"name": "nobody"}', 404, "extension_unknown", "", "nobody"),
        ("module:broken", '{"name": "broken"}', 409, "extension_broken", "", "broken"),
        ("module:reports", '{"name": "reports"}', 409, "runtime_entry_exists", "", "module:reports"),
        ("weather", "{}", 422, "invalid_input", "/subject", "kind"),
        ("module:weather", {"name": "weather", "access": 3}, 422, "invalid_input", "/manifest/access", ""),
    ):
        refused = admin.post("/api/v1/shadows", json={"subject": subject, "manifest": manifest})
        document = refused.json()
        problems = document.get("problems") or [{"pointer": ""}]
        found = (refused.status_code, document["code"], problems[0]["pointer"], told in refused.text)
        assert found == (status, code, pointer, True), (subject, refused.text)
    dry = admin.post(
        "/api/v1/shadows", json={"subject": "module:weather", "manifest": {"name": "weather"}, "dry_run": True}
    )
    assert (dry.status_code, dry.json()["id"]) == (200, "")
    assert len(admin.get("/api/v1/shadows").json()["items"]) == before


def test_only_administrators_see_and_start_them(served, admin, shadow):
    """Other users are refused with any scope; the audit log names the users."""
    uma = served.person("uma")
    with served.bearer(uma) as client:
        for answer in (
            client.get("/api/v1/shadows"),
            client.get(f"/api/v1{shadow}"),
            client.post("/api/v1/shadows", json={"subject": "module:weather", "manifest": {"name": "weather"}}),
            client.post(f"/api/v1{shadow}/end"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "external_access_admin_required")
    with served.signed_in("uma") as client:
        for path in ("/shadows", shadow):
            assert client.get(path).status_code == 403
        assert client.post(f"{shadow}/end").status_code == 403
    assert read(admin, "/shadows/unknown", status=404)
    records = admin.get("/api/v1/audit", params={"action": "shadow_started"}).json()["items"]
    about = shadow.rpartition("/")[2]
    assert [one["actor"] for one in records if one["after"]["shadow_run"] == about] == [served.administrator().id]
