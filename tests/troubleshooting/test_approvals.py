"""An approval that cannot be given, or does not work: each condition, and the stream that reaches nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.checks import AccessService
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import open_store
from democrai_sandbox.errors import ExternalAccessAdminRequired
from democrai_sandbox.policy import Subject
from tests.access.conftest import Around, Desk
from tests.services.forks import AccessCase
from tests.services.golden import sentence
from tests.services.rows import rows
from tests.troubleshooting.apply_entry import said

URL = "https://api.example.com/v1/reports"
CHANNEL = "troubleshooting"
NEVER = 3600.0
REPORTS = Subject.parse("module:reports")


@pytest.fixture
def desk(tmp_path):
    """A service that nobody has used yet."""
    found = Desk(f"sqlite:///{tmp_path}/access.db")
    yield found
    found.close()


@rows(
    "caller",
    [
        pytest.param(Caller(), id="nobody"),
        pytest.param(Caller(role="super"), id="a role alone"),
        pytest.param(Caller(user_id="ada", role="super", organization_id="north"), id="organization and role"),
        pytest.param(Caller(user_id="ada", access_level="super", organization_id="north"), id="organization and level"),
        pytest.param(Caller(user_id="uma", role="editor"), id="neither"),
    ],
)
def test_who_may_not_decide_is_refused(desk, caller):
    """The line of every refusal is the code, and nothing is decided."""
    request = desk.check(URL).request_id
    for act in ("approve_for_session", "approve_permanently", "deny_external_access"):
        with desk.around.serving(caller), pytest.raises(ExternalAccessAdminRequired) as caught:
            getattr(desk.administration, act)(request)
        assert str(caught.value) == caught.value.code == "external_access_admin_required"
    assert not desk.check(URL).allowed


def test_who_may_decide_is_explained(desk):
    """The explanation of the refusal names each condition, and whoever fulfils all of them decides."""
    text = said("external_access_admin_required")
    sentence("who may decide", text)
    for able in (Caller(user_id="ada", role="super"), Caller(user_id="ada", access_level="super")):
        with desk.around.serving(able):
            made = desk.administration.approve_permanently(desk.check(f"{URL}/{able.role}").request_id).decision
        assert made.created_by == "ada"
        assert desk.check(f"{URL}/{able.role}").allowed


def test_an_approval_for_a_session_needs_its_key(desk):
    """Without one it is skipped, and nothing is decided; the same request, asked for in a session, is approved."""
    keyless = Caller(user_id="uma")
    outcome = desk.decide("approve_for_session", desk.check(URL, user=keyless).request_id)
    assert outcome.decision is None and outcome.skipped
    sentence("skipped", outcome.skipped)
    assert not desk.check(URL, user=keyless).allowed
    assert "session key" in said("external_access_admin_required")
    keyed = Caller(user_id="uma", session_key="s1")
    assert desk.decide("approve_for_session", desk.check(URL, user=keyed).request_id).decision is not None
    assert desk.check(URL, user=keyed).allowed
    assert not desk.check(URL, user=keyless).allowed


# ---- several processes -----------------------------------------------------------------------------------------------


def approve_elsewhere(world):
    """Approve a request in another process, whose stream the first one may or may not hear."""
    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

    database, request, folder = world.args
    store = open_store(database)
    node = AccessNode(store, open_bus("ipc", folder=folder, channel=CHANNEL), poll_seconds=NEVER)
    node.start()
    try:
        wait_for(lambda: node.bus.connected)
        with serving(Caller(user_id="ada", role="super")):
            return Administration(node, GuardSurroundings()).approve_permanently(request).decision.id
    finally:
        node.stop()
        store.close()


def wait_for(condition):
    """Wait until something is so, for a minute at most; return whether it is."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


class Node:
    """A node of its own over a database, which looks at it by itself once in an hour."""

    def __init__(self, database, kind, **settings):
        self._store = open_store(database)
        self.node = AccessNode(self._store, open_bus(kind, channel=CHANNEL, **settings), poll_seconds=NEVER)
        self._service = AccessService(self.node, Around())
        self.node.start()

    def check(self):
        wanted = {"resource_type": "network", "operation": "receive", "target": URL}
        return self._service.check_external_access(subject=REPORTS, **wanted)

    def close(self):
        self.node.stop()
        self._store.close()


def test_a_stream_in_memory_does_not_reach_other_processes(tmp_path):
    """A node with ``ipc`` hears of an approval elsewhere; one with ``memory`` knows it when it looks by itself."""
    folder = tmp_path / "stream"
    folder.mkdir(mode=0o700)
    database = f"sqlite:///{tmp_path}/access.db"
    nodes = [Node(database, "memory"), Node(database, "ipc", folder=str(folder))]
    memory, ipc = nodes
    try:
        request = ipc.check().request_id
        assert not memory.check().allowed
        memory.node.refresh()
        known = memory.node.status.generation
        AccessCase(tmp_path).run(approve_elsewhere, database, request, str(folder))
        assert wait_for(lambda: ipc.check().allowed)
        assert memory.node.status.generation == known  # asked, it would look the request up, and might find out by that
        assert "network.stream.type" in said("[Errno 111] Connection refused")
        memory.node.refresh()
        assert memory.check().allowed
    finally:
        for node in nodes:
            node.close()


def test_the_page_of_the_documents_names_what_is_walked_here():
    """Each code, each setting and each variable of these tests is on the page that people read."""
    text = Path(__file__).parents[2].joinpath("docs", "troubleshooting.md").read_text()
    for word in (
        "sandbox_filesystem_denied:<subject>:<path>",
        "sandbox_filesystem_fd_denied:<subject>:<key>",
        "sandbox_module_denied:<root>",
        "sandbox_subprocess_denied:<entrypoint>",
        "network_target_missing",
        "External URL is locked.",  # wording: the contract's
        "external_access_admin_required",
        "sandbox.os.enabled",
        "sandbox.os.helper_socket",
        "sandbox.os.policy_file",
        "network.stream.type",
        "DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1",
        "DEMOCRAI_DEBUG_MEDIA_FLOW=1",
    ):
        assert word in text, word
