"""Status page."""

from __future__ import annotations

import pytest

from tests.console.pages.reading import read
from tests.services.golden import sentence


@pytest.fixture(scope="module")
def admin(served):
    with served.signed_in() as client:
        yield client


def test_every_layer_is_there_with_its_state(admin):
    """Guard, store, events, kernel controls and runtime are on one page."""
    page = read(admin, "/status")
    for name in ("guard", "store", "snapshot", "events", "landlock", "seccomp", "spawn_server", "egress", "helper"):
        assert name in page.ids, name
    assert {"extensions", "workers", "tasks", "resumes"} <= page.ids
    sentence("guard", page.part("guard").partition(" Details")[0], also=[(r"\d+", "N")])


def test_what_is_off_says_how_to_turn_it_on(admin):
    """A control that is not enabled names its setting."""
    landlock = read(admin, "/status").part("landlock")
    assert "sandbox.os.landlock.enabled" in landlock
    assert "not enabled" in landlock


def test_a_broken_extension_is_trouble(admin):
    """The summary counts problems and links to them."""
    page = read(admin, "/status")
    assert "#extensions" in page.links
    assert "module:broken" in page.part("extensions")


def test_no_password_of_the_database_is_shown(admin, served):
    """The address of the store is masked."""
    page = read(admin, "/status")
    assert "sqlite:///" in page.text
    assert served.password not in page.source


def test_the_self_test_runs_again(admin):
    """The button runs the self-test and returns with a message."""
    answer = admin.post("/status/self-test")
    assert answer.status_code == 303
    assert read(admin, answer.headers["location"]).done == "self_test_done"


def test_somebody_who_may_not_decide_is_told_why(served):
    """The refusal has the reason and the navigation."""
    served.person("nora")
    with served.signed_in("nora") as client:
        page = read(client, "/status", status=403)
        assert page.code == "external_access_admin_required"
        sentence("not for everybody", page.parts("lead")[0])
        assert "/extensions" in page.links, "the navigation is there"


def test_nobody_is_sent_to_sign_in(served):
    """Without a session the page redirects to the sign-in and back."""
    with served.client() as client:
        answer = client.get("/status")
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=")
