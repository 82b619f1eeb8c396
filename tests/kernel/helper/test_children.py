"""Children: stricter than their application, killed as a whole, and cheap if a similar one existed before."""

from __future__ import annotations

import os
import signal

import pytest

from democrai_sandbox.kernel.helper import enforcer as module
from democrai_sandbox.kernel.helper.iptables import Allow, Commands
from democrai_sandbox.kernel.helper.policy import PolicyEndpoint
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.packet_network import end, field, policy
from tests.kernel.netlab import cgroup_mount, cgroup_of, has_ended, needs_netlab, wait_until

pytestmark = needs_netlab


@pytest.fixture
def place():
    with field() as made:
        yield made


def child_of(place, endpoints, user=None, enforcer=None):
    """Start a process in the cgroup of a new child; return it, and the answer."""
    answer, descriptor = (enforcer or place.enforcer).child(endpoints)
    try:
        process = place.lab.inside.agent(user)
        assert process.join(descriptor) == "ok"
    finally:
        os.close(descriptor)
    return process, answer


def breakable(tmp_path, name="iptables-restore"):
    """Return commands of which one fails while a file ``fail`` exists."""
    for each in ("iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"):
        broken = f"if [ -e {tmp_path}/fail ]; then exit 2; fi\n" if each == name else ""
        (tmp_path / each).write_text(f'#!/bin/sh\n{broken}exec {Commands().find(each)} "$@"\n')
        (tmp_path / each).chmod(0o755)
    return Commands(places=(str(tmp_path),))


def reached(process, *servers):
    return [process.tcp(each.address, each.port) == "ok" for each in servers]


def sets(place):
    return sorted(
        line.split()[0][1:]
        for line in place.lab.inside.rules().splitlines()
        if line.startswith(":DEMOCRAI") and "_S" in line
    )


def test_a_child_reaches_what_both_it_and_the_application_may(place):
    world = place.lab.world
    one, two, three = (world.serve("tcp", address) for address in (world.v4, world.v6, world.more_v4[0]))
    place.apply(end(one), end(two))
    child, _ = child_of(place, [end(one), end(three)])
    assert reached(child, one, two, three) == [True, False, False]
    assert reached(place.app, one, two, three) == [True, True, False]
    place.apply(end(two), end(three))
    assert reached(child, one, two, three) == [False, False, True]


def test_a_child_without_endpoints_reaches_nothing_by_any_protocol(place):
    t4, t6, u4, u6 = place.serve("tcp", "udp")
    place.apply(end(t4), end(t6), end(u4, "udp"), end(u6, "udp"))
    child, _ = child_of(place, [])
    assert reached(child, t4, t6) == [False, False]
    assert [child.udp(each.address, each.port) for each in (u4, u6)] == ["EPERM", "EPERM"]


def test_only_a_child_with_endpoints_reaches_the_name_servers(place):
    world = place.lab.world
    server = world.serve("udp", world.v4, 53)
    enforcer = place.enforcer_for(place.app, servers=lambda: frozenset({Allow("udp", world.v4, 53)}))
    enforcer.apply(policy(("192.0.2.1", 443)), place.app.pid)
    with_some, _ = child_of(place, [PolicyEndpoint("192.0.2.1", 443)], enforcer=enforcer)
    with_none, _ = child_of(place, [], enforcer=enforcer)
    assert with_some.udp(server.address, server.port) == "ok"
    assert with_none.udp(server.address, server.port) == "EPERM"


def test_a_process_without_rights_joins_by_the_descriptor_and_by_no_path(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4), end(t6))
    child, answer = child_of(place, [end(t6)], user="nobody")
    assert cgroup_of(child.pid) == f"/democrai_os_sandbox_{place.app.pid}/set_1/child_1"
    assert answer["cgroup"] == f"{cgroup_mount()}{cgroup_of(child.pid)}"
    assert reached(child, t4, t6) == [False, True]
    # It can neither return to the application's cgroup nor leave all cgroups.
    for group in (cgroup_mount(), cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}"):
        assert child.join(group / "cgroup.procs") == "EACCES"
    assert reached(child, t4, t6) == [False, True]


def test_the_descriptor_is_not_inherited_by_programs(place):
    place.apply()
    _, descriptor = place.enforcer.child([])
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_children_with_the_same_endpoints_share_their_rules_and_not_their_group(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4), end(t6))
    first = place.enforcer.child([end(t4), end(t6)])
    rules = place.lab.inside.rules()
    second = place.enforcer.child([end(t6), end(t4), end(t4)])
    for _, descriptor in (first, second):
        os.close(descriptor)
    assert first[0]["set"] == second[0]["set"] == 1
    assert first[0]["cgroup"] != second[0]["cgroup"]
    assert [line for line in place.lab.inside.rules().splitlines() if line[:1] != "#"] == [
        line for line in rules.splitlines() if line[:1] != "#"
    ]
    assert place.enforcer.status()["sets"] == 1
    assert place.enforcer.status()["children"] == 2


def test_a_further_child_of_a_set_starts_no_program(place, monkeypatch):
    place.apply()
    os.close(place.enforcer.child([])[1])
    ran = []
    monkeypatch.setattr(Commands, "run", lambda *args: ran.append(args))
    os.close(place.enforcer.child([])[1])
    assert not ran


def test_release_ends_a_child_with_all_that_it_has_started(place):
    place.apply()
    child, answer = child_of(place, [])
    other, _ = child_of(place, [])
    started = child.fork()
    assert place.enforcer.release(answer["child"]) == {"child": answer["child"], "known": True}
    assert child.process.wait(30) == -signal.SIGKILL
    wait_until(lambda: has_ended(started), "its end")
    assert not os.path.exists(answer["cgroup"])
    assert other.ask("ready") == "ok"
    assert not place.enforcer.release(answer["child"])["known"]
    assert not place.enforcer.release(4711)["known"]


def test_the_names_of_a_set_are_renewed_with_those_of_the_application(place):
    world = place.lab.world
    one = world.serve("tcp", world.v4)
    two = world.serve("tcp", world.more_v4[0], one.port)
    place.names["api.example"] = (one.address,)
    place.apply(end(one), end(two))
    child, _ = child_of(place, [PolicyEndpoint("api.example", one.port)])
    assert reached(child, one, two) == [True, False]
    place.names["api.example"] = (two.address,)
    assert place.enforcer.refresh()["changed"]
    assert reached(child, two) == [True]


def test_addresses_told_with_a_further_child_are_added_for_all_of_the_set(place):
    world = place.lab.world
    one = world.serve("tcp", world.v4)
    two = world.serve("tcp", world.more_v4[0], one.port)
    place.apply(end(one), end(two))
    first, _ = child_of(place, [PolicyEndpoint("api.example", one.port, addresses=(one.address,))])
    kept = first.keep(one.address, one.port)
    assert reached(first, two) == [False]
    second, _ = child_of(place, [PolicyEndpoint("api.example", one.port, addresses=(two.address,))])
    assert reached(second, one, two) == [True, True]
    assert first.send(kept) == "ok"


def test_the_least_recently_used_empty_set_makes_room_and_busy_ones_stay(place, monkeypatch):
    monkeypatch.setattr(module, "MOST_SETS", 2)
    place.apply()
    ends = [PolicyEndpoint("192.0.2.1", port) for port in (1, 2, 3, 4)]
    pid = place.app.pid
    (first, one), (second, two) = place.enforcer.child(ends[:1]), place.enforcer.child(ends[1:2])
    for descriptor in (one, two):
        os.close(descriptor)
    with pytest.raises(RequestRefused) as caught:
        place.enforcer.child(ends[2:3])
    assert caught.value.reason == "busy"
    assert "release" in caught.value.fix
    place.enforcer.release(first["child"])
    place.enforcer.release(second["child"])
    again, descriptor = place.enforcer.child(ends[:1])
    os.close(descriptor)
    assert again["set"] == first["set"]
    third, descriptor = place.enforcer.child(ends[2:3])
    os.close(descriptor)
    # The second is the least recently used, and numbers are not reused.
    assert sets(place) == [f"DEMOCRAI_OS_{pid}_S1", f"DEMOCRAI_OS_{pid}_S3"]
    assert third["set"] == 3
    assert not (cgroup_mount() / f"democrai_os_sandbox_{pid}" / "set_2").exists()
    assert place.enforcer.status()["in_force"]


def test_there_is_an_end_to_the_number_of_children(place, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHILDREN", 1)
    place.apply()
    os.close(place.enforcer.child([])[1])
    with pytest.raises(RequestRefused) as caught:
        place.enforcer.child([])
    assert caught.value.reason == "busy"


def test_children_that_ended_long_ago_unreleased_are_collected(place, monkeypatch):
    place.apply()
    child, answer = child_of(place, [])
    living, kept = child_of(place, [])
    child.kill()
    monkeypatch.setattr(module, "_UNUSED_SECONDS", -1.0)
    place.enforcer.refresh()
    assert not os.path.exists(answer["cgroup"])
    assert os.path.exists(kept["cgroup"])
    assert living.ask("ready") == "ok"


def test_a_set_whose_rules_cannot_be_made_leaves_nothing(place, tmp_path):
    (t4, _) = place.serve("tcp")
    enforcer = place.enforcer_for(place.app, commands=breakable(tmp_path, "ip6tables-restore"))
    enforcer.apply(policy(end(t4)), place.app.pid)
    (tmp_path / "fail").touch()
    with pytest.raises(RequestRefused):
        enforcer.child([end(t4)])
    assert sets(place) == []
    assert enforcer.status()["sets"] == 0
    assert not (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}" / "set_1").exists()
    (tmp_path / "fail").unlink()
    child, _ = child_of(place, [end(t4)], enforcer=enforcer)
    assert reached(child, t4) == [True]


def test_addresses_that_could_not_be_opened_are_tried_again_with_the_next_child(place, tmp_path):
    world = place.lab.world
    one = world.serve("tcp", world.v4)
    two = world.serve("tcp", world.more_v4[0], one.port)
    commands = breakable(tmp_path)
    enforcer = place.enforcer_for(place.app, commands=commands)
    enforcer.apply(policy(end(one), end(two)), place.app.pid)
    first, _ = child_of(place, [PolicyEndpoint("api.example", one.port, addresses=(one.address,))], enforcer=enforcer)
    wanted = [PolicyEndpoint("api.example", one.port, addresses=(two.address,))]
    (tmp_path / "fail").touch()
    with pytest.raises(RequestRefused):
        enforcer.child(wanted)
    assert reached(first, one, two) == [True, False]
    (tmp_path / "fail").unlink()
    second, _ = child_of(place, wanted, enforcer=enforcer)
    assert reached(second, one, two) == [True, True]


def test_damaged_rules_of_a_set_are_made_again(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4), end(t6))
    child, _ = child_of(place, [end(t6)])
    place.lab.inside.run(["iptables", "-F", "OUTPUT"])
    assert reached(child, t4) == [True]
    assert place.enforcer.refresh()["changed"]
    assert reached(child, t4, t6) == [False, True]


def test_a_set_whose_group_was_removed_is_made_again_with_its_rules(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4), end(t6))
    child, answer = child_of(place, [end(t6)])
    place.enforcer.release(answer["child"])
    (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}" / "set_1").rmdir()
    child, _ = child_of(place, [end(t6)])
    assert reached(child, t4, t6) == [False, True]
