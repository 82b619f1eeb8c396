"""The guard allows it and the connection fails: each check of the page, with what is said about the line and by whom.

Below ``tests/kernel`` it is shown that each cause is noticed. Here somebody has no more than the line of the failed
connection, learns which cause it is, does what is said, and gets through.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.appcase import NOBODY, Talking, application, short_folder
from tests.kernel.netlab import Lab, cgroup_mount, needs_netlab
from tests.services.golden import sentence
from tests.services.rows import rows
from tests.troubleshooting.apply_entry import said

pytestmark = needs_netlab

REFUSED = "[Errno 111] Connection refused"
WORDS = """
from democrai_sandbox.access.targets import TargetParser
from democrai_sandbox.host.explain.declared_rights import kernel_view

def reach(host, port):
    return raised(lambda: socket.create_connection((host, port), 20).close())[1]
def asked(**request):
    "Ask the helper as the application does, and return its answer."
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(kernel.egress.socket)
        link.sendall(json.dumps({"version": 1, **request}).encode() + b"\\n")
        return json.loads(link.makefile().readline())
def view(host, port):
    "What an explanation says of the kernel layer, when the guard allows a connection."
    wanted = TargetParser().read("network", "connect", f"{host}:{port}", os.path.realpath)
    found = kernel_view(kernel, wanted, allowed=True)
    return {"passes": found.lets_through, "text": found.text, "disagrees": found.disagreement}
def details():
    return plain(kernel.status()["egress"].details)
def plain(found):
    return json.loads(json.dumps(dict(found), default=str))
def declare(*targets):
    source.targets += targets
    return refresh()
def refresh():
    kernel.egress.refresh("test", wait=True)
    return True
def begin(section, *targets):
    global kernel, source
    source = Wanted(*targets)
    places = ApplicationPlaces(f"{HERE}/data", f"{HERE}/state")
    kernel = Kernel(os_settings(section), places, endpoints=AllowlistBuilder([source]))
    kernel.prepare()
    kernel.confine()
    tell(value="ready")
    for line in sys.stdin:
        tell(value=eval(line))
    kernel.stop()
"""


class Place:
    """A lab with two servers, and applications in it that work out what they are told."""

    def __init__(self, here, lab, stack):
        self.here, self.lab, self._stack = here, lab, stack
        self.host = lab.world.v4
        self.port, self.other = (lab.world.serve("tcp", self.host).port for _ in range(2))
        self._number = 0

    def start(self, section, *targets):
        """Start an application that may reach the first server, and these."""
        self._number += 1
        folder = self.here / str(self._number)
        folder.mkdir()
        body = f"{WORDS}\nbegin({section!r}, {self.host + ':' + str(self.port)!r}, *{targets!r})\n"
        app = self._stack.enter_context(Talking(folder, body, space=self.lab.inside))
        assert app.hear()["value"] == "ready"
        return App(app, self.host, self.port)


class App:
    """One of them."""

    def __init__(self, talking, host, port):
        self._talking, self._host, self._port = talking, host, port
        self.pid = talking.pid

    def does(self, expression):
        return self._talking.ask(expression)["value"]

    def reach(self, port=None, host=None):
        """Return the line that a connection fails with; none when it is made."""
        return self.does(f"reach({host or self._host!r}, {port or self._port})")

    def view(self, port=None, host=None):
        return self.does(f"view({host or self._host!r}, {port or self._port})")


@pytest.fixture(scope="module")
def place():
    with short_folder() as here, Lab() as lab, ExitStack() as stack:
        yield Place(here, lab, stack)


@pytest.fixture(scope="module")
def app(place):
    """One application for all who leave it as they found it."""
    paths = {"policy_file": f"{place.here}/allowlist.json", "helper_socket": f"{place.here}/helper.sock"}
    return place.start({"enabled": True, **paths})


def test_the_line_leads_to_every_check():
    """A refused connection has no code of ours; the explanation names each check and both variables."""
    text = said(f"ConnectionRefusedError: {REFUSED}")
    for value in (
        "sandbox.os.enabled",
        "sandbox.os.helper_socket",
        "sandbox.os.policy_file",
        "resolve",
        "port",
        "cgroup",
        "instances",
        "network.stream.type",
        "DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1",
        "DEMOCRAI_DEBUG_MEDIA_FLOW=1",
    ):
        assert value in text, value
    sentence("refused connection", text)


def test_1_the_packet_filter_is_on_for_whoever_wants_it(place, app):
    """With it, an undeclared target is refused by the system; turned off, it is reached, and that is said."""
    assert app.reach(place.other) == REFUSED
    off = place.start({"enabled": False})
    assert off.reach(place.other) == ""
    view = off.view(place.other)
    assert (view["passes"], view["disagrees"]) == (None, "")
    sentence("no packet filter", view["text"])


def test_2_the_helper_is_reached_through_its_socket(place, app):
    """A socket that is gone: the explanation doubts the filter, and names path and cure; put back, all is well."""
    path = f"{place.here}/helper.sock"
    os.rename(path, f"{path}.away")
    found = app.view()["disagrees"]
    os.rename(f"{path}.away", path)
    assert path in found
    sentence("no helper", found, folder=place.here)
    assert app.view()["disagrees"] == ""


def test_3_the_policy_file_is_there(place, app):
    """Deleted, the helper has a word for it, which is explained; the application writes it anew."""
    os.unlink(f"{place.here}/allowlist.json")
    answer = app.does('asked(action="apply")')
    assert (answer["ok"], answer["reason"]) == (False, "policy_missing")
    sentence("policy_missing", said(answer["reason"]))
    assert app.does("refresh()") and app.does('asked(action="apply")')["ok"]


@rows(
    ("change", "reason"),
    [
        (lambda path: os.chmod(path, 0o620), "policy_mode"),
        (lambda path: os.chmod(path, 0o602), "policy_mode"),
        (lambda path: os.chown(path, NOBODY, NOBODY), "policy_owner"),
    ],
    ids=["group-writable", "world-writable", "somebody else's"],
)
def test_4_the_policy_file_is_the_applications_own(place, app, change, reason):
    """The helper's word for it is explained; without the bad file, the application writes a good one."""
    path = f"{place.here}/allowlist.json"
    change(path)
    answer = app.does('asked(action="apply")')
    assert (answer["ok"], answer["reason"]) == (False, reason)
    sentence(reason, said(answer["reason"]))
    os.unlink(path)
    assert app.does("refresh()") and app.does('asked(action="apply")')["ok"]
    assert app.reach() == ""


def test_5_the_host_resolves(place, app):
    """A name that leads nowhere is told apart from one that is not permitted."""
    assert app.does('declare("nowhere.invalid:443")')
    found = app.view(443, "nowhere.invalid")
    assert found["passes"] is False
    assert "nowhere.invalid" in found["disagrees"]
    sentence("unresolved", found["disagrees"])
    assert app.does("source.targets.remove('nowhere.invalid:443') or refresh()")
    assert app.does("details()")["unresolved"] == []


def test_6_the_port_is_the_declared_one(place, app):
    """Another port of the same host does not pass; declared, it does, and who wanted it is said."""
    target = f"{place.host}:{place.other}"
    assert app.reach(place.other) == REFUSED
    view = app.view(place.other)
    assert (view["passes"], place.host in view["text"], f" {place.other} " in view["text"]) == (None, True, True)
    sentence("another port", view["text"], also=[(place.host, "HOST"), (str(place.other), "PORT")])
    assert app.does(f"declare({target!r})")
    assert app.reach(place.other) == ""
    assert app.view(place.other)["passes"] is True
    assert app.does(f"source.targets.remove({target!r}) or refresh()")
    assert app.reach(place.other) == REFUSED


def test_7_the_process_is_in_the_cgroup(app):
    """Moved out of it, the filter is off and the explanation says so; moved back, the layers agree."""
    inside = Path(app.does("details()")["cgroup"], "cgroup.procs")
    (cgroup_mount() / "cgroup.procs").write_text(str(app.pid))
    found = app.view()["disagrees"]
    inside.write_text(str(app.pid))
    sentence("outside of the cgroup", found, also=[(r"(?<!\w)/\S+", "/path"), (str(app.pid), "PID")])
    assert app.view()["disagrees"] == ""


def test_two_instances_do_not_share_a_socket(place, app):
    """The second is told what is taken and what to set; with its own it works, and the first always does."""
    taken = place.start({"enabled": True, "helper_socket": f"{place.here}/helper.sock"})
    text, refused = taken.view()["text"], _refused(place, helper_socket=f"{place.here}/helper.sock")
    for found in (text, refused):
        assert f"{place.here}/helper.sock" in found and "sandbox.os.helper_socket" in found
    numbers = [(r"process \d+", "process N"), (r"\(\d+\)", "(N)")]
    sentence("shared socket", f"{text}\n{refused}", folder=place.here, also=numbers)
    mended = place.start({"enabled": True, "helper_socket": f"{place.here}/{{pid}}.sock"})
    assert (mended.view()["passes"], mended.reach(), mended.reach(place.other)) == (True, "", REFUSED)
    assert (app.reach(), app.reach(place.other)) == ("", REFUSED)


def test_two_instances_do_not_share_a_policy_file(place):
    """The second is refused what the first has, and says which setting helps; with a file each, both are held."""
    (first, _), (second, fix) = _both(place, "shared.json")
    assert (first, second) == ("partial", "off")
    for found in (fix, _refused(place, policy_file=f"{place.here}/shared.json")):
        assert "{pid}" in found and "sandbox.os.policy_file" in found
    sentence("shared policy file", fix, folder=place.here)
    assert [state for state, _ in _both(place, "{pid}.json")] == ["partial", "partial"]


def _refused(place, **paths):
    """Start an application that requires its filter; return with what it does not start."""
    section = {"enabled": True, "require": True, **paths}
    folder = place.here / "-".join(["required", *paths])
    folder.mkdir()
    told = application(folder, f"{WORDS}\ntell(error=raised(begin, {section!r}))", space=place.lab.inside)
    return told["error"][1]


def _both(place, name):
    """Start two applications with this file; return what each says of its packet filter, and how to mend it."""
    section = {"enabled": True, "policy_file": f"{place.here}/{name}"}
    both = [place.start(section), place.start(section)]
    return [one.does("(lambda found: [str(found.state), found.fix or ''])(kernel.status()['egress'])") for one in both]


def test_the_flow_shows_what_became_of_the_allowlist(place):
    """``DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1`` prints each step, with what did not resolve; without it, none."""
    printed = {}
    for value in ("1", "0"):
        folder = place.here / f"flow{value}"
        folder.mkdir()
        told = application(
            folder,
            f'{WORDS}\nbegin({{"enabled": True}}, "nowhere.invalid:443")\n',
            environment={"DEMOCRAI_DEBUG_OS_SANDBOX_FLOW": value},
            space=place.lab.inside,
        )
        printed[value] = [line for line in told["stderr"].splitlines() if line.startswith("[OS_SANDBOX_FLOW] ")]
    (applied,) = [line for line in printed["1"] if " egress.applied " in line][:1]
    assert "nowhere.invalid" in applied
    assert {"egress_started", "stopped"} <= {line.split()[1] for line in printed["1"]}
    assert printed["0"] == []
