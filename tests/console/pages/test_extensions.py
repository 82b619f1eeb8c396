"""Pages of extensions."""

from __future__ import annotations

import ast
import json
import re

import pytest

from tests.console.pages.reading import form, read
from tests.console.serving import until
from tests.services.golden import sentence


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


def test_extensions_are_listed_by_kind_with_their_state(admin):
    """Working, broken and uninstalled extensions have different words."""
    page = read(admin, "/extensions")
    assert "/extensions/module/reports" in page.links
    for words in ("Modules", "Engines", "Extractors", "1 problem", "not installed", "in a confined worker"):
        assert words in page.text, words


def test_the_manifest_is_shown_with_its_lines(admin):
    """Each line has an anchor and its exact text."""
    page = read(admin, "/extensions/module/reports")
    assert {"L1", "L2", "L6"} <= page.ids
    assert '"name": "reports"' in page.text


def test_what_is_wrong_leads_to_its_line(admin):
    """A problem has its line and a suggestion."""
    page = read(admin, "/extensions/module/broken")
    (problem,) = re.findall(r"<li>(.*?)</li>", page.source.partition('<ul class="problems">')[2].partition("</ul>")[0])
    assert re.findall(r"<code>(.*?)</code>", problem) == ["/acess", "access"]
    assert "#L1" in page.links


def functions(served):
    """The functions of module digest, by name."""
    tree = ast.parse((served.folder / "modules" / "digest" / "module.py").read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}


def test_what_a_module_offers_can_be_run_from_here(admin, served):
    """Each function has its documentation, parameters and a link."""
    page = read(admin, "/extensions/module/digest")
    assert "/extensions/module/digest/run/task/collect" in page.links
    assert "/extensions/module/digest/run/action/status" in page.links
    assert ast.get_docstring(functions(served)["start"]) in page.text
    assert "scheduled" in page.text


def test_one_that_is_not_there_is_not_found(admin):
    """The nearest name is offered; an unknown kind is refused."""
    assert "'reports'" in read(admin, "/extensions/module/report", status=404).text
    wrong = read(admin, "/extensions/mcp/report", status=422)
    assert wrong.code == "invalid_input"
    assert all(kind in wrong.parts("trouble")[0] for kind in ("module", "engine", "extractor"))


def test_an_extractor_is_installed_from_its_page(admin):
    """The installation runs in the background, and the page shows its result."""
    assert "Install" in read(admin, "/extensions/extractor/plaintext").text
    answer = admin.post("/extensions/extractor/plaintext/install")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/extensions/extractor/plaintext?done=install_started"
    page = until(
        lambda: (found := read(admin, "/extensions/extractor/plaintext")) and "Install again" in found.text and found,
        "the installation",
    )
    assert "installed" in page.text
    assert read(admin, answer.headers["location"]).done == ""  # it does not run any more


def test_what_cannot_be_installed_is_refused(admin):
    """Modules and broken extensions are refused."""
    assert admin.post("/extensions/module/reports/install").status_code == 422
    assert admin.post("/extensions/engine/nothing/install").status_code == 404


def test_settings_are_set_and_removed_on_the_page(admin):
    """Secret settings are hidden; an invalid URL is refused."""
    page = "/extensions/engine/wordcount"
    for key, value in (("language", "en"), ("api_token", "a-secret-word")):
        answer = admin.post(f"{page}/settings", data={"key": key, "value": value})
        assert read(admin, answer.headers["location"]).done == "settings_changed"
    shown = read(admin, page)
    assert "language" in shown.text
    assert "a-secret-word" not in shown.source
    assert admin.post(f"{page}/settings", data={"key": "dictionary_url", "value": "no address"}).status_code == 422
    assert admin.post(f"{page}/settings", data={"key": " ", "value": "x"}).status_code == 422
    admin.post(f"{page}/settings", data={"key": "language", "act": "unset"})
    assert read(admin, answer.headers["location"]).done == ""
    assert "language" not in read(admin, page).text


def test_an_mcp_server_is_registered_disabled_and_removed(admin):
    """The list of extensions has the forms."""
    entry = {"name": "paged", "endpoint_url": "https://paged.example.com/mcp", "transport": "streamable_http"}
    added = admin.post("/mcp-servers", data=entry).headers["location"]
    page = read(admin, added)
    assert page.done == "server_added"
    assert "https://paged.example.com/mcp" in page.text
    assert "/subjects/mcp/paged" in page.links
    assert admin.post("/mcp-servers", data=entry).status_code == 409
    disabled = admin.post("/mcp-servers/paged", data={"act": "disable"}).headers["location"]
    assert [read(admin, one).done for one in (disabled, added)] == ["server_disabled", ""]
    assert "Enable" in read(admin, "/extensions").text
    assert admin.post("/mcp-servers/paged", data={"act": "explode"}).status_code == 422
    removed = admin.post("/mcp-servers/paged", data={"act": "remove"}).headers["location"]
    assert [read(admin, one).done for one in (removed, disabled)] == ["server_removed", ""]
    assert "paged.example.com" not in read(admin, "/extensions").text


def test_a_model_is_added_changed_and_removed(admin):
    """The key is never shown, and stays unless replaced."""
    secret = "sk-typed-on-a-page"
    entry = {"name": "paged", "endpoint": "https://models.example.com/v1", "model": "small", "api_key": secret}
    added = admin.post("/models", data=entry).headers["location"]
    page = read(admin, added)
    assert page.done == "model_added"
    assert "https://models.example.com/v1/chat/completions" in page.text
    assert "Remove the key" in page.text
    assert secret not in page.source
    assert admin.post("/models", data=entry).status_code == 409
    change = {"act": "change", "endpoint": entry["endpoint"], "model": "large"}
    changed = admin.post("/models/paged", data=change).headers["location"]
    assert [read(admin, one).done for one in (changed, added)] == ["model_changed", ""]
    assert "Remove the key" in read(admin, "/extensions").text
    moved = admin.post("/models/paged", data={**change, "endpoint": "https://other.example.com/v1"})
    assert (moved.status_code, secret in moved.text) == (422, False)
    assert admin.post("/models/paged", data={"act": "remove_key"}).status_code == 303
    assert "Remove the key" not in read(admin, "/extensions").text
    assert admin.post("/models/paged", data={"act": "explode"}).status_code == 422
    removed = admin.post("/models/paged", data={"act": "remove"}).headers["location"]
    assert [read(admin, one).done for one in (removed, changed)] == ["model_removed", ""]
    assert "models.example.com" not in read(admin, "/extensions").text


def test_timeout_and_options_of_a_model_are_typed_on_the_page(admin):
    """They are shown for a change, and stay if nothing is changed; a secret option is neither shown nor overwritten."""
    options = {"temperature": 0.2, "client_secret": "not-for-the-page"}
    entry = {"name": "tuned", "endpoint": "https://models.example.com/v1", "model": "small", "timeout_seconds": "12.5"}
    assert admin.post("/models", data={**entry, "options": json.dumps(options)}).status_code == 303

    def stored():
        return next(one for one in admin.get("/api/v1/models").json()["items"] if one["name"] == "tuned")

    assert (stored()["timeout_seconds"], stored()["options"]) == (12.5, {**options, "client_secret": "***"})
    page = admin.get("/extensions")
    assert options["client_secret"] not in page.text
    filled = {**form(page, "/models/tuned"), "act": "change"}
    assert filled["timeout_seconds"] == "12.5"
    assert admin.post("/models/tuned", data=filled).status_code == 303
    assert stored()["options"]["temperature"] == 0.2
    for wrong in (
        {"options": "[1]"},
        {"options": "temperature"},
        {"timeout_seconds": "soon"},
        {"timeout_seconds": "-1"},
    ):
        assert admin.post("/models/tuned", data={**filled, **wrong}).status_code == 422, wrong
    hidden = filled["options"].replace("0.2", "0.3")
    assert admin.post("/models/tuned", data={**filled, "options": hidden}).status_code == 422
    changed = {**filled, "timeout_seconds": "", "options": json.dumps({"temperature": 0.3})}
    assert admin.post("/models/tuned", data=changed).status_code == 303
    assert (stored()["timeout_seconds"], stored()["options"]) == (60, {"temperature": 0.3})
    admin.post("/models/tuned", data={"act": "remove"})


def test_a_missing_model_is_listed_with_its_agents(admin):
    """The module works without its model."""
    page = read(admin, "/extensions")
    assert "extensions.models.default" in page.text
    assert "assistant.librarian" in page.text


def test_somebody_who_may_not_decide_sees_what_can_be_run(served):
    """Folders, manifests, output and broken extensions are hidden."""
    served.person("nora")
    with served.signed_in("nora") as client:
        page = read(client, "/extensions")
        assert "/extensions/module/reports" in page.links
        assert "/extensions/module/broken" not in page.links
        page = read(client, "/extensions/module/reports")
        assert "/extensions/module/reports/run/action/write" in page.links
        assert str(served.folder) not in page.source
        assert "L1" not in page.ids
        page = read(client, "/extensions/module/broken")
        assert "acess" not in page.text
        page = read(client, "/extensions/engine/wordcount")
        assert page.disabled == 1
        sentence("install, not for everybody", page.parts("off")[0])
        assert client.post("/extensions/engine/wordcount/install").status_code == 403
        assert client.post("/extensions/engine/wordcount/settings", data={"key": "a"}).status_code == 403
        assert client.post("/mcp-servers/paged", data={"act": "remove"}).status_code == 403
        assert client.post("/models/paged", data={"act": "remove"}).status_code == 403


def test_hostile_text_of_a_manifest_is_made_visible(admin, served):
    """Invisible characters are marked in the source."""
    file = served.folder / "modules" / "broken" / "manifest.json"
    before = file.read_text()
    file.write_text(json.dumps({"name": "broken", "acess": "\u202e<b>evil</b>\u200b"}, ensure_ascii=False))
    try:
        page = read(admin, "/extensions/module/broken")
    finally:
        file.write_text(before)
    assert "RIGHT-TO-LEFT OVERRIDE" in page.source
    assert "<b>evil</b>" not in page.source
    assert "\u202e" not in page.source
