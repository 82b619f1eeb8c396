"""Pages of tasks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.console.pages.reading import read, run
from tests.console.serving import until
from tests.services.golden import sentence


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


def started(client, module, name, **params):
    """Start a task from its page; return the path of the task."""
    answer = run(client, module, "task", name, **params)
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    assert path.endswith("?done=task_started")
    return path.partition("?")[0]


def ended(client, path, state):
    """Wait until the page of a task shows its end."""
    return until(lambda: (page := read(client, path)) and f" {state} " in page.text and page, f"the end of {path}")


def test_a_task_is_started_and_shows_its_result(admin, served):
    """Parameters, progress, result and user are on its page."""
    path = started(admin, "digest", "collect", pages=[f"{served.web.url}/v1/news/1"])
    page = ended(admin, path, "done")
    assert f"{served.web.url}/v1/news/1" in page.text
    assert "1 of 1 pages" in page.text
    assert f'"for": "{served.administrator().id}"' in page.text
    assert path in read(admin, "/tasks").links


def test_a_task_that_was_stopped_leads_to_its_request(admin, served):
    """The page has the code of the denial and a link to the request."""
    target = f"{served.web.url}/elsewhere"
    path = started(admin, "digest", "collect", pages=[target])
    page = ended(admin, path, "failed")
    assert page.part("failure") == "Denied"
    assert "sandbox_network_denied" in page.text
    assert "waiting for approval" in page.between('aria-labelledby="asked"', "</section>")
    (asked,) = [link for link in page.links if link.startswith("/requests/")]
    origin = admin.get(f"/api/v1{asked}").json()["request"]["origin"]
    assert origin["task_id"] == path.rpartition("/")[2]
    assert path in read(admin, asked).links


def test_a_page_confirms_only_what_holds(admin, served):
    """Outdated messages are not shown."""
    path = started(admin, "odd", "wait", seconds=600)
    assert read(admin, f"{path}?done=task_started").done == "task_started"
    assert read(admin, f"{path}?done=task_cancelled").done == ""
    admin.post(f"{path}/cancel")
    ended(admin, path, "canceled")
    assert read(admin, f"{path}?done=task_started").done == ""
    assert read(admin, f"{path}?done=task_cancelled").done == "task_cancelled"


def test_one_that_failed_can_be_run_again(admin, served):
    """The same task is queued again, with its attempts."""
    path = started(admin, "digest", "collect", pages=[f"{served.web.url}/again"])
    ended(admin, path, "failed")
    assert admin.post(f"{path}/retry").status_code == 303
    until(lambda: "Attempt 2" in read(admin, path).text, "the second attempt")
    ended(admin, path, "failed")


def test_one_that_runs_is_cancelled(admin, served):
    """The page shows the progress, and after the button the user who canceled it."""
    path = started(admin, "odd", "wait", seconds=600)
    page = until(lambda: (found := read(admin, path)) and "a quarter" in found.text and found, "the progress")
    assert 'data-refresh="2"' in page.source
    assert f'action="{path}/cancel"' in page.source
    answer = admin.post(f"{path}/cancel")
    assert answer.headers["location"] == f"{path}?done=task_cancelled"
    page = ended(admin, path, "canceled")
    assert served.administrator().id in page.between('aria-labelledby="failure"', "</section>")
    assert "data-refresh" not in page.source


def test_a_long_list_has_pages(admin, served):
    """The pages together contain every task once."""
    from democrai_sandbox.access.store import open_database
    from democrai_sandbox.access.values import new_id
    from democrai_sandbox.runtime.store import NewTask, RuntimeStore

    store = RuntimeStore(open_database(f"sqlite:///{served.folder}/state/sandbox.db"))
    made = [new_id() for _ in range(70)]
    for one in made:
        store.add_task(NewTask(one, "gone", "often", "elsewhere"), now=datetime.now(UTC))
    store.close()
    seen, path = [], "/tasks?module=gone"
    while path:
        page = read(admin, path)
        seen += [link.removeprefix("/tasks/") for link in page.links if link.startswith("/tasks/")]
        path = next((link for link in page.links if "after=" in link), "")
    assert sorted(seen) == sorted(made)
    assert seen == sorted(made, reverse=True)


def test_one_that_has_ended_is_not_cancelled(admin, served):
    """Canceling an ended task changes nothing."""
    path = started(admin, "digest", "collect", pages=[])
    ended(admin, path, "done")
    answer = admin.post(f"{path}/cancel")
    assert answer.status_code == 303
    assert "done" in read(admin, answer.headers["location"]).text
    assert admin.post(f"{path}/retry").status_code == 422


def test_the_list_is_narrowed(admin):
    """Module, state and user are filters; an unknown state is refused."""
    for query in ("module=weather", "state=lost", "user=nobody-of-this-name"):
        page = read(admin, f"/tasks?{query}")
        assert not [link for link in page.links if link.startswith("/tasks/")]
        sentence("none fits", page.parts("empty")[0])
    assert "queued" in read(admin, "/tasks?state=queud", status=422).parts("lead")[0]


def test_what_runs_by_the_clock_is_listed(admin):
    """A scheduled task has the time of its next run."""
    page = read(admin, "/tasks")
    assert "Scheduled" in page.text
    assert "tidy" in page.text
    assert "3600 s" in page.text


def test_a_task_that_is_not_there_is_not_found(admin):
    """Unknown and invalid ids are not found."""
    assert admin.get("/tasks/nothing").status_code == 404
    assert admin.post("/tasks/nothing/cancel").status_code == 404


def test_people_see_their_own_tasks_only(admin, served):
    """A task of another user looks missing."""
    path = started(admin, "digest", "collect", pages=[])
    served.person("uma")
    with served.signed_in("uma") as client:
        assert path not in read(client, "/tasks").links
        assert client.get(path).status_code == 404
        assert client.post(f"{path}/cancel").status_code == 404
        assert client.post(f"{path}/retry").status_code == 404
        own = started(client, "digest", "collect", pages=[])
        ended(client, own, "done")
        assert own in read(client, "/tasks").links
    assert own in read(admin, "/tasks").links
