"""Pages that run modules."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.console.pages.extensions import read_params, shown_result
from democrai_sandbox.policy import InvalidInputError
from tests.console.pages.reading import Page, read, run
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


def test_the_form_names_what_is_taken(admin):
    """The form has the parameters of the function."""
    page = read(admin, "/extensions/module/reports/run/action/write")
    assert all(name in page.part("field-params-hint") for name in ("month", "sales", "rates"))
    assert '"month": ""' in page.text
    assert "params" in page.fields


def test_a_result_is_shown_with_the_time_it_took(admin, served):
    """The result is shown; the call runs as the signed-in user."""
    answer = run(admin, "reports", "render", "render")
    page = Page(answer)
    assert page.status == 200
    assert page.part("result") == "Succeeded"
    assert " ms" in page.text
    assert served.admin in page.text


def test_a_denial_leads_to_the_request_that_waits(admin, served):
    """The page shows the code and a link to the request."""
    page = Page(run(admin, "weather", "action", "fetch", url=f"{served.web.url}/forecast/today"))
    assert page.status == 403
    assert page.part("result") == "Denied"
    assert "sandbox_network_denied" in page.text
    (link,) = [link for link in page.links if link.startswith("/requests/")]
    assert admin.get(link).status_code == 200


def test_a_denial_without_a_request_says_what_would_let_it_through(admin, served):
    """The missing manifest entry is shown."""
    rates = f"{served.web.url}/v1/rates"
    page = Page(run(admin, "reports", "action", "write", month="may", sales="/etc", rates=rates))
    assert page.status == 403
    assert "sandbox_filesystem_denied" in page.text
    entry = {"resource_type": "filesystem", "operation": "read", "target": "/etc/may.csv"}
    assert json.dumps(entry) in page.text


def test_a_failure_of_the_module_shows_where_it_was_raised(admin, served):
    """The traceback is shown."""
    rates = f"{served.web.url}/v1/rates"
    page = Page(
        run(admin, "reports", "action", "write", month="never", sales=str(served.folder / "sales"), rates=rates)
    )
    assert page.status == 502
    assert page.part("result") == "Failed"
    assert "Traceback" in page.text


@rows(
    ("typed", "name", "place"),
    [
        ('{"month": "may",}', "no JSON", "line 1, column 1"),
        ("[1, 2]", "a list", ""),
        ("{'month': 1}", "no JSON", "line 1, column 2"),
        ('{"month": NaN}', "no number", ""),
        ("[" * 5000, "too deep", ""),
    ],
)
def test_parameters_that_cannot_be_read_are_said_beside_the_field(admin, typed, name, place):
    """The form keeps its text, and nothing ran."""
    answer = admin.post("/extensions/module/reports/run/action/write", data={"params": typed})
    page = Page(answer)
    assert page.status == 422
    assert place in page.error("params")
    sentence(name, page.error("params"), also=[(": .*, in line.*", ": reason and place")])  # the interpreter's words
    assert page.fields["params"]["aria-invalid"] == "true"
    assert "result" not in page.ids


def test_wrong_names_of_parameters_are_an_error_of_the_call(admin):
    """An unknown parameter does not break the page."""
    assert run(admin, "reports", "command", "read", monht="may").status_code in {422, 502}


@rows(
    ("path", "status"),
    [
        ("/extensions/module/reports/run/action/writ", 404),
        ("/extensions/module/reports/run/nothing/write", 404),
        ("/extensions/module/nothing/run/action/write", 404),
        ("/extensions/module/broken/run/action/write", 409),
    ],
)
def test_what_is_not_there_is_not_run(admin, path, status):
    """Unknown modules and functions, and broken modules, have their status."""
    assert admin.get(path).status_code == status
    assert admin.post(path, data={"params": "{}"}).status_code == status


def test_it_runs_as_whoever_is_signed_in(served):
    """The module sees the user and the session of the page."""
    served.person("uma")
    with served.signed_in("uma") as client:
        page = Page(run(client, "weather", "action", "fetch", url=f"{served.web.url}/forecast/uma"))
        assert page.status == 403
        link = next(link for link in page.links if link.startswith("/requests/"))
        assert "uma" in read(client, link).text


def test_a_form_from_elsewhere_runs_nothing(served):
    """Another site cannot run a module."""
    with served.signed_in() as client:
        before = len(served.web.asked)
        answer = client.post(
            "/extensions/module/reports/run/render/render",
            data={"params": "{}"},
            headers={"Sec-Fetch-Site": "cross-site"},
        )
        assert answer.status_code == 403
        assert len(served.web.asked) == before


def test_results_are_plain_data_in_readable_form():
    """Bytes are base64."""
    assert json.loads(shown_result({"a": b"\x00\x01", "b": (1, 2)})) == {"a": {"base64": "AAE="}, "b": [1, 2]}


def test_no_parameters_are_an_empty_object():
    """An empty field is valid; a too long text is not."""
    assert read_params(" ") == {}
    with pytest.raises(InvalidInputError) as raised:
        read_params(" " * 70_000)
    assert "60,000" in str(raised.value)
