"""The enforcer with a real kernel: permitted packets pass, others do not, and failures leave everything closed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper import enforcer as enforcing
from democrai_sandbox.kernel.helper.iptables import Allow, Commands
from democrai_sandbox.kernel.helper.policy import PolicyEndpoint, Resolver, name_servers
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.packet_network import REFUSED, end, field, policy
from tests.kernel.netlab import cgroup_mount, cgroup_of, has_ended, needs_netlab, wait_until
from tests.services.golden import sentence

pytestmark = [needs_netlab, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def place():
    with field() as made:
        yield made


def tries(app, *servers):
    """Try two TCP servers and then two UDP servers, in the order of ``serve``."""
    kinds = ("tcp", "tcp", "udp", "udp")
    return [getattr(app, kind)(server.address, server.port) for kind, server in zip(kinds, servers, strict=False)]


def test_only_what_is_permitted_passes_by_both_versions_and_both_protocols(place):
    t4, t6, u4, u6 = servers = place.serve("tcp", "udp")
    assert tries(place.app, *servers) == ["ok"] * 4
    place.apply()
    assert tries(place.app, *servers) == ["ECONNREFUSED", "ECONNREFUSED", "EPERM", "EPERM"]
    assert not any(server.accepted[1:] for server in servers)
    place.apply(end(t4), end(u6, "udp"))
    assert tries(place.app, *servers) == ["ok", "ECONNREFUSED", "EPERM", "ok"]
    place.apply(end(t6), end(u4, "udp"))
    assert tries(place.app, *servers) == ["ECONNREFUSED", "ok", "ok", "EPERM"]


def test_a_port_is_permitted_at_its_own_address_only(place):
    world = place.lab.world
    here = world.serve("tcp", world.v4)
    there = world.serve("tcp", world.more_v4[0], here.port)
    place.apply(end(here))
    assert place.app.tcp(here.address, here.port) == "ok"
    assert place.app.tcp(there.address, there.port) == "ECONNREFUSED"
    assert not there.accepted


def test_an_address_of_ipv4_in_the_clothes_of_ipv6_is_the_same_address(place):
    world = place.lab.world
    one, two = world.serve("tcp", world.v4), world.serve("tcp", world.v4)
    place.apply(end(one))
    assert place.app.tcp(f"::ffff:{one.address}", one.port) == "ok"
    assert place.app.tcp(f"::ffff:{two.address}", two.port) == "ECONNREFUSED"
    assert not two.accepted


def test_a_policy_of_too_many_destinations_is_refused_and_the_old_one_stays(place, monkeypatch):
    (t4, _) = place.serve("tcp")
    place.apply(end(t4))
    monkeypatch.setattr(enforcing, "MOST_DESTINATIONS", 2)
    with pytest.raises(RequestRefused) as caught:
        place.apply(*(PolicyEndpoint("192.0.2.1", port) for port in (1, 2, 3)))
    assert caught.value.reason == "policy_too_large"
    assert place.app.tcp(t4.address, t4.port) == "ok"
    status = place.enforcer.status()
    assert status["in_force"]
    assert status["addresses"] == status["endpoints"] == 1


def test_an_application_and_its_children_take_only_so_much_of_the_tables(place, monkeypatch):
    """Otherwise many small lists of children would exceed the limit of one list."""
    (t4, _) = place.serve("tcp")
    place.apply(end(t4))
    monkeypatch.setattr(enforcing, "MOST_IN_ALL", 100)
    with pytest.raises(RequestRefused) as caught:
        place.enforcer.child([PolicyEndpoint("192.0.2.1", port) for port in range(1, 101)])
    assert caught.value.reason == "policy_too_large"
    assert place.app.tcp(t4.address, t4.port) == "ok"
    assert place.enforcer.status()["in_force"]
    assert place.enforcer.status()["sets"] == 0


def test_a_name_server_that_hangs_does_not_keep_a_decision_from_coming_into_force(place):
    (t4, _) = place.serve("tcp")
    go_on = threading.Event()
    enforcer = place.enforcer_for(place.app, resolver=Resolver(lambda name: go_on.wait(60) and ()))
    try:
        enforcer.apply(policy(("slow.example", 1)), place.app.pid)
        answer = enforcer.apply(policy(("slow.example", 1), end(t4)), place.app.pid)
        taken = [answer["seconds"]]
        while min(taken) > 1.4 and len(taken) < 5:  # waiting for that name server would take 1.5 s each time
            more = policy(("slow.example", 1), end(t4), ("192.0.2.1", len(taken)))
            taken.append(enforcer.apply(more, place.app.pid)["seconds"])
    finally:
        go_on.set()
    assert answer["unresolved"] == ["slow.example"]
    assert min(taken) < 1.4, taken
    assert place.app.tcp(t4.address, t4.port) == "ok"


def test_a_refusal_is_told_at_once(place):
    (t4, t6) = place.serve("tcp")
    place.apply()
    # A silent drop, or an ICMPv6 error, would cause a timeout.
    assert place.app.tcp(t4.address, t4.port, timeout=0.9) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port, timeout=0.9) == "ECONNREFUSED"


def test_other_processes_are_left_alone(place):
    servers = place.serve("tcp", "udp")
    place.apply()
    assert tries(place.lab.inside.agent(), *servers) == ["ok"] * 4


def test_what_the_application_starts_is_confined_like_itself(place):
    place.apply()
    pid = place.app.fork()
    assert cgroup_of(pid) == cgroup_of(place.app.pid) == f"/democrai_os_sandbox_{place.app.pid}"


def test_a_revoked_connection_ends_with_its_next_packet(place):
    t4, t6 = place.serve("tcp")
    place.apply(end(t4), end(t6))
    kept = [place.app.keep(each.address, each.port) for each in (t4, t6)]
    assert [place.app.send(number) for number in kept] == ["ok", "ok"]
    place.apply(end(t6))
    assert place.app.send(kept[0]) == "ECONNRESET"
    assert place.app.send(kept[1]) == "ok"


def test_replies_to_who_connects_to_the_application_pass(place):
    place.apply()
    for address in (place.lab.inside.v4, place.lab.inside.v6):
        port = place.app.listen(address)
        assert place.lab.world.agent().tcp(address, port) == "ok"


def test_loopback_is_open_by_port_and_not_as_a_whole(place):
    inside = place.lab.inside
    database = inside.serve("tcp", "127.0.0.1")
    cache4 = inside.serve("tcp", "127.0.0.1")
    cache6 = inside.serve("tcp", "::1", cache4.port)
    place.apply(("localhost", cache4.port))
    assert place.app.tcp("127.0.0.1", cache4.port) == "ok"
    assert place.app.tcp("::1", cache6.port) == "ok"
    assert place.app.tcp("127.0.0.1", database.port) == "ECONNREFUSED"
    assert not database.accepted
    # The machine may have other names for itself.
    assert place.app.tcp("127.0.0.2", cache4.port) == "ECONNREFUSED"


def test_the_name_servers_of_the_system_are_open_on_port_53_only(place, tmp_path):
    world = place.lab.world
    file = tmp_path / "resolv.conf"
    file.write_text(f"nameserver {world.v4}\nnameserver {world.v6}\n")
    servers = [world.serve(kind, address, 53) for kind in ("tcp", "udp") for address in (world.v4, world.v6)]
    other = world.serve("udp", world.v4)
    enforcer = place.enforcer_for(place.app, servers=lambda: name_servers(str(file)))
    enforcer.apply(policy(), place.app.pid)
    assert tries(place.app, *servers) == ["ok"] * 4
    assert place.app.udp(other.address, other.port) == "EPERM"


def test_a_name_follows_its_addresses_at_each_refresh(place):
    world = place.lab.world
    server = world.serve("tcp", world.v4)
    moved = world.serve("tcp", world.more_v4[0], server.port)
    now = [1000.0]
    resolver = Resolver(place.look_up, keep_seconds=100, clock=lambda: now[0])
    enforcer = place.enforcer_for(place.app, resolver=resolver)
    place.names["api.example"] = (server.address,)
    enforcer.apply(policy(("api.example", server.port)), place.app.pid)
    assert place.app.tcp(server.address, server.port) == "ok"
    assert place.app.tcp(moved.address, moved.port) == "ECONNREFUSED"
    place.names["api.example"] = (moved.address,)
    now[0] += 101
    assert enforcer.refresh()["changed"]
    assert place.app.tcp(server.address, server.port) == "ECONNREFUSED"
    assert place.app.tcp(moved.address, moved.port) == "ok"


def test_the_answer_tells_what_was_done(place):
    (t4, _) = place.serve("tcp")
    answer = place.apply(end(t4), ("missing.example", 1))
    chain = f"DEMOCRAI_OS_{place.app.pid}_A"
    assert answer["endpoints"] == 2
    assert answer["addresses"] == 1
    assert answer["unresolved"] == ["missing.example"]
    assert answer["chains"] == {"ipv4": chain, "ipv6": chain}
    assert answer["families"] == ["ipv4", "ipv6"]
    assert answer["cgroup"] == str(cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}")
    assert answer["changed"]
    assert 0 < answer["seconds"] < 30
    status = place.enforcer.status()
    assert status["in_force"]
    assert status["populated"]
    assert status["members"] == [place.app.pid]
    assert status["unresolved"] == ["missing.example"]
    assert status["last_apply"]["error"] == ""


def test_a_policy_that_changes_nothing_swaps_nothing(place):
    (t4, _) = place.serve("tcp")
    first = place.apply(end(t4))
    again = place.apply(end(t4))
    assert not again["changed"]
    assert again["chains"] == first["chains"]
    assert not place.enforcer.refresh()["changed"]


def test_chains_alternate_and_only_one_is_left(place):
    (t4, _) = place.serve("tcp")
    for number, part in enumerate("ABAB"):
        place.apply((t4.address, 1000 + number))
        rules = place.lab.inside.rules()
        assert f":DEMOCRAI_OS_{place.app.pid}_{part} " in rules
        assert rules.count("\n:DEMOCRAI_OS_") == 1
        assert rules.count("-A OUTPUT ") == 1


@pytest.mark.parametrize(
    "damage",
    [
        ["-F", "OUTPUT"],
        ["-F"],
        ["-I", "OUTPUT", "-j", "ACCEPT"],
        ["-F", "CHAIN"],
        ["-I", "CHAIN", "-j", "RETURN"],
    ],
    ids=" ".join,
)
def test_rules_that_somebody_has_touched_are_noticed_and_made_again(place, damage):
    t4, t6 = place.serve("tcp")
    place.apply(end(t6))
    chain = f"DEMOCRAI_OS_{place.app.pid}_A"
    place.lab.inside.run(["iptables", *(chain if word == "CHAIN" else word for word in damage)])
    assert place.app.tcp(t4.address, t4.port) == "ok"
    status = place.enforcer.status()
    assert not status["in_force"]
    assert list(status["problems"]) == ["ipv4"]
    assert place.enforcer.refresh()["changed"]
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port) == "ok"
    assert place.enforcer.status()["in_force"]


def test_a_new_policy_repairs_damaged_rules_as_well(place):
    t4, t6 = place.serve("tcp")
    place.apply(end(t4))
    for tool in ("iptables", "ip6tables"):
        place.lab.inside.run([tool, "-F"])
        place.lab.inside.run([tool, "-X"])
    place.apply(end(t6))
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port) == "ok"


def test_rules_of_the_host_stay_and_still_count(place):
    t4, t6 = place.serve("tcp")
    place.lab.inside.run(["iptables", "-A", "OUTPUT", "-d", t4.address, "-p", "tcp", "-j", "REJECT"])
    place.apply(end(t4), end(t6))
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port) == "ok"
    place.enforcer.clear()
    assert f"-A OUTPUT -d {t4.address}/32 -p tcp -j REJECT" in place.lab.inside.rules()


def test_a_group_that_was_removed_and_made_again_gets_its_rules_again(place):
    t4, t6 = place.serve("tcp")
    place.apply(end(t6))
    group = cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}"
    (cgroup_mount() / "cgroup.procs").write_text(str(place.app.pid))
    group.rmdir()
    group.mkdir()
    (group / "cgroup.procs").write_text(str(place.app.pid))
    # The rule is still listed, but matches nothing any more.
    assert f"--path {group.name} " in place.lab.inside.rules()
    assert place.app.tcp(t4.address, t4.port) == "ok"
    sentence("a group that was made anew", place.enforcer.status()["problems"]["ipv4"])
    place.apply(end(t6))
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port) == "ok"


def test_two_applications_side_by_side_have_each_its_own(place):
    t4, t6 = place.serve("tcp")
    second = place.application()
    other = place.enforcer_for(second)
    place.apply(end(t4))
    other.apply(policy(end(t6)), second.pid)
    assert [place.app.tcp(each.address, each.port) for each in (t4, t6)] == ["ok", "ECONNREFUSED"]
    assert [second.tcp(each.address, each.port) for each in (t4, t6)] == ["ECONNREFUSED", "ok"]
    assert place.enforcer.status()["in_force"]
    assert other.status()["in_force"]
    place.enforcer.clear()
    assert [second.tcp(each.address, each.port) for each in (t4, t6)] == ["ECONNREFUSED", "ok"]
    other.clear()
    assert "DEMOCRAI" not in place.lab.inside.rules() + place.lab.inside.rules("ipv6")


def test_a_further_process_joins_and_one_inside_stays_where_it_is(place):
    (t4, _) = place.serve("tcp")
    place.apply()
    server = place.lab.inside.agent()
    place.enforcer.join(server.pid)
    assert server.tcp(t4.address, t4.port) == "ECONNREFUSED"
    answer, descriptor = place.enforcer.child([])
    child = place.lab.inside.agent()
    assert child.join(descriptor) == "ok"
    os.close(descriptor)
    before = cgroup_of(child.pid)
    place.enforcer.join(child.pid)
    place.enforcer.apply(policy(end(t4)), child.pid)
    assert cgroup_of(child.pid) == before
    assert child.tcp(t4.address, t4.port) == "ECONNREFUSED"


def test_nothing_is_done_for_a_process_before_there_are_rules(place):
    for act in (lambda: place.enforcer.join(place.app.pid), lambda: place.enforcer.child([])):
        with pytest.raises(RequestRefused) as caught:
            act()
        assert caught.value.reason == "bad_request"
        assert "apply" in caught.value.fix
    assert cgroup_of(place.app.pid) == cgroup_of(os.getpid())


def test_an_orderly_stop_moves_the_members_back_and_leaves_nothing(place):
    (t4, _) = place.serve("tcp")
    home = place.lab.will_remove(cgroup_mount() / f"democrai_test_home_{place.app.pid}")
    home.mkdir()
    (home / "cgroup.procs").write_text(str(place.app.pid))
    place.apply()
    started = place.app.fork()
    answer, descriptor = place.enforcer.child([end(t4)])
    child = place.lab.inside.agent()
    child.join(descriptor)
    os.close(descriptor)
    place.enforcer.clear()
    assert cgroup_of(place.app.pid) == f"/{home.name}"
    assert cgroup_of(started) == "/"
    # A child must never run without rules: it is killed.
    assert child.process.wait(30) == -signal.SIGKILL
    assert place.app.tcp(t4.address, t4.port) == "ok"
    assert "DEMOCRAI" not in place.lab.inside.rules() + place.lab.inside.rules("ipv6")
    assert not (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}").exists()
    assert not place.enforcer.status()["in_force"]
    place.apply(end(t4))
    assert place.enforcer.status()["in_force"]


def test_when_the_application_is_gone_nothing_is_left(place):
    t4, _ = place.serve("tcp")
    place.apply(end(t4))
    answer, descriptor = place.enforcer.child([])
    os.close(descriptor)
    orphan = place.app.fork()
    place.app.kill()
    place.enforcer.remove()
    wait_until(lambda: has_ended(orphan), "the orphan's end")
    assert "DEMOCRAI" not in place.lab.inside.rules() + place.lab.inside.rules("ipv6")
    assert not (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}").exists()
    place.enforcer.remove()


def test_a_dead_process_is_not_moved_and_the_rules_stand(place):
    second = place.lab.inside.agent()
    second.kill()
    with pytest.raises(RequestRefused) as caught:
        place.enforcer.apply(policy(), second.pid)
    assert caught.value.reason == "gone"
    place.enforcer.join(place.app.pid)


def failing(tmp_path, name, code):
    """Return commands of which one is a script that fails while a file ``fail`` exists."""
    for each in ("iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"):
        real = Commands().find(each)
        script = tmp_path / each
        extra = f"if [ -e {tmp_path}/fail ]; then {code}; fi\n" if each == name else ""
        script.write_text(f'#!/bin/sh\n{extra}exec {real} "$@"\n')
        script.chmod(0o755)
    return Commands(places=(str(tmp_path),))


def test_when_the_second_filter_fails_the_first_is_put_back(place, tmp_path):
    t4, t6 = place.serve("tcp")
    commands = failing(tmp_path, "ip6tables-restore", "echo it is broken >&2; exit 4")
    enforcer = place.enforcer_for(place.app, commands=commands)
    enforcer.apply(policy(end(t4)), place.app.pid)
    (tmp_path / "fail").touch()
    with pytest.raises(RequestRefused) as caught:
        enforcer.apply(policy(end(t6), PolicyEndpoint(place.lab.world.v4, 1)), place.app.pid)
    assert caught.value.reason == "table_failed"
    assert "it is broken" in caught.value.error
    assert place.app.tcp(t4.address, t4.port) == "ok"
    assert place.app.tcp(t6.address, t6.port) == "ECONNREFUSED"
    status = enforcer.status()
    assert "it is broken" in status["last_apply"]["error"]
    assert status["in_force"]
    (tmp_path / "fail").unlink()
    enforcer.apply(policy(end(t6)), place.app.pid)
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"
    assert place.app.tcp(t6.address, t6.port) == "ok"


@pytest.mark.parametrize("name", ["iptables-restore", "ip6tables-restore"])
def test_a_first_policy_that_fails_leaves_nothing_and_moves_nobody(place, tmp_path, name):
    (tmp_path / "fail").touch()
    before = cgroup_of(place.app.pid)
    enforcer = place.enforcer_for(place.app, commands=failing(tmp_path, name, "exit 2"))
    with pytest.raises(RequestRefused) as caught:
        enforcer.apply(policy(), place.app.pid)
    assert caught.value.reason == "table_failed"
    assert cgroup_of(place.app.pid) == before
    assert "DEMOCRAI" not in place.lab.inside.rules() + place.lab.inside.rules("ipv6")
    assert not (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}").exists()


def test_without_iptables_the_probe_refuses(place, tmp_path):
    with pytest.raises(RequestRefused) as caught:
        place.enforcer_for(place.app, commands=Commands(places=(str(tmp_path),))).probe()
    assert caught.value.reason == "no_iptables"


def test_the_probe_leaves_nothing(place):
    assert place.enforcer.probe() == []
    assert not (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}").exists()
    assert "DEMOCRAI" not in place.lab.inside.rules()


def test_with_ipv6_turned_off_and_no_ip6tables_the_rest_works_and_it_is_said(tmp_path):
    with field(ipv6=False) as place:
        for name in ("iptables-save", "iptables-restore"):
            (tmp_path / name).symlink_to(Commands().find(name))
        server = place.lab.world.serve("tcp", place.lab.world.v4)
        enforcer = place.enforcer_for(place.app, commands=Commands(places=(str(tmp_path),)))
        answer = enforcer.apply(policy(), place.app.pid)
        assert answer["families"] == ["ipv4"]
        assert answer["chains"]["ipv6"] is None
        assert "IPv6" in answer["warnings"][0]
        assert place.app.tcp(server.address, server.port) == "ECONNREFUSED"
        # Enabled again, it would be open: the next check refuses and reports it.
        place.lab.inside.run(["sysctl", "-w", "net.ipv6.conf.lo.disable_ipv6=0"])
        with pytest.raises(RequestRefused) as caught:
            enforcer.refresh()
        assert caught.value.reason == "no_ip6tables"


def test_a_socket_from_before_stays_outside_as_the_kernel_has_it(place):
    """The status about sockets older than the cgroup is correct."""
    (t4, _) = place.serve("tcp")
    kept = place.app.keep(t4.address, t4.port)
    place.apply()
    assert place.app.send(kept) == "ok"
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"


def test_the_rules_are_those_of_the_policy_and_nothing_more(place):
    place.apply(
        PolicyEndpoint("192.0.2.1", 443), PolicyEndpoint("192.0.2.1", 443), PolicyEndpoint("2001:db8::1", 53, "udp")
    )
    rules = place.lab.inside.rules()
    assert rules.count(" -j RETURN") == 2
    assert "-d 192.0.2.1/32 -p tcp -m tcp --dport 443 -j RETURN" in rules
    rules = place.lab.inside.rules("ipv6")
    assert rules.count(" -j RETURN") == 2
    assert "-d 2001:db8::1/128 -p udp -m udp --dport 53 -j RETURN" in rules
    assert REFUSED["tcp"] == "ECONNREFUSED"
    assert Allow("tcp", "::1", 1).family == "ipv6"


def older(tmp_path):
    """Return iptables-legacy, if it is installed and this kernel has its tables."""
    for name in ("iptables", "ip6tables"):
        for act in ("save", "restore"):
            found = Commands().find(f"{name}-legacy-{act}")
            if found is None:
                pytest.skip("iptables-legacy is not installed")
            (tmp_path / f"{name}-{act}").symlink_to(found)
    return Commands(places=(str(tmp_path),))


def test_the_older_kind_of_iptables_does_as_well(tmp_path):
    with field(own=True) as place:  # for legacy tables
        apply_with_older_tables(place, tmp_path)


def apply_with_older_tables(place, tmp_path):
    t4, t6, u4, u6 = servers = place.serve("tcp", "udp")
    commands = older(tmp_path)
    if place.lab.inside.run(["iptables-legacy", "-S"], check=False).returncode:
        pytest.skip("this kernel has no tables for iptables-legacy")
    enforcer = place.enforcer_for(place.app, commands=commands)
    enforcer.probe()
    enforcer.sweep()
    enforcer.apply(policy(end(t4), end(u6, "udp")), place.app.pid)
    assert tries(place.app, *servers) == ["ok", "ECONNREFUSED", "EPERM", "ok"]
    enforcer.apply(policy(end(t6), end(u4, "udp")), place.app.pid)
    assert tries(place.app, *servers) == ["ECONNREFUSED", "ok", "ok", "EPERM"]
    assert not enforcer.refresh()["changed"]
    answer, descriptor = enforcer.child([])
    child = place.lab.inside.agent()
    child.join(descriptor)
    os.close(descriptor)
    assert tries(child, *servers) == ["ECONNREFUSED", "ECONNREFUSED", "EPERM", "EPERM"]
    place.lab.inside.run(["iptables-legacy", "-F", "OUTPUT"])
    assert not enforcer.status()["in_force"]
    assert enforcer.refresh()["changed"]
    assert enforcer.status()["in_force"]
    place.app.kill()
    # The helper of another application finds the leftovers.
    second = place.application()
    place.enforcer_for(second, commands=commands).sweep()
    for name in ("iptables-legacy-save", "ip6tables-legacy-save"):
        assert "DEMOCRAI" not in place.lab.inside.run([name]).stdout


def test_a_helper_that_was_born_inside_steps_out_before_it_ends_the_members(place):
    place.apply()
    helper = os.fork()
    if helper == 0:
        try:
            (cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}" / "cgroup.procs").write_text(str(os.getpid()))
            errand = os.fork()
            if errand == 0:
                signal.pause()
            place.enforcer.probe()
            outside = cgroup_of(os.getpid()) == cgroup_of(errand) == "/"
            place.enforcer.remove()
            ended = os.waitpid(errand, os.WNOHANG)[0]
            os.kill(errand, signal.SIGKILL)
            os._exit(0 if outside and not ended else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == 0
    assert place.app.process.wait(30) == -signal.SIGKILL


def test_the_helper_itself_is_not_moved_in(place):
    place.apply()
    with pytest.raises(RequestRefused) as caught:
        place.enforcer.join(os.getpid())
    assert caught.value.reason == "bad_request"
