"""The status contains measured values as JSON data, with a fix for each incomplete control."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.errors import HelperFailed, KernelRefused, PolicyFileRefused
from democrai_sandbox.kernel import ControlState, ControlStatus
from democrai_sandbox.kernel import selftest_operations as acts
from democrai_sandbox.kernel.selftest import judged
from democrai_sandbox.kernel.status import (
    KernelStatus,
    landlock_now,
    not_applied,
    not_wanted,
    plain,
    refusal,
    server_now,
    with_attempts,
    without_helper,
)
from tests.kernel.appcase import EVERYTHING, Talking, application, lacking, short_folder
from tests.kernel.netlab import needs_netlab, shared_lab, wait_until
from tests.services.rows import rows

PROCESS_ONLY = {"seccomp": {"enabled": True}, "landlock": {"enabled": True}}
ACTIVE = ControlStatus("landlock", ControlState.ACTIVE, details={"abi": 7})


def test_a_control_is_found_by_its_name():
    """``status["landlock"]`` is that control; an unknown name is a KeyError."""
    status = KernelStatus((ACTIVE,))
    assert status["landlock"] is ACTIVE
    with pytest.raises(KeyError):
        status["firewall"]


def test_only_wanted_controls_count_as_lacking():
    """A control that is not enabled may be off."""
    partial = ControlStatus("egress", ControlState.PARTIAL, "sockets")
    status = KernelStatus((ACTIVE, not_wanted("seccomp"), partial))
    assert status.less_than_active(["landlock", "egress"]) == (partial,)
    assert "sandbox.os.seccomp.enabled" in status.less_than_active(["seccomp"])[0].reason


def test_status_is_plain_data():
    """All details can be encoded as JSON."""
    odd = ControlStatus(
        "landlock",
        ControlState.PARTIAL,
        details={"paths": ("/a",), "state": ControlState.OFF, "set": {1}, "x": object()},
    )
    attempt = judged("read", "child", "landlock", "stopped by EACCES")
    data = json.loads(json.dumps(KernelStatus((odd,), (attempt,)).as_dict()))
    assert data["controls"]["landlock"]["details"]["paths"] == ["/a"]
    assert data["controls"]["landlock"]["details"]["state"] == "off"
    assert data["selftest"][0]["outcome"] == "stopped by EACCES"
    assert plain({"a": {2: [None, 1.5]}}) == {"a": {"2": [None, 1.5]}}


def test_a_control_that_let_something_through_is_not_active():
    """An attempt that succeeded ends the active state, and is named with its fix."""
    through = judged("write", "process", "landlock", acts.THROUGH, fix="fix it")
    stopped = judged("read", "process", "landlock", "stopped by EACCES")
    other = judged("execve", "process", "seccomp", acts.THROUGH)
    status = with_attempts(ACTIVE, [stopped, through, other])
    assert status.state is ControlState.PARTIAL
    assert all(part in status.reason for part in ("write", "process", acts.THROUGH))
    assert "read" not in status.reason and "execve" not in status.reason
    assert status.fix == "fix it"
    assert status.details["abi"] == 7 and status.details["selftest"]["process: read"] == "stopped by EACCES"
    assert with_attempts(ACTIVE, [stopped]).state is ControlState.ACTIVE


def test_an_attempt_never_makes_a_control_better():
    """Off stays off, independent of attempts."""
    for state in (ControlState.OFF, ControlState.UNSUPPORTED, ControlState.PARTIAL):
        status = with_attempts(
            ControlStatus("landlock", state, "why"), [judged("read", "process", "landlock", "stopped by EACCES")]
        )
        assert (status.state, status.reason) == (state, "why")


def test_a_thread_that_reaches_outside_is_not_covered():
    """Landlock has no file in /proc: the calling thread tests itself."""
    assert landlock_now(ACTIVE, reaches_outside=False).state is ControlState.ACTIVE
    assert landlock_now(ACTIVE, reaches_outside=True).state is ControlState.PARTIAL


@rows(
    ("error", "state"),
    [
        (HelperFailed("no iptables", fix="install it", reason="no_iptables"), ControlState.UNSUPPORTED),
        (HelperFailed("no sudo", fix="a rule", reason="no_way_up"), ControlState.UNSUPPORTED),
        (HelperFailed("no answer", fix="look", reason="timed_out"), ControlState.OFF),
        (PolicyFileRefused("somebody else's", fix="chown"), ControlState.OFF),
    ],
)
def test_without_a_helper_the_state_says_whether_the_machine_can(error, state):
    """A missing feature is unsupported, a failure is off; both have the reason and the fix."""
    status = without_helper("egress", error)
    assert (status.state, status.reason, status.fix) == (state, error.what, error.fix)


def test_a_refusal_names_every_control_with_its_reason_and_fix():
    """One error contains all fixes that the start needs."""
    error = refusal(
        [
            ControlStatus("landlock", ControlState.UNSUPPORTED, "no kernel", "a newer one"),
            not_applied("egress", is_over=False),
        ]
    )
    assert isinstance(error, KernelRefused)
    assert lacking({"what": error.what}) == {"landlock": "unsupported", "egress": "off"}
    assert "no kernel" in error.what and not_applied("egress", is_over=False).reason in error.what
    assert [part.partition(": ")[0] for part in error.fix.split("; ")] == ["landlock", "egress"]
    assert "a newer one" in error.fix and "prepare()" in error.fix


def test_children_that_are_not_kept_from_something_make_the_server_partial():
    """The reason names the access that this kernel cannot deny to children."""
    assert server_now((), "", {}).state is ControlState.ACTIVE
    status = server_now(("files: this kernel has no Landlock",), "", {"pid": 1})
    assert status.state is ControlState.PARTIAL and status.fix
    assert status.details["unenforced"][0] in status.reason


def test_status_before_and_after_says_which_step_is_missing(tmp_path):
    """Before each step an enabled control is off and names the step; after stop it is stopped."""
    told = application(
        tmp_path,
        f"""
        kernel = make({PROCESS_ONLY!r})
        def look(name):
            found = {{each.name: [each.state, each.reason, each.fix] for each in kernel.status().controls}}
            tell(**{{name: found}})
        look("new")
        kernel.prepare()
        look("prepared")
        kernel.confine()
        look("confined")
        kernel.stop()
        look("stopped")
        """,
    )
    for name, step in (("landlock", "confine()"), ("spawn_server", "prepare()")):
        expected = not_applied(name, is_over=False)
        assert told["new"][name] == [expected.state, expected.reason, expected.fix] and step in expected.fix
    assert told["prepared"]["seccomp"][0] == "off" and told["prepared"]["spawn_server"][0] == "active"
    assert [told["confined"][name][0] for name in ("landlock", "seccomp", "spawn_server")] == ["active"] * 3
    # Irreversible controls stay, and are still measured.
    assert [told["stopped"][name][0] for name in ("landlock", "seccomp")] == ["active"] * 2
    over = not_applied("spawn_server", is_over=True)
    assert told["stopped"]["spawn_server"] == [over.state, over.reason, over.fix]
    assert over.reason != not_applied("spawn_server", is_over=False).reason


def test_status_is_measured_and_not_remembered(tmp_path):
    """A killed server, and later threads, show at the next call."""
    told = application(
        tmp_path,
        """
        kernel = make({"seccomp": {"enabled": True}})
        kernel.prepare()
        kernel.confine()
        stop = threading.Event()
        for _ in range(3):
            threading.Thread(target=stop.wait).start()
        details = kernel.status()["seccomp"].details
        tell(threads=details["threads"], covered=details["threads_covered"])
        before = kernel.status()["spawn_server"]
        os.kill(kernel.spawn.standby, signal.SIGSTOP)  # it would take over
        os.kill(kernel.spawn.pid, signal.SIGKILL)
        os.waitid(os.P_PID, kernel.spawn.pid, os.WEXITED | os.WNOWAIT)
        os.kill(kernel.spawn.standby, signal.SIGKILL)
        after = kernel.status()["spawn_server"]
        tell(before=before.state, after=[after.state, after.reason, after.fix])
        stop.set()
        kernel.stop()
        """,
    )
    assert told["threads"] == told["covered"] == 5  # with the monitoring thread
    assert told["before"] == "active"
    state, reason, fix = told["after"]
    assert state == "off" and reason and fix


@needs_netlab
def test_the_details_of_the_egress_are_those_of_the_documentation():
    """Policy file, cgroup, chains, older sockets, unresolved hosts, targets without endpoints, and the last update."""
    with short_folder() as here, shared_lab() as lab:
        told = application(
            here,
            f"""
            early = socket.socket()
            kernel = make({EVERYTHING!r}, "{lab.world.v4}:80", "no-such-host.invalid:443", "*.example.com:443")
            kernel.prepare()
            status = kernel.confine()
            egress, helper = status["egress"], status["helper"]
            tell(states=states(status), details=egress.details, helper=helper.details, reason=egress.reason)
            tell(pid=os.getpid())
            early.close()
            tell(then=states(kernel.status())["egress"])
            kernel.stop()
            """,
            space=lab.inside,
        )
    details, pid = told["details"], told["pid"]
    assert told["states"]["egress"] == "partial" and "1" in told["reason"]
    assert told["then"] == "active"
    assert details["policy_file"] == f"{here}/data/os_sandbox_allowlist_{pid}.json"
    assert details["helper_socket"] == f"{here}/state/os_sandbox_helper_{pid}.sock"
    assert details["cgroup"].endswith(f"/democrai_os_sandbox_{pid}") and details["in_cgroup"]
    assert details["chains"]["ipv4"].startswith(f"DEMOCRAI_OS_{pid}_")
    assert details["older_sockets"] == 1
    assert details["unresolved"] == ["no-such-host.invalid"]
    assert [item["target"] for item in details["not_materialised"]] == ["*.example.com:443"]
    assert details["last_apply"]["at"] and details["last_apply"]["error"] == ""
    assert told["helper"]["pid"] and told["helper"]["way"] == "direct"


@needs_netlab
def test_a_helper_that_is_killed_shows_and_comes_back():
    """The rules stay, and it is restarted although the application cannot execute programs."""
    with short_folder() as here, shared_lab() as lab:
        server = lab.world.serve("tcp", lab.world.v4)
        body = f"""
            kernel = make({EVERYTHING!r})
            kernel.prepare()
            status = kernel.confine()
            tell(helper=status["helper"].details["pid"], states=states(status))
            for line in sys.stdin:
                status = kernel.status()
                met = kind_of(lambda: socket.create_connection(("{lab.world.v4}", {server.port}), 10).close())
                tell(states=states(status), helper=status["helper"].details["pid"], met=met)
            kernel.stop()
            """
        with Talking(here, body, space=lab.inside) as app:
            first = app.hear()
            assert first["states"]["helper"] == "active"
            lab.inside.run(["kill", "-9", str(first["helper"])])
            seen = []

            def is_back():
                answer = app.ask()
                seen.append(answer)
                return answer["states"]["helper"] == "active" and answer["helper"] != first["helper"]

            wait_until(is_back, "a new helper", 40)
            assert {answer["met"] for answer in seen} == {"ConnectionRefusedError"}
            assert app.end() == 0
