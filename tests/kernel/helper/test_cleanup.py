"""Leftovers of killed helpers and applications: closed while a process lives, removed afterwards."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from democrai_sandbox.kernel.helper import application_rules
from democrai_sandbox.kernel.helper.application_rules import dead_chains, lives, process_namespace
from democrai_sandbox.kernel.helper.cgroups import Cgroup
from democrai_sandbox.kernel.helper.enforcer import Enforcer
from democrai_sandbox.kernel.helper.iptables import FilterListing, Jump, Owner
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.packet_network import Within, end, field, policy
from tests.kernel.netlab import cgroup_mount, cgroup_of, has_ended, needs_netlab, start_time, wait_until

pytestmark = [needs_netlab, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def place():
    with field() as made:
        yield made


def rules(place):
    return place.lab.inside.rules() + place.lab.inside.rules("ipv6")


def other_enforcer(place):
    """Enforcer of another, living application in the same network, which removes leftovers when it starts."""
    return place.enforcer_for(place.application())


def group_of(pid):
    return cgroup_mount() / f"democrai_os_sandbox_{pid}"


def test_a_living_application_and_its_children_are_left_alone(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4))
    os.close(place.enforcer.child([])[1])
    before = [line for line in rules(place).splitlines() if line[:1] != "#"]
    swept = other_enforcer(place).sweep()
    assert swept["chains"] == {"ipv4": [], "ipv6": []}
    assert place.app.pid not in swept["cgroups"]
    assert not swept["took_over"]
    assert [line for line in rules(place).splitlines() if line[:1] != "#"] == before
    assert place.app.tcp(t6.address, t6.port) == "ECONNREFUSED"


def test_what_a_dead_application_has_left_is_removed_and_its_remains_are_killed(place):
    place.apply()
    answer, descriptor = place.enforcer.child([])
    child = place.lab.inside.agent()
    child.join(descriptor)
    os.close(descriptor)
    orphan = place.app.fork()
    place.app.kill()
    assert "DEMOCRAI" in rules(place)
    other_enforcer(place).sweep()
    assert "DEMOCRAI" not in rules(place)
    wait_until(lambda: not group_of(place.app.pid).exists(), "the group to be gone")
    assert child.process.wait(30) == -signal.SIGKILL
    wait_until(lambda: has_ended(orphan), "the orphan's end")


def _left_by(stale, place):
    """Return a process left by a dead application; helpers of parallel tests remove it too."""
    for _ in range(20):
        remains = place.lab.inside.agent()
        try:
            stale.apply(policy(("192.0.2.1", 443)), remains.pid)
        except RequestRefused:
            continue
        return remains
    raise AssertionError("it was swept again and again")


def test_a_number_that_another_process_has_now_does_not_save_the_rules(place):
    pid = place.app.pid
    # As if another process with this id had been started earlier.
    stale = Within(place.lab.inside, Enforcer(pid, place.app.start_time - 1, servers=frozenset))
    remains = _left_by(stale, place)
    assert f"democrai {pid} {place.app.start_time - 1} " in rules(place)
    # The helper of the process that has the id now, in the order of its start.
    place.enforcer.probe()
    swept = place.enforcer.sweep()
    assert not swept["took_over"]
    assert "DEMOCRAI" not in rules(place)
    assert remains.process.wait(30) == -signal.SIGKILL
    place.apply()
    assert f"democrai {pid} {place.app.start_time} " in rules(place)


def test_the_helpers_end_leaves_the_rules_in_force(place):
    (t4, t6) = place.serve("tcp")
    helper = os.fork()
    if helper == 0:
        try:
            place.apply(end(t4))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == -signal.SIGKILL
    assert place.app.tcp(t4.address, t4.port) == "ok"
    assert place.app.tcp(t6.address, t6.port) == "ECONNREFUSED"


def test_a_helper_takes_over_from_one_that_was_killed(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4))
    place.apply(end(t6))
    successor = place.enforcer_for(place.app)
    successor.probe()
    swept = successor.sweep()
    assert swept["took_over"]
    assert swept["chains"] == {"ipv4": [], "ipv6": []}
    status = successor.status()
    assert status["chains"] == dict.fromkeys(("ipv4", "ipv6"), f"DEMOCRAI_OS_{place.app.pid}_B")
    assert status["in_force"]
    assert place.app.tcp(t6.address, t6.port) == "ok"
    # It can move a process in before it has read a policy: rules are in force.
    second = place.lab.inside.agent()
    successor.join(second.pid)
    assert second.tcp(t4.address, t4.port) == "ECONNREFUSED"
    answer = successor.apply(policy(end(t4)), place.app.pid)
    assert answer["chains"]["ipv4"] == f"DEMOCRAI_OS_{place.app.pid}_A"
    assert place.app.tcp(t4.address, t4.port) == "ok"
    assert place.app.tcp(t6.address, t6.port) == "ECONNREFUSED"
    assert rules(place).count("-A OUTPUT") == 2


def test_children_of_a_killed_helper_stay_confined_until_they_end(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4), end(t6))
    answer, descriptor = place.enforcer.child([end(t6)])
    child = place.lab.inside.agent()
    child.join(descriptor)
    os.close(descriptor)
    successor = place.enforcer_for(place.app)
    successor.probe()
    successor.sweep()
    # A child of the new helper, before and after a policy: numbers of the old one are not reused.
    fresh, descriptor = successor.child([end(t4)])
    os.close(descriptor)
    assert (fresh["set"], fresh["child"]) == (2, 2)
    assert place.app.tcp(t4.address, t4.port) == "ok"
    successor.apply(policy(end(t4), end(t6)), place.app.pid)
    successor.refresh()
    assert child.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert child.tcp(t6.address, t6.port) == "ok"
    assert successor.release(answer["child"])["known"]
    assert child.process.wait(30) == -signal.SIGKILL
    successor.refresh()
    assert f"DEMOCRAI_OS_{place.app.pid}_S1" not in rules(place)
    assert not (group_of(place.app.pid) / "set_1").exists()
    successor.remove()
    assert "DEMOCRAI" not in rules(place)


def test_a_helper_started_after_both_have_ended_sweeps(place):
    place.apply()
    place.app.kill()
    late = Within(place.lab.inside, Enforcer(place.app.pid, 0))
    swept = late.sweep()
    assert not swept["took_over"]
    assert "DEMOCRAI" not in rules(place)
    wait_until(lambda: not group_of(place.app.pid).exists(), "the group to be gone")


def test_a_stray_chain_to_which_nothing_leads_is_no_obstacle(place):
    for part in ("A", "B", "S9"):
        place.lab.inside.run(["iptables", "-N", f"DEMOCRAI_OS_{place.app.pid}_{part}"])
    place.enforcer.probe()
    place.enforcer.sweep()
    place.apply()
    assert place.lab.inside.rules().count("\n:DEMOCRAI_OS_") == 1
    place.enforcer.clear()
    assert "DEMOCRAI" not in rules(place)


def test_both_chains_in_force_become_one(place):
    (t4, t6) = place.serve("tcp")
    place.apply(end(t4))
    pid = place.app.pid
    place.lab.inside.run(["iptables", "-N", f"DEMOCRAI_OS_{pid}_B"])
    place.lab.inside.run(["iptables", "-I", "OUTPUT", "-j", f"DEMOCRAI_OS_{pid}_B"])
    successor = place.enforcer_for(place.app)
    successor.probe()
    successor.sweep()
    successor.apply(policy(end(t6)), pid)
    assert place.lab.inside.rules().count("\n:DEMOCRAI_OS_") == 1
    assert place.lab.inside.rules().count("-A OUTPUT") == 1
    assert place.app.tcp(t6.address, t6.port) == "ok"
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"


def listing(*owners, chain="DEMOCRAI_OS_1_A"):
    return FilterListing({chain: 0}, tuple(Jump(chain, "", owner, foreign_before=False) for owner in owners))


def test_who_is_dead_is_told_by_number_start_and_world_of_numbers():
    pid, here = os.getpid(), process_namespace()
    started, chain = start_time(pid), f"DEMOCRAI_OS_{pid}_A"
    assert lives(Owner(pid, started, here))
    assert not lives(Owner(pid, started + 1, here))
    assert dead_chains(listing(Owner(pid, started, here), chain=chain)) == set()
    assert dead_chains(listing(Owner(pid, started + 1, here), chain=chain)) == {chain}
    # In another container the id may belong to any process.
    assert dead_chains(listing(Owner(pid, started + 1, here + 1), chain=chain)) == set()
    # Without an owner mark, only the id decides.
    assert dead_chains(listing(None, chain=chain)) == set()
    assert dead_chains(listing(chain=chain)) == set()
    assert dead_chains(listing(chain="DEMOCRAI_OS_4194305_B")) == {"DEMOCRAI_OS_4194305_B"}


def test_the_group_of_another_world_of_numbers_is_left_alone(place):
    pid = 4194304 - os.getpid() % 1000  # beyond the kernel's limit
    group = Cgroup(place.lab.will_remove(group_of(pid)), "")
    group.make(f"{process_namespace() + 1} 5")
    other_enforcer(place).sweep()
    assert group.identity() is not None
    os.removexattr(group.path, "trusted.democrai")
    other_enforcer(place).sweep()
    assert group.identity() is None


def test_a_group_that_is_being_made_in_another_world_of_numbers_is_left_alone():
    """A new cgroup exists briefly before it is marked; one that stays unmarked has no owner."""
    for marks, is_left in ((["", f"{process_namespace() + 1} 5"], False), (["", ""], True)):
        group = SimpleNamespace(mark=iter(marks).__next__)
        assert application_rules._left_behind(4194305, group) is is_left


def test_the_same_number_in_a_container_that_shares_the_network_is_refused(place):
    place.apply()
    foreign = rules(place).replace(f" {process_namespace()}", " 1234")
    restore = ["iptables-restore"], foreign.split("# Generated by ip6tables")[0]
    place.enforcer.clear()
    group_of(place.app.pid).mkdir()
    place.lab.inside.run(restore[0], input=restore[1])
    with pytest.raises(RequestRefused) as caught:
        place.enforcer_for(place.app).probe()
    assert caught.value.reason == "busy"
    assert "container" in caught.value.error
    assert "DEMOCRAI" in rules(place)


def test_two_sweeps_at_once_do_not_disturb_each_other(place):
    for _ in range(3):
        app = place.application()
        place.enforcer_for(app).apply(policy(), app.pid)
        app.kill()
    first, second = os.fork(), None
    if first == 0:
        try:
            problems = place.enforcer.sweep()["problems"]
        except BaseException:
            os._exit(9)
        os._exit(1 if problems else 0)
    swept = place.enforcer.sweep()
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
    assert swept["problems"] == []
    assert "DEMOCRAI" not in rules(place)
