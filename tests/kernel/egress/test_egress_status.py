"""The status shows the degree of enforcement, the reason if it is incomplete, and the fix."""

from __future__ import annotations

import json
from dataclasses import replace

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel import ControlState
from democrai_sandbox.kernel.egress import Allowlist, Endpoint, FailedSource, NotMaterialised
from democrai_sandbox.kernel.egress.control import EgressMeasurements, egress_status, helper_status
from democrai_sandbox.kernel.egress.helper_process import Way
from democrai_sandbox.kernel.egress.updater import AppliedAllowlist
from tests.services.golden import sentence
from tests.services.rows import rows

ALLOWLIST = Allowlist((Endpoint("a.example", 1),), (NotMaterialised("*.x.example", "module:m", "a pattern"),), ())
APPLIED = AppliedAllowlist(ALLOWLIST, "d" * 64, frozenset(), {"addresses": 3, "unresolved": [], "seconds": 0.01}, 1e9)
GOOD = EgressMeasurements(
    pid=42,
    refresh_seconds=60,
    policy_file="/p",
    socket="/s",
    way=Way.DIRECT,
    comes_back=True,
    helper={"pid": 7, "in_force": True, "chains": {"ipv4": "DEMOCRAI_OS_42_A", "ipv6": None}, "problems": {}},
    helper_error=None,
    applied=APPLIED,
    apply_error=None,
    cgroup="/democrai_os_sandbox_42",
    older_sockets=0,
    observed=0,
    following=True,
)
GONE = HelperFailed("no helper is listening", fix="restart", reason="not_running")


def test_all_in_order_is_active_with_everything_that_was_measured():
    status = egress_status(GOOD)
    assert (status.state, status.reason, status.fix) == (ControlState.ACTIVE, "", "")
    details = status.details
    assert details["chains"] == {"ipv4": "DEMOCRAI_OS_42_A", "ipv6": None}
    assert details["last_apply"]["at"] == "2001-09-09T01:46:40+00:00"
    assert details["not_materialised"] == [{"target": "*.x.example", "source": "module:m", "why": "a pattern"}]
    assert (details["endpoints"], details["addresses"], details["helper_pid"]) == (1, 3, 7)
    json.dumps(status.as_dict())


@rows("cgroup", ["/democrai_os_sandbox_42", "/a/democrai_os_sandbox_42/set_1/child_2"])
def test_a_process_in_the_cgroup_or_below_it_is_inside(cgroup):
    assert egress_status(replace(GOOD, cgroup=cgroup)).state is ControlState.ACTIVE


@rows("cgroup", ["/", "", "/democrai_os_sandbox_421", "/democrai_os_sandbox_4"])
def test_a_process_outside_its_cgroup_is_held_to_nothing_and_that_is_off(cgroup):
    status = egress_status(replace(GOOD, cgroup=cgroup))
    assert status.state is ControlState.OFF
    assert status.details["in_cgroup"] is False
    assert status.reason and status.fix


@rows(
    ("name", "change"),
    [
        ("older sockets", {"older_sockets": 3}),
        ("no helper", {"helper_error": GONE, "helper": {}}),
        ("not applied", {"apply_error": HelperFailed("bad line", fix="mend", reason="table_failed")}),
        ("a problem", {"helper": {"in_force": False, "problems": {"ipv6": "no jump"}}}),
        ("a new helper", {"helper": {"in_force": False, "problems": {}}}),
    ],
)
def test_what_is_not_covered_or_not_followed_is_partial(name, change):
    """Each problem has a distinct sentence, with the helper's message."""
    status = egress_status(replace(GOOD, **change))
    assert status.state is ControlState.PARTIAL
    assert status.fix
    sentence(name, status.reason)


def test_several_flaws_are_all_told():
    flaws = {"older_sockets": 1}, {"helper_error": GONE}
    reason = egress_status(replace(GOOD, older_sockets=1, helper_error=GONE)).reason
    assert all(egress_status(replace(GOOD, **flaw)).reason in reason for flaw in flaws)


def test_what_only_makes_it_stricter_is_told_and_stays_active():
    allowlist = replace(ALLOWLIST, failed_sources=(FailedSource("mcp", "RuntimeError: x"),))
    applied = replace(APPLIED, allowlist=allowlist, answer={"unresolved": ["nosuch.example"]})
    status = egress_status(replace(GOOD, applied=applied))
    assert status.state is ControlState.ACTIVE
    sentence("stricter", status.reason)
    assert status.details["failed_sources"] == [{"name": "mcp", "error": "RuntimeError: x"}]
    assert status.details["unresolved"] == ["nosuch.example"]


@rows(
    ("reason", "state"),
    [
        ("no_cgroup2", ControlState.UNSUPPORTED),
        ("cgroup_read_only", ControlState.UNSUPPORTED),
        ("no_iptables", ControlState.UNSUPPORTED),
        ("no_ip6tables", ControlState.UNSUPPORTED),
        ("no_way_up", ControlState.OFF),
        ("socket_taken", ControlState.OFF),
    ],
)
def test_what_kept_it_from_starting_is_told_with_its_fix(reason, state):
    error = HelperFailed("it cannot be had", fix="do this", reason=reason)
    facts = replace(GOOD, way=None, applied=None, helper={}, helper_error=error, cgroup="/")
    for status in (egress_status(facts), helper_status(facts)):
        assert (status.state, status.reason, status.fix) == (state, error.what, error.fix)


def test_before_the_start_it_is_off():
    facts = replace(GOOD, way=None, applied=None, helper={})
    assert egress_status(facts).state is ControlState.OFF
    assert helper_status(facts).state is ControlState.OFF


def test_the_helper_is_active_when_it_answers_and_off_when_it_does_not():
    assert helper_status(GOOD).state is ControlState.ACTIVE
    assert helper_status(GOOD).details["pid"] == 7
    gone = helper_status(replace(GOOD, helper={}, helper_error=GONE))
    assert (gone.state, gone.reason, gone.fix) == (ControlState.OFF, GONE.what, GONE.fix)
