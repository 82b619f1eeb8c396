"""The real helper, started like the application does, with the real packet filter, in a separate network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from democrai_sandbox.kernel.helper.install_files import ServicePaths, systemd_unit
from tests.kernel.helper.helper_process import SECONDS, Stage, until
from tests.kernel.netlab import cgroup_mount, cgroup_of, needs_netlab, shared_lab

pytestmark = needs_netlab
CONNECT = """
    def reach(address, port):
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.settimeout(5)
        try:
            made.connect((address, port))
            return "ok"
        except OSError as error:
            return errno.errorcode.get(error.errno, "timeout")
        finally:
            made.close()
    result = None
"""


@pytest.fixture
def lab():
    with shared_lab() as found:
        yield found


@pytest.fixture
def stage(lab):
    with lab.inside.entered(), Stage("nobody") as found:
        lab.will_remove(cgroup_mount() / f"democrai_os_sandbox_{found.application.pid}")
        found.application.run(CONNECT)
        yield found


def _reach(stage, server):
    return stage.application.run(f"result = reach({server.address!r}, {server.port})")


def _traces(lab, stage):
    text = lab.inside.rules("ipv4") + lab.inside.rules("ipv6")
    return [line for line in text.splitlines() if f"DEMOCRAI_OS_{stage.application.pid}_" in line]


def test_from_the_first_policy_to_the_applications_end(lab, stage):
    """Permitted endpoints are reachable, others are not; a child joins by its descriptor; nothing is left."""
    permitted, other = lab.world.serve("tcp", lab.world.v4), lab.world.serve("tcp", lab.world.v6)
    helper = stage.helper(real=True)
    assert [_reach(stage, each) for each in (permitted, other)] == ["ok", "ok"]
    stage.write_policy((permitted.address, permitted.port))
    applied = stage.ask("apply")
    assert applied["ok"] and applied["endpoints"] == 1 and applied["families"] == ["ipv4", "ipv6"], applied
    group = cgroup_of(stage.application.pid)
    assert group == f"/democrai_os_sandbox_{stage.application.pid}"
    assert [_reach(stage, each) for each in (permitted, other)] == ["ok", "ECONNREFUSED"]
    stage.write_policy((other.address, other.port))
    assert stage.ask("apply")["ok"]
    assert [_reach(stage, each) for each in (permitted, other)] == ["ECONNREFUSED", "ok"]
    inside = stage.application.run(f"""
        path = {str(stage.socket)!r}
        answer, descriptors = ask_with_descriptor(path, "child", endpoints=[])
        def act():
            os.write(descriptors[0], b"0")
            assert os.read(descriptors[0], 1) == b"1"
            return [reach({other.address!r}, {other.port}), ask(path, "child", endpoints=[])["reason"], answer]
        result = in_child(act)
    """)
    assert inside[:2] == ["ECONNREFUSED", "confined"]
    assert stage.ask("release", child=inside[2]["child"])["ok"]
    status = stage.ask("status")
    assert status["ok"] and status["populated"] and status["digest"], status
    stage.application.kill()
    assert helper.ended() == 0, helper.lines
    assert not _traces(lab, stage) and not stage.socket.exists() and not stage.policy.exists()
    assert not (cgroup_mount() / group[1:]).exists()


def test_killed_and_restarted_it_goes_on_and_clear_sets_the_application_free(lab, stage):
    """Without a helper the rules hold; the next one takes over and can remove them."""
    permitted, other = lab.world.serve("tcp", lab.world.v4), lab.world.serve("tcp", lab.world.v4)
    first = stage.helper(real=True)
    stage.write_policy((permitted.address, permitted.port))
    assert stage.ask("apply")["ok"]
    os.kill(first.pid, signal.SIGKILL)
    first.ended()
    assert [_reach(stage, each) for each in (permitted, other)] == ["ok", "ECONNREFUSED"]
    second = stage.helper(real=True)
    until(lambda: stage.ask("status")["digest"], what="the policy in force again")
    assert [_reach(stage, each) for each in (permitted, other)] == ["ok", "ECONNREFUSED"]
    assert stage.ask("clear", exit=True)["exiting"] is True
    assert second.ended() == 0, second.lines
    assert [_reach(stage, each) for each in (permitted, other)] == ["ok", "ok"]
    assert not _traces(lab, stage)


def test_a_helper_that_is_born_inside_the_applications_cgroup_leaves_it_first(lab, stage):
    """Restarted by a confined process, it does not kill itself when it kills the remaining processes."""
    first = stage.helper(real=True)
    stage.write_policy((lab.world.v4, 9))
    group = stage.ask("apply")["cgroup"]
    first.kill()
    into = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    second = stage.helper(real=True, front=into)
    assert cgroup_of(second.pid) == "/" and stage.ask("ping")["ok"]
    stage.application.kill()
    assert second.ended() == 0, second.lines
    assert not _traces(lab, stage) and not os.path.exists(group) and not stage.policy.exists()


def test_without_privileges_it_says_so_and_how_to_get_them(stage):
    """Started by an unprivileged user, it refuses with its reason, and creates nothing."""
    code = (
        "import os, shutil, sys\n"  # everything needed later: another user may not be able to read this library
        "from democrai_sandbox.kernel.helper import enforcer, main\n"
        f"os.setgroups([]); os.setresgid(*[{stage.gid}] * 3); os.setresuid(*[{stage.uid}] * 3)\n"
        "os._exit(main.run(sys.argv[1:], {}, enforcer.Enforcer))"
    )
    done = subprocess.run([sys.executable, "-c", code, *stage.words()], capture_output=True, text=True, timeout=SECONDS)
    refusal = json.loads(done.stderr.splitlines()[-1])
    assert done.returncode == 1 and refusal["reason"] == "not_privileged" and "sudo" in refusal["fix"]
    assert not stage.socket.exists()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_the_capabilities_of_the_printed_unit_suffice(lab, stage):
    """With the capabilities of the systemd unit, everything from the first policy to the removal works."""
    text = systemd_unit(("/x",), ServicePaths("/s", "/d"), seconds=1)
    line = next(line for line in text.splitlines() if line.startswith("CapabilityBoundingSet="))
    names = [name.lower().removeprefix("cap_") for name in line.partition("=")[2].split()]
    bounds = ",".join(["-all", *(f"+{name}" for name in names)])
    server = lab.world.serve("tcp", lab.world.v4)
    helper = stage.helper(real=True, front=["setpriv", "--bounding-set", bounds, "--no-new-privs"])
    stage.write_policy((server.address, server.port))
    applied = stage.ask("apply")
    assert applied["ok"] and _reach(stage, server) == "ok", applied
    stage.application.kill()
    assert helper.ended() == 0 and not _traces(lab, stage) and not stage.policy.exists(), helper.lines
