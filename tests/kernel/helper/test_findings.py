"""Ways around the helper that once succeeded."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper import application_rules, cgroups
from democrai_sandbox.kernel.helper.iptables import Commands
from democrai_sandbox.kernel.helper.policy import PolicyEndpoint
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from tests.kernel.helper.helper_process import Stage, until
from tests.kernel.helper.packet_network import end, field, policy
from tests.kernel.netlab import cgroup_mount, cgroup_of, has_ended, needs_netlab, shared_lab

ROOT = Path(__file__).parents[3]


@pytest.fixture
def place():
    with field() as made:
        yield made


def inside_the_group(place, code, *words):
    """Run code as an unprivileged user in the application's cgroup; return its output."""
    enter = f"""
import os, socket, sys
with open({str(cgroup_mount() / f"democrai_os_sandbox_{place.app.pid}" / "cgroup.procs")!r}, "w") as f:
    f.write("0")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
"""
    done = place.lab.inside.run([sys.executable, "-I", "-S", "-c", enter + code, *map(str, words)])
    return done.stdout.split()


_SPOOFING = """
there, permitted, other, forbidden = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
FREEBIND = 78

def send(source, target):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.IPPROTO_IPV6, FREEBIND, 1)
        s.bind(source)
        try:
            s.sendto(b"x", target)
        except PermissionError:
            return "refused"
        return "sent"

print(send(("::", 0), (there, permitted)), send(("::", 0), (other, forbidden)))
print(send((other, forbidden), (there, permitted)), send((there, permitted), (other, forbidden)))
"""


@needs_netlab
def test_a_datagram_in_anothers_name_does_not_pass_for_a_reply(place):
    """Any user may send IPv6 from a foreign address: two such datagrams look like a request and its answer."""
    world = place.lab.world
    permitted, forbidden = world.serve("udp", world.v6), world.serve("udp", world.more_v6[0])
    place.apply(end(permitted, "udp"))
    found = inside_the_group(place, _SPOOFING, permitted.address, permitted.port, forbidden.address, forbidden.port)
    assert found == ["sent", "refused", "refused", "refused"]


@needs_netlab
def test_what_is_sent_in_anothers_name_is_not_quoted_to_that_other():
    """The ICMP error of a rejection goes to the claimed sender, and contains the start of the packet."""
    with field(own=True) as place:  # for rules on the other side
        world = place.lab.world
        count = ["ip6tables", "-t", "raw", "-A", "PREROUTING", "-p", "ipv6-icmp"]
        world.run([*count, "-s", "fd77::1"])
        world.run([*count, "--icmpv6-type", "destination-unreachable"])
        place.apply()
        found = inside_the_group(place, _SPOOFING, "fd77::9", 7000, world.v6, 7001)
        assert found == ["refused"] * 4
        listed = world.run(["ip6tables", "-t", "raw", "-S", "PREROUTING", "-v"]).stdout
        assert "--icmpv6-type 1 -c 0 0" in listed


@needs_netlab
def test_a_process_in_another_network_is_refused_and_not_believed_to_be_held(place):
    """The rules apply in the helper's network namespace only."""
    stranger = place.lab.world.agent()
    place.lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{stranger.pid}")
    enforcer = place.enforcer_for(stranger)
    for act in (enforcer.probe, lambda: enforcer.apply(policy(), stranger.pid)):
        with pytest.raises(RequestRefused) as refused:
            act()
        assert refused.value.reason == "other_network"
    place.apply()
    with pytest.raises(RequestRefused) as refused:
        place.enforcer.join(stranger.pid)
    assert refused.value.reason == "other_network"


@needs_netlab
@pytest.mark.parametrize("known", [True, False], ids=["a set that is known", "a new set"])
def test_removed_jumps_are_noticed_when_only_a_set_changes(place, known):
    t4, t6 = place.serve("tcp")
    place.apply(end(t6))
    os.close(place.enforcer.child([PolicyEndpoint("name.example", 443, "tcp", "", ("192.0.2.1",))])[1])
    place.lab.inside.run(["iptables", "-F", "OUTPUT"])
    assert place.app.tcp(t4.address, t4.port) == "ok"
    told = PolicyEndpoint("name.example" if known else "other.example", 443, "tcp", "", ("192.0.2.2",))
    os.close(place.enforcer.child([told])[1])
    rules = place.lab.inside.rules()
    assert rules.count("-A OUTPUT ") == rules.count("\n:DEMOCRAI_OS_") == (2 if known else 3)
    assert place.app.tcp(t4.address, t4.port) == "ECONNREFUSED"


def without_descriptors(monkeypatch):
    """Make the files for killing and reading a cgroup unusable."""

    def instead_of(real):
        def opened(path, *args, **options):
            if str(path).endswith(("cgroup.kill", "cgroup.events")):
                raise OSError(errno.EMFILE, "Too many open files")
            return real(path, *args, **options)

        return opened

    monkeypatch.setattr(os, "open", instead_of(os.open))
    monkeypatch.setattr(Path, "open", instead_of(Path.open))


@needs_netlab
@pytest.mark.parametrize("act", ["remove", "clear"])
def test_rules_stay_while_members_cannot_be_ended(place, monkeypatch, act):
    """Without free descriptors, processes that were not killed must keep their rules."""
    (t4, _) = place.serve("tcp")
    place.apply(end(t4))
    answer, descriptor = place.enforcer.child([])
    child = place.lab.inside.agent()
    assert child.join(descriptor) == "ok"
    os.close(descriptor)
    with monkeypatch.context() as patch:
        without_descriptors(patch)
        assert not cgroups.Cgroup(Path(answer["cgroup"]), "").kill()
        with pytest.raises(RequestRefused):
            getattr(place.enforcer, act)()
    assert child.tcp(t4.address, t4.port) == "ECONNREFUSED"
    getattr(place.enforcer, act)()
    assert has_ended(child.pid)


@needs_netlab
def test_a_sweep_leaves_the_rules_of_what_it_could_not_end(place, monkeypatch):
    (t4, _) = place.serve("tcp")
    place.apply()
    left = place.lab.inside.agent()
    place.enforcer.join(left.pid)
    # Dead only for this test: the helper of a parallel test would remove it earlier.
    monkeypatch.setattr(application_rules, "_left_behind", lambda pid, _: pid == place.app.pid)
    monkeypatch.setattr(application_rules, "_is_dead", lambda pid, _: pid == place.app.pid)
    with place.lab.inside.entered():
        with monkeypatch.context() as patch:
            without_descriptors(patch)
            swept = application_rules.sweep(Commands())
        assert str(place.app.pid) in " ".join(swept["problems"])
        assert left.tcp(t4.address, t4.port) == "ECONNREFUSED"
        assert place.app.pid in application_rules.sweep(Commands())["cgroups"]
    assert has_ended(left.pid)


@needs_netlab
def test_a_process_that_is_hidden_is_not_taken_for_dead(place):
    """Without CAP_SYS_PTRACE and with hidepid, every application of another user looked dead."""
    other = place.application("nobody")
    code = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.helper.application_rules import lives
from democrai_sandbox.kernel.helper.iptables import Owner
subprocess.run(["mount", "-t", "proc", "-o", "hidepid=4", "proc", "/proc"], check=True)
_native.drop_capabilities((1 << 41) - 1 & ~(1 << 19))
pid, start_time = map(int, sys.argv[2:])
print(os.path.exists(f"/proc/{pid}"), lives(Owner(pid, start_time, 0)), lives(Owner(4194303, 1, 0)))
"""
    words = [sys.executable, "-c", code, str(ROOT / "src"), str(other.pid), str(other.start_time)]
    done = subprocess.run(["unshare", "-m", *words], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


@needs_netlab
@pytest.mark.parametrize("damage", [["iptables", "-F"], ["nft", "flush", "ruleset"]], ids=" ".join)
def test_rules_that_are_flushed_come_back_without_a_refresh(damage):
    """After a firewall reload the application was unrestricted until the next refresh, which may be disabled."""
    if shutil.which(damage[0]) is None:
        pytest.skip(f"{damage[0]} is not installed")
    with shared_lab() as lab, Stage("nobody") as stage:
        with lab.inside.entered():
            stage.application = stage.another()
            helper = stage.helper(real=True)
        stage.write_policy(("192.0.2.1", 443))
        assert stage.ask("apply")["ok"]
        for number in (1, 2):
            before = len(helper.lines)
            lab.inside.run(damage)
            until(lambda: stage.ask("status")["in_force"], what=f"the rules in force again, for the time {number}")
            until(lambda n=before: len(helper.lines) > n, what="a line about it")


@needs_netlab
def test_a_full_house_does_not_keep_it_from_cleaning_up():
    """Idle connections used all descriptors; the socket and the policy file stayed."""
    with shared_lab() as lab, Stage("nobody") as stage:
        with lab.inside.entered():
            stage.application = stage.another()
            helper = stage.helper(real=True, front=("prlimit", "--nofile=1024:1024"))
        stage.write_policy()
        made = stage.application.run(f"""
            kept = [connect({str(stage.socket)!r}) for _ in range(600)]
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            result = len(kept)
        """)
        assert made == 600
        until(lambda: len(os.listdir(f"/proc/{helper.pid}/fd")) > 500, what="a full house")
        assert stage.application.run("result = answer_of(kept[-1])")["reason"] == "busy"
        before, pid = len(helper.lines), stage.application.pid
        os.kill(pid, signal.SIGKILL)
        assert helper.ended() == 0, helper.lines
        # The only message is that the process has ended: nothing failed, and nothing stays.
        assert all(f" {pid} " in line for line in helper.lines[before:]), helper.lines[-6:]
        assert not stage.socket.exists() and not stage.policy.exists()


def test_a_reader_that_does_not_read_does_not_hold_the_helper():
    """A full pipe on standard error, kept open by the starting process, would have blocked the helper forever."""
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.kernel.helper.main import HelperLog
reading, writing = os.pipe()
os.set_blocking(writing, False)
try:
    while True:
        os.write(writing, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(writing, True)
os.dup2(writing, 2)
HelperLog().say("y" * 100_000)
os.read(reading, 8192)
HelperLog().say("z" * 100_000)
print("went on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "src")], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout == "went on\n"


@needs_netlab
def test_the_holder_of_a_childs_descriptor_moves_nobody_but_itself():
    """The cgroup's file, opened by root, moved any process of the machine, which was then killed with the cgroup."""
    with shared_lab() as lab, Stage("nobody") as stage:
        lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{stage.application.pid}")
        with lab.inside.entered():
            stage.application = stage.another()
            lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{stage.application.pid}")
            stage.helper(real=True)
        stage.write_policy(("192.0.2.1", 443))
        assert stage.ask("apply")["ok"]
        with subprocess.Popen(["sleep", "60"]) as victim:
            try:
                before = cgroup_of(victim.pid)
                moved = stage.application.run(f"""
                    path = {str(stage.socket)!r}
                    answer, (descriptor,) = ask_with_descriptor(path, "child", endpoints=[])
                    def act():
                        os.write(descriptor, b"{victim.pid}")
                        return [os.read(descriptor, 1).decode(), open("/proc/self/cgroup").read()]
                    result = [answer["child"], in_child(act)]
                """)
                assert moved[1][0] == "1" and f"child_{moved[0]}" in moved[1][1]
                assert stage.ask("release", child=moved[0])["ok"]
                assert cgroup_of(victim.pid) == before
                assert victim.poll() is None
            finally:
                victim.kill()


@needs_netlab
def test_a_confined_child_does_not_enter_another_group():
    with shared_lab() as lab, Stage("nobody") as stage:
        with lab.inside.entered():
            stage.application = stage.another()
            lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{stage.application.pid}")
            stage.helper(real=True)
        stage.write_policy(("192.0.2.1", 443))
        assert stage.ask("apply")["ok"]
        found = stage.application.run(f"""
            path = {str(stage.socket)!r}
            narrow = ask_with_descriptor(path, "child", endpoints=[])[1][0]
            wide = ask_with_descriptor(path, "child", endpoints=[{{"host": "192.0.2.1", "port": 443}}])[1][0]
            def act():
                answers = []
                for each in (narrow, wide):
                    os.write(each, b"0")
                    answers.append(os.read(each, 1).decode())
                return answers
            result = in_child(act)
        """)
        assert found == ["1", "0"]
