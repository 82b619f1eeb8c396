"""Pages of subjects."""

from __future__ import annotations

import pytest

from tests.console.pages.asking import decide
from tests.console.pages.reading import read, run
from tests.console.serving import until
from tests.services.rows import rows


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        rates = f"{served.web.url}/v1/rates"
        run(client, "reports", "command", "misbehave", sales=str(served.folder / "sales"), rates=rates)
        yield client


def test_everybody_is_listed(admin):
    """Extensions of all kinds are listed, with links to pending requests."""
    page = read(admin, "/subjects")
    for link in ("/subjects/module/reports", "/subjects/engine/wordcount", "/subjects/extractor/plaintext"):
        assert link in page.links
    assert "module broken broken" in page.text


def test_the_list_is_narrowed_by_kind_and_name(admin):
    """Filters are part of the address."""
    page = read(admin, "/subjects?kind=engine")
    assert "/subjects/engine/wordcount" in page.links
    assert "/subjects/module/reports" not in page.links
    page = read(admin, "/subjects?text=REPO")
    assert "/subjects/module/reports" in page.links
    assert "/subjects/module/weather" not in page.links


def test_an_unknown_kind_is_refused(admin):
    """The error lists the valid kinds."""
    page = read(admin, "/subjects?kind=modul", status=422)
    assert page.code == "invalid_input"
    assert "module" in page.parts("lead")[0]


def test_the_three_accounts_stand_side_by_side(admin, served):
    """Declarations have their line, observations their verdict."""
    page = until(lambda: (found := read(admin, "/subjects/module/reports")) and "denied" in found.text and found)
    assert {"declared", "approved", "observed", "requests"} <= page.ids
    assert "/extensions/module/reports#L6" in page.links
    assert f"receive {served.web.url} /v1/rates" in page.text
    assert "observed, not declared" in page.text


def test_an_approval_shows_up_and_leads_to_its_end(admin, served):
    """An unused approval is marked, with a link to revoke it."""
    with served.bearer(served.administrator()) as machine:
        order = {
            "subject": "module:gallery",
            "resource_type": "network",
            "operation": "receive",
            "target": "https://pictures.example.org/all",
            "effect": "approval",
        }
        answer = machine.post("/api/v1/decisions", json=order)
        assert answer.is_success, answer.text
    page = read(admin, "/subjects/module/gallery")
    assert "https://pictures.example.org /all" in page.text
    assert "never used" in page.text
    assert any(link.startswith("/decisions/") and link.endswith("/revoke") for link in page.links)


def test_a_subject_that_nobody_knows_is_not_found(admin):
    """The nearest name is offered."""
    page = read(admin, "/subjects/module/report", status=404)
    assert "'reports'" in page.text


@rows("path", ["/subjects/nothing/reports", "/subjects/module/%E2%80%AEreports", "/subjects/module/"])
def test_what_is_no_subject_is_refused(admin, path):
    """An unknown kind and a name with invisible characters are errors."""
    assert admin.get(path).status_code in {404, 422}


def test_a_hostile_name_is_shown_and_not_obeyed(admin, served):
    """Names of subjects are escaped on every page."""
    name = 'x"><script>alert(1)</script>'
    with served.bearer(served.administrator()) as machine:
        order = {
            "subject": f"tool:{name}",
            "resource_type": "network",
            "operation": "send",
            "target": "https://api.example.org",
            "effect": "denial",
        }
        assert machine.post("/api/v1/decisions", json=order).is_success
    page = read(admin, "/subjects?kind=tool")
    assert name in page.text
    assert "<script>alert" not in page.source
    (link,) = {link for link in page.links if link.startswith("/subjects/tool/x")}
    assert name in read(admin, link).text


def test_a_result_shows_the_reason_that_it_had(admin, served):
    """A later approval is not shown as the reason of an older denial."""
    from democrai_sandbox.host.scopes import Scope

    with served.bearer(served.person("uma"), Scope.MODULES_RUN) as uma:
        number = served.stop_weather(uma, "/forecast/reason")

    def entry():
        page = read(admin, "/subjects/module/weather")
        found = [one for one in page.source.split("<li>") if "/forecast/reason" in one and "last " in one]
        return page.between('aria-labelledby="observed"', "</section>"), found[0] if found else ""

    _, before = until(lambda: (found := entry())[1] and found, "the denial")
    assert "not declared" in before
    assert "pending" in before
    assert decide(admin, number, "permanent").status_code == 303
    _, after = entry()
    assert "by approval" not in after
    assert "not declared" in after
    assert "approved since" in after
    with served.bearer(served.administrator()) as machine:
        told = machine.get("/api/v1/subjects/module/weather").json()["observed"]
    results = [(one["result"], one["reason"]) for one in told if one["target"].endswith("/forecast/reason")]
    assert results == [("denied", "pending")]
