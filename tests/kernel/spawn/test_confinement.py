"""Conversion of a subject's rules to kernel settings, without a kernel."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.errors import KernelUnsupported
from democrai_sandbox.kernel.landlock import rights
from democrai_sandbox.kernel.seccomp import filters
from democrai_sandbox.kernel.spawn import (
    NO_LIMITS,
    ChildConfinement,
    ResourceLimits,
    confinement,
    confinement_of,
    enforcement_of,
)
from democrai_sandbox.policy import parse_access
from tests.services.golden import sentence
from tests.services.rows import rows


def _rules(*entries):
    return parse_access([dict(zip(("resource_type", "operation", "target"), entry)) for entry in entries], base="/base")


def _of(*entries, **more):
    return confinement_of(_rules(*entries), **more)


def test_read_execute_and_writing_rules_go_to_their_lists():
    found = _of(
        ("filesystem", "read", "/r"),
        ("filesystem", "execute", "/x"),
        ("filesystem", "create", "/c"),
        ("filesystem", "modify", "/m"),
        ("filesystem", "delete", "relative"),
        ("system_dependency", "execute", "/opt/tool"),
        ("system_dependency", "execute", "ffmpeg"),
        runtime_read=("/etc/ssl",),
        runtime_execute=("/usr",),
        own_read=("/own",),
        own_write=("/data", "/tmp/x"),
    )
    assert found.paths_read == ("/etc/ssl", "/own", "/r")
    assert found.paths_execute == ("/usr", "/x", "/opt/tool")
    assert found.paths_write == ("/dev/null", "/data", "/tmp/x", "/c", "/m", "/base/relative")


def test_without_network_rules_there_is_no_port_to_connect_to():
    found = _of(("filesystem", "read", "/r"))
    assert (found.connect_ports, found.bind_ports, found.has_network, found.unix) == ((), (0,), False, False)


def test_ports_are_those_of_the_rules_and_of_name_lookups():
    found = _of(
        ("network", "connect", "https://api.example.com/v1"),
        ("network", "receive", "db.example.com:5432"),
        ("network", "send", "db.example.com:5432"),
        ("network", "connect", "[::1]:8080"),
    )
    assert found.connect_ports == (443, 5432, 8080, 53)
    assert found.bind_ports == (0, 443, 5432, 8080)
    assert found.has_network


@rows("target", ["api.example.com", "*.example.com", "10.0.0.0/8", "::1"])
def test_a_rule_without_a_port_opens_all_of_them(target):
    found = _of(("network", "connect", target), ("network", "connect", "a.example:1"))
    assert found.connect_ports is None
    plan = confinement.plan(found, 7)
    assert plan.net == rights.NetRight.BIND_TCP
    assert dict(plan.ports) == {0: rights.NetRight.BIND_TCP, 1: rights.NetRight.BIND_TCP}


def test_a_unix_socket_is_no_host():
    found = _of(("network", "connect", "unix:/run/app.sock"))
    assert (found.unix, found.has_network, found.connect_ports) == (True, False, ())


def test_the_plan_merges_the_rights_of_a_path_and_leaves_out_what_is_in_proc_self():
    found = ChildConfinement(
        paths_read=("/a", "/proc/self/stat", "/proc/selfish"), paths_execute=("/a",), paths_write=("/a",)
    )
    plan = confinement.plan(found, 7)
    assert dict(plan.paths) == {"/a": rights.EXECUTE | rights.WRITE, "/proc/selfish": rights.READ}
    assert plan.own_proc == rights.READ


@rows(
    ("target", "joins"),
    [
        ("239.1.2.3:5353", True),
        ("224.0.0.251", True),
        ("ff02::fb", True),
        ("ff05::99", True),
        ("223.1.1.1", False),
        ("240.1.1.1", False),
        ("fe80::1", False),
        ("230.example", False),
        ("http://239.1.2.3/", True),
        ("a.example:1", False),
    ],
)
def test_only_a_rule_that_names_a_group_lets_a_child_join_groups(target, joins):
    found = _of(("network", "connect", target))
    assert found.multicast is joins
    assert confinement.filter_key(found, 7).multicast is joins
    assert not confinement.filter_key(_of(), 7).multicast


@rows(
    ("path", "whole"),
    [
        ("/proc/net", True),
        ("/proc/self/net/tcp", True),
        ("/proc/self", True),
        ("/proc/self/status", False),
        ("/proc/network", False),
    ],
)
def test_only_a_rule_about_it_opens_all_of_the_childs_own_folder_in_proc(path, whole):
    plan = confinement.plan(_of(("filesystem", "read", path)), 7)
    assert plan.whole_proc == whole
    assert "/proc/net" not in dict(plan.paths), "that is the network of the process that makes the rule"


def test_what_lies_beneath_a_writable_path_gets_no_rule_of_its_own():
    found = ChildConfinement(
        paths_read=("/w/in", "/wide"), paths_execute=("/w/bin", "/usr"), paths_write=("/w/deep/er", "/w", "/w/other")
    )
    assert dict(confinement.plan(found, 7).paths) == {
        "/w": rights.WRITE | rights.EXECUTE,
        "/wide": rights.READ,
        "/usr": rights.EXECUTE,
    }


def test_metadata_changes_below_modify_rules_and_own_folders():
    rules = [("filesystem", operation, f"/{operation}") for operation in ("read", "create", "modify", "delete")]
    found = _of(*rules, own_read=("/code",), own_write=("/data", "/tmp/x"))
    assert found.paths_metadata == ("/data", "/tmp/x", "/modify")
    assert confinement.plan(found, 7).metadata == ("/data", "/tmp/x", "/modify")


@rows(
    ("rules", "abi", "metadata"),
    [
        ([], 7, filters.Metadata.REFUSED),
        ([("filesystem", "create", "/c")], 7, filters.Metadata.REFUSED),
        ([("filesystem", "modify", "/m")], 7, filters.Metadata.SUPERVISED),
        ([("filesystem", "modify", "/m")], 1, filters.Metadata.SUPERVISED),
        ([], 0, filters.Metadata.ALL),
        ([("filesystem", "modify", "/m")], 0, filters.Metadata.ALL),
    ],
)
def test_metadata_is_restricted_where_landlock_restricts_files(rules, abi, metadata):
    unix = filters.Unix.SUPERVISED if metadata is filters.Metadata.SUPERVISED else filters.Unix.NONE
    profile = filters.child_profile(inet=filters.Inet.NONE, unix=unix, fastopen=abi < 4, metadata=metadata)
    assert enforcement_of(_of(*rules), abi).filter == filters.program(profile)


@rows("abi", range(8))
def test_a_plan_holds_nothing_that_its_abi_does_not_know(abi):
    found = _of(("network", "connect", "a.example:1"), ("filesystem", "modify", "/m"), runtime_execute=("/usr",))
    plan = confinement.plan(found, abi)
    known = rights.supported(abi)
    if abi == 0:
        assert plan is None
        return
    assert plan.fs == known.fs
    assert plan.net == known.net
    assert plan.scoped == known.scoped
    assert all(mask & ~plan.fs == 0 for _, mask in plan.paths)
    assert all(mask & ~plan.net == 0 and mask for _, mask in plan.ports)
    assert all(isinstance(number, int) and type(number) is int for number in (plan.fs, plan.net, plan.scoped))


def _filter(inet, *, unix=filters.Unix.NONE, fastopen=True, abi=7):
    metadata = filters.Metadata.REFUSED if abi else filters.Metadata.ALL
    return filters.program(filters.child_profile(inet=inet, unix=unix, fastopen=fastopen, metadata=metadata))


@rows("abi", [0, 3, 4, 7])
def test_without_network_rules_no_sockets_for_it_are_made(abi):
    network = _of(("network", "connect", "a.example:1"))
    assert enforcement_of(_of(), abi).filter == _filter(filters.Inet.NONE, fastopen=abi < 4, abi=abi)
    assert enforcement_of(network, abi).filter == _filter(filters.Inet.ALL, fastopen=abi < 4, abi=abi)


def test_sending_may_connect_only_where_something_else_sees_it():
    found = _of(("network", "connect", "a.example:1"))
    careless, careful = _filter(filters.Inet.ALL), _filter(filters.Inet.ALL, fastopen=False)
    assert enforcement_of(found, 7).filter == careful
    assert enforcement_of(found, 7, packet_filter=True).filter == careless
    assert enforcement_of(found, 3).filter == careless
    assert enforcement_of(_of(("network", "connect", "a.example")), 7).filter == careless


def _said(found, abi, **more):
    return " / ".join(enforcement_of(found, abi, **more).unenforced)


def test_what_is_not_enforced_is_said():
    network = _of(("network", "connect", "a.example:1"))
    assert _said(_of(), 7) == ""
    sentence("no Landlock", _said(_of(), 0))
    assert "truncate" in _said(_of(), 2)
    assert "truncate" not in _said(_of(), 3)
    assert "devices" in _said(_of(), 4)
    assert "signals" in _said(_of(), 5)
    sentence("a rule with a port", _said(network, 7))
    sentence("a rule with a port, for a kernel that knows no ports", _said(network, 3))
    sentence("a rule without a port", _said(_of(("network", "connect", "a.example")), 7))
    assert _said(network, 7, packet_filter=True) == ""
    sentence("a unix socket", _said(_of(("network", "connect", "unix:/run/x")), 7))
    limited = _of(limits=ResourceLimits(processes=5))
    assert "root" in _said(limited, 7, root=True)
    assert _said(limited, 7) == _said(limited, 7, root=True, pids=True) == ""
    weighed = _of(limits=ResourceLimits(cpu_weight=25))
    assert "sched_autogroup_enabled" in _said(weighed, 7, shared=False)
    assert _said(weighed, 7) == _said(_of(limits=ResourceLimits(cpu_weight=100)), 7, shared=False) == ""


@rows(
    ("target", "said"),
    [("/srv/data", False), ("/sys/fs/cgroup/", True), ("/sys/fs/cgroup/pids/tasks", True), ("/", True)],
)
def test_a_child_of_root_that_may_leave_its_cgroup_has_no_limit_of_processes(target, said):
    found = replace(_of(("filesystem", "modify", target)), limits=ResourceLimits(processes=5))
    assert ("root" in _said(found, 7, root=True, pids=True)) is said
    assert "root" in _said(found, 0, root=True, pids=True)


@rows(("weight", "nice"), [(None, 0), (100, 0), (90, 0), (80, 1), (50, 3), (25, 6), (10, 10), (2, 17), (1, 19)])
def test_a_weight_is_the_nice_value_with_the_nearest_share(weight, nice):
    """The weights of the kernel fall by a fifth for each value."""
    assert enforcement_of(_of(limits=ResourceLimits(cpu_weight=weight)), 7).nice == nice


def test_an_architecture_without_a_table_is_said_and_not_an_error(monkeypatch):
    missing = KernelUnsupported("there is no table")

    def nothing(*_):
        raise missing

    monkeypatch.setattr(filters, "program", nothing)
    monkeypatch.setattr(confinement, "_FILTERS", confinement.ready_filters())
    found = enforcement_of(_of(), 7)
    assert found.filter == b""
    (said,) = found.unenforced
    assert missing.what in said


def test_the_enforcement_carries_the_limits():
    limits = ResourceLimits(address_space=1 << 30, cpu_seconds=5, open_files=64, processes=9, wall_seconds=7)
    found = enforcement_of(_of(limits=limits), 7)
    assert dict(found.limits) == {
        resource.RLIMIT_AS: 1 << 30,
        resource.RLIMIT_CPU: 5,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 9,
    }
    assert found.wall_seconds == 7


@rows("value", [0, -1, True, 1.5, "5"])
def test_a_limit_is_a_whole_number_above_zero(value):
    with pytest.raises(ValueError, match="open_files"):
        ResourceLimits(open_files=value)


_values = st.none() | st.integers(1, 10)
_limits = st.builds(ResourceLimits, *[_values] * 5)


@given(_limits, _limits)
def test_the_stricter_of_two_limits_keeps_to_both(one, other):
    both = one.stricter(other)
    assert both == other.stricter(one)
    assert both.stricter(one) == both
    assert one.stricter(NO_LIMITS) == one
    for name in ("address_space", "cpu_seconds", "open_files", "processes", "wall_seconds"):
        wanted = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        assert getattr(both, name) == min(wanted, default=None)
