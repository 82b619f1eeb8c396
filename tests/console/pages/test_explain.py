"""Explain page."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from democrai_sandbox.errors.catalogue import entry_of
from tests.console.pages.reading import Page, form, read
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


def asked(subject="module:reports", access="network:receive", target="https://other.example.com/v1", **more):
    """The address of an explanation."""
    return f"/explain?{urlencode({'subject': subject, 'access': access, 'target': target, **more})}"


def order(effect="approval", **more):
    """The values of the form."""
    return {"subject": "module:gallery", "access": "network:receive", "effect": effect, **more}


def confirm(client, effect="approval", reason="", **more):
    """Open the confirmation of a decision, and press its button."""
    asking = client.post("/explain/decide", data=order(effect, **more))
    filled = {**form(asking, "/explain/decide"), "reason": reason, "confirmed": "yes"}
    return client.post("/explain/decide", data=filled)


def decisive(page):
    """The headings of the deciding layers."""
    return re.findall(r'<li class="layer decides">.*?<h3>(.*?)</h3>', page.source, re.DOTALL)


def test_the_form_knows_the_subjects(admin):
    """The empty form lists subjects, without a verdict."""
    page = read(admin, "/explain")
    assert 'value="module:reports"' in page.source
    assert {"subject", "access", "target", "user", "session"} <= page.fields.keys()
    assert "verdict" not in page.ids


def test_what_is_declared_is_allowed_by_its_rule(admin, served):
    """The deciding layer is named, and no decision is offered."""
    page = read(admin, asked(target=f"{served.web.url}/v1/rates/7"))
    assert page.part("verdict") == "Allowed"
    assert decisive(page) == ["Declarations"]
    sentence("decisions change nothing", page.parts("soft")[-1])
    assert "decide" not in page.ids


def test_what_is_not_declared_says_what_to_declare(admin, served):
    """Verdict, layers, nearest rule and entry are shown; no request is filed."""
    page = read(admin, asked(target=f"{served.web.url}/v1/other"))
    sentence("not declared", page.part("verdict"))
    for layer in ("Declarations", "Recorded denials", "Permanent approvals", "Pending requests"):
        assert layer in page.text
    assert "Nearest rule" in page.text
    assert str(served.folder / "modules" / "reports" / "manifest.json") in page.text
    assert f'"target": "{served.web.url}/v1/other"' in page.text
    with served.bearer(served.administrator()) as machine:
        assert machine.get("/api/v1/requests", params={"text": "/v1/other"}).json()["items"] == []


def test_it_can_be_asked_for_from_other_pages(admin):
    """Resource type and operation can be separate parameters."""
    page = read(admin, "/explain?subject=module:reports&resource_type=filesystem&operation=read&target=/etc/passwd")
    assert "verdict" in page.ids


def test_a_chain_is_told_member_by_member(admin, served):
    """Each enclosing subject is shown; an invalid chain is an error of its field."""
    target = f"{served.web.url}/v1/rates/7"
    page = read(admin, asked(subject="mcp:nowhere", target=target, chain="module:reports"))
    (chain,) = [layer for layer in page.parts("layer") if layer.startswith("Call chain ")]
    sentence("chain", chain)
    assert page.fields["chain"]["value"] == "module:reports"
    assert "kind:name" in read(admin, asked(chain="reports"), status=422).error("chain")


def test_an_error_line_is_explained(admin):
    """The meaning and links to explanations are shown."""
    page = read(admin, f"/explain?{urlencode({'line': 'sandbox_filesystem_denied:reports:/etc/passwd'})}")
    assert page.part("line-title") == entry_of("sandbox_filesystem_denied").title
    assert "sandbox_filesystem_denied" in page.text
    assert "/etc/passwd" in page.text
    link = next(link for link in page.links if "operation" not in link and "%2Fetc%2Fpasswd" in link)
    assert "verdict" in read(admin, link).ids


def test_a_line_that_is_not_ours_is_refused_beside_its_field(admin):
    """A foreign line is refused, and the input kept."""
    page = read(admin, f"/explain?{urlencode({'line': 'hello <script>hit(1)</script>'})}", status=422)
    sentence("line unknown", page.error("line"))
    assert "<script>hit" not in page.source


@rows(
    ("question", "field", "told"),
    [
        (asked(subject="reports"), "subject", "kind:name"),
        (asked(subject="modul:reports"), "subject", "module?"),
        (asked(access="network:eat"), "", ""),
        (asked(access="eat"), "", ""),
        (asked(target="x" * 9000), "target", "8,000"),
    ],
)
def test_a_question_that_means_nothing_is_said_beside_its_field(admin, question, field, told):
    """The form keeps its values, with the error at the field."""
    page = read(admin, question, status=422)
    if field:
        assert told in page.error(field)
    else:
        sentence("wrong access", page.parts("error")[0])
    assert len(page.parts("error")) == 1


@rows("target", ["https://user:secret@a.example", "https://a.example\\b", "\u202ehttps://a", "*.com"])
def test_a_target_that_nobody_may_ask_for_is_refused_with_the_reason(admin, target):
    """The target layer refuses it; invisible characters are shown."""
    page = read(admin, asked(target=target))
    assert page.part("verdict") == "Refused"
    assert decisive(page) == ["Target"]
    assert "\u202e" not in page.source.replace('value="\u202e', "")


def test_a_decision_is_spelled_out_before_it_is_made(admin, served):
    """The first step changes nothing; the second decides."""
    target = "https://unasked.example.com/a"
    page = Page(admin.post("/explain/decide", data=order(target=target)))
    assert page.status == 200
    sentence("approve?", page.between("<h1>", '<section class="panel">'))
    assert "gallery" in page.parts("rule")[0]
    assert target in page.parts("rule")[0]
    question = asked(subject="module:gallery", target=f"{target}/b")
    assert decisive(read(admin, question)) == []
    answer = confirm(admin, target=target, reason="for the tests")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/decisions/")
    assert read(admin, answer.headers["location"]).done == "approved"
    assert read(admin, question).part("verdict") == "Allowed"


def test_a_denial_is_made_in_the_same_way(admin):
    """It is shown as a denial before and after."""
    target = "https://unwanted.example.com"
    page = Page(admin.post("/explain/decide", data=order("denial", target=target)))
    sentence("deny?", page.between("<h1>", '<section class="panel">'))
    assert confirm(admin, "denial", target=target).status_code == 303
    assert read(admin, asked(subject="module:gallery", target=target)).part("verdict") == "Denied"


@rows(
    "wrong",
    [
        {"target": ""},
        {"target": "https://a.example", "effect": "maybe"},
        {"target": "https://a.example", "subject": "gallery"},
        {"target": "https://a.example", "access": "network:read"},
        {"target": "https://a.example", "reason": "x" * 3000},
        {"target": "*.com"},
    ],
)
def test_what_cannot_be_decided_is_refused(admin, wrong):
    """A tampered form decides nothing."""
    answer = admin.post("/explain/decide", data={**order(), "confirmed": "yes", **wrong})
    assert answer.status_code == 422


def test_an_approval_under_a_denial_is_a_conflict(admin):
    """A broader denial blocks it, and nothing changes."""
    assert confirm(admin, "denial", target="https://conflict.example.com").status_code == 303
    answer = confirm(admin, target="https://conflict.example.com/below")
    assert answer.status_code == 409
    assert Page(answer).code == "external_access_conflict"


def test_only_those_who_may_decide_can_ask(served):
    """Other users get the reason."""
    served.person("nora")
    with served.signed_in("nora") as client:
        assert read(client, "/explain", status=403).code == "external_access_admin_required"
        answer = client.post("/explain/decide", data=order(target="https://a.example", confirmed="yes"))
        assert answer.status_code == 403
