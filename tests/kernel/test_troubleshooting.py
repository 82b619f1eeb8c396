"""The list "OS network enforcement still blocks": each of its seven points, as seen by a user who checks it.

Each test has a target that the guard would allow and that is or is not reachable, and checks the place in the list.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.appcase import EVERYTHING, NOBODY, Talking, application, short_folder
from tests.kernel.netlab import cgroup_mount, needs_netlab, shared_lab, wait_until
from tests.services.rows import rows

pytestmark = needs_netlab

EGRESS = {"enabled": True}
WORDS = """
def reach(host, port):
    return kind_of(lambda: socket.create_connection((host, port), 10).close())
def asked(**request):
    "Send a request to the helper like the application, and return its answer."
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(kernel.egress.socket)
        link.sendall(json.dumps({"version": 1, **request}).encode() + b"\\n")
        return json.loads(link.makefile().readline())
def look():
    status = kernel.status()
    egress, helper = status["egress"], status["helper"]
    return {"egress": egress.state, "reason": egress.reason, "fix": egress.fix, "details": dict(egress.details),
            "helper": helper.state, "helper_reason": helper.reason, "helper_fix": helper.fix}
def begin(section, *targets):
    global kernel
    kernel = make(section, *targets)
    kernel.prepare()
    kernel.confine()
def serve():
    "Execute each line of the input."
    for line in sys.stdin:
        tell(value=eval(line))
    kernel.stop()
"""


@pytest.fixture(scope="module")
def shared():
    """A place whose first application is shared by several tests, which leave it unchanged."""
    with short_folder() as here, shared_lab() as lab, ExitStack() as stack:
        place = Place(here, lab, stack)
        section = {**EGRESS, "helper_socket": f"{here}/here.sock", "policy_file": f"{here}/allowlist.json"}
        place.app = place.start(section, f"{place.host}:{place.port}", "api.example.com")
        yield place


@pytest.fixture
def place(shared):
    """The same place, with a separate folder; its applications end with the test."""
    with short_folder() as here, ExitStack() as stack:
        yield Place(here, shared.lab, stack)


class Place:
    """A folder, a lab with a server, and applications that execute orders."""

    def __init__(self, here, lab, stack):
        self.here, self.lab, self._stack = here, lab, stack
        self.host = lab.world.v4
        self.port = lab.world.serve("tcp", self.host).port

    def start(self, section, *targets, folder=None):
        body = f"{WORDS}\nbegin({section!r}, *{targets!r})\nserve()\n"
        app = self._stack.enter_context(Talking(folder or self.here, body, space=self.lab.inside))
        return app

    def reach(self, app, port=None, host=None):
        return value(app, f"reach({host or self.host!r}, {port or self.port})")


def value(app, expression):
    """Evaluate an expression in an application."""
    return app.ask(expression)["value"]


def test_1_nothing_is_filtered_unless_it_is_turned_on(place):
    """With ``enabled`` false an undeclared target is reachable, with true it is not. The status shows which."""
    off = place.start({"landlock": {"enabled": True}}, folder=_folder(place, "a"))
    on = place.start(EGRESS, folder=_folder(place, "b"))
    assert place.reach(off) == "nothing"
    assert place.reach(on) == "ConnectionRefusedError"
    seen = value(off, "look()")
    assert seen["egress"] == "off" and "sandbox.os.enabled" in seen["reason"]


def test_2_the_helper_runs_and_is_reached_through_its_socket(shared):
    """A missing socket shows as a helper that is not active, with the reason; the rules stay."""
    place, app, path = shared, shared.app, f"{shared.here}/here.sock"
    assert value(app, "look()")["helper"] == "active"
    os.rename(path, f"{path}.away")
    try:
        seen = value(app, "look()")
        assert seen["helper"] == "off" and path in seen["helper_reason"] + seen["helper_fix"] and seen["helper_fix"]
        assert seen["egress"] == "partial"
        assert place.reach(app) == "nothing"
    finally:
        os.rename(f"{path}.away", path)
    assert value(app, "look()")["helper"] == "active"


def test_3_the_policy_file_exists(shared):
    """The helper reports a deleted file, and the next refresh writes it again."""
    place, app, path = shared, shared.app, f"{shared.here}/allowlist.json"
    assert value(app, "look()")["details"]["policy_file"] == path
    os.unlink(path)
    answer = value(app, 'asked(action="apply")')
    assert (answer["ok"], answer["reason"]) == (False, "policy_missing") and answer["fix"]
    assert place.reach(app) == "nothing"  # the applied rules stay
    value(app, 'kernel.egress.refresh("test", wait=True)')
    assert json.loads(Path(path).read_text())["endpoints"]
    assert value(app, 'asked(action="apply")')["ok"]


@rows(
    ("mode", "owner", "reason"),
    [(0o620, 0, "policy_mode"), (0o602, 0, "policy_mode"), (0o600, NOBODY, "policy_owner")],
)
def test_4_the_policy_file_is_the_applications_own(shared, mode, owner, reason):
    """A file that others could have written is refused with the reason, and nothing changes."""
    app, path = shared.app, value(shared.app, "look()")["details"]["policy_file"]
    os.chmod(path, mode)
    os.chown(path, owner, owner)
    try:
        answer = value(app, 'asked(action="apply")')
        assert (answer["ok"], answer["reason"]) == (False, reason) and answer["fix"]
        assert shared.reach(app) == "nothing"
    finally:
        os.chown(path, 0, 0)
        os.chmod(path, 0o600)
    assert value(app, 'asked(action="apply")')["ok"]


def test_5_the_host_resolves_to_addresses(place):
    """A name that does not resolve is listed and not reachable; one that resolves is open at its address."""
    hosts = place.here / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{place.host} service.test\n")
    within = ["unshare", "-m", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    told = application(
        place.here,
        f"""{WORDS}
begin({EGRESS!r}, "service.test:{place.port}", "nowhere.invalid:443")
tell(seen=look(), met=reach("service.test", {place.port}), nowhere=reach("nowhere.invalid", 443))
kernel.stop()
""",
        within=within,
        space=place.lab.inside,
    )
    assert told["met"] == "nothing" and told["nowhere"] == "gaierror"
    assert told["seen"]["details"]["unresolved"] == ["nowhere.invalid"]


def test_6_the_port_is_the_declared_one(shared):
    """Another port of the same host is refused; a host without a port is listed as not materialized."""
    place, app = shared, shared.app
    other = place.lab.world.serve("tcp", place.host).port
    assert place.reach(app) == "nothing"
    assert place.reach(app, other) == "ConnectionRefusedError"
    listed = value(app, "look()")["details"]["not_materialised"]
    assert [entry["target"] for entry in listed] == ["api.example.com"] and "port" in listed[0]["why"]


def test_7_the_process_is_in_the_cgroup(shared):
    """A process that was moved away is unrestricted: the status detects it, and is off."""
    place, app = shared, shared.app
    other = place.lab.world.serve("tcp", place.host).port
    seen = value(app, "look()")
    assert seen["details"]["in_cgroup"]
    assert place.reach(app, other) == "ConnectionRefusedError"
    (cgroup_mount() / "cgroup.procs").write_text(str(app.pid))
    try:
        assert place.reach(app, other) == "nothing"
        moved = value(app, "look()")
        assert moved["egress"] == "off" and not moved["details"]["in_cgroup"] and moved["fix"]
    finally:
        Path(seen["details"]["cgroup"], "cgroup.procs").write_text(str(app.pid))
    assert value(app, "look()")["details"]["in_cgroup"]
    assert place.reach(app, other) == "ConnectionRefusedError"


@pytest.mark.parametrize("setting", ["helper_socket", "policy_file"])
def test_two_instances_that_share_a_place_by_configuration_are_told(place, setting):
    """The second application gets an error with the fix, and the first is not affected."""
    shared = {**EGRESS, setting: f"{place.here}/shared"}
    first = place.start(shared, f"{place.host}:{place.port}", folder=_folder(place, "a"))
    assert place.reach(first) == "nothing"
    second = place.start(shared, folder=_folder(place, "b"))
    seen = value(second, "look()")
    assert seen["egress"] == "off" and seen["helper"] == "off" and f"sandbox.os.{setting}" in seen["fix"]
    assert place.reach(first) == "nothing" and value(first, "look()")["helper"] == "active"


def test_the_flow_shows_what_helper_and_allowlist_do(place):
    """The debug variable shows the start and each update, on standard error."""
    told = application(
        place.here,
        f"""{WORDS}
begin({EVERYTHING!r}, "{place.host}:{place.port}")
kernel.egress.refresh("test", wait=True)
kernel.stop()
""",
        environment={"DEMOCRAI_DEBUG_OS_SANDBOX_FLOW": "1"},
        space=place.lab.inside,
    )
    lines = [line for line in told["stderr"].splitlines() if line.startswith("[OS_SANDBOX_FLOW]")]
    events = [line.split()[1] for line in lines]
    assert {"spawn_server_started", "egress_started", "landlock", "seccomp", "selftest", "stopped"} <= set(events)
    assert any(event.startswith("egress.") for event in events)


def _folder(place, name):
    folder = place.here / name
    folder.mkdir()
    return folder
