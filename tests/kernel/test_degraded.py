"""Machines that lack a control: it is reported with its fix, and ``require`` refuses to start there."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from democrai_sandbox.kernel import selftest_operations as acts
from tests.kernel.appcase import (
    EVERYTHING,
    NOBODY,
    SOURCE,
    application,
    interpreter_for_all,
    lacking,
    needs_other_user,
    needs_root,
    short_folder,
)
from tests.kernel.netlab import Lab, cgroup_mount, needs_netlab, shared_lab

PROCESS_ONLY = {"seccomp": {"enabled": True}, "landlock": {"enabled": True}}
FORCED = "DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI"
LOOK = """
kernel = make(SECTION)
kernel.prepare()
status = kernel.confine()
tell(states=states(status), reasons={each.name: each.reason for each in status.controls})
tell(fixes={each.name: each.fix for each in status.controls})
tell(unenforced=dict(status["spawn_server"].details).get("unenforced"))
tell(attempts=[attempt.as_dict() for attempt in status.attempts], reason=dict(status["egress"].details).get("reason"))
kernel.stop()
"""
REFUSED = """
def start():
    kernel = make(SECTION)
    kernel.prepare()
    kernel.confine()
tell(error=failure(start), children=Path(f"/proc/self/task/{os.getpid()}/children").read_text())
"""


def look(folder, section, **options):
    return application(folder, f"SECTION = {section!r}\n{LOOK}", **options)


def refused(folder, section, **options):
    """Return the refusal with ``require``; nothing keeps running."""
    told = application(folder, f"SECTION = { {**section, 'require': True}!r}\n{REFUSED}", **options)
    assert told["error"]["type"] == "KernelRefused", told
    assert told["children"] == ""
    return told["error"]


def mounted(*commands):
    """Return a command that runs another one with separate mounts, and a separate network."""
    script = " && ".join([*commands, 'exec "$@"'])
    return ["unshare", "-m", "-n", "sh", "-c", script, "sh"]


@contextmanager
def without_programs(*patterns):
    """Yield a command under which a program does not find those in the system's folders."""
    sbin = Path(shutil.which("iptables")).parent
    with tempfile.TemporaryDirectory() as folder:
        for path in sbin.iterdir():
            is_kept = path.name.startswith(("iptables", "ip6tables", "xtables"))
            if is_kept and not any(path.name.startswith(pattern) for pattern in patterns):
                shutil.copy2(path, folder, follow_symlinks=False)
        yield mounted(f"mount --bind {folder} {sbin}")


@pytest.mark.parametrize("abi", range(1, 7))
def test_an_older_landlock_says_what_it_does_not_stop(tmp_path, abi):
    """Each ABI is used as far as possible: below 6 the controls are partial, and the reason names the missing part."""
    told = look(tmp_path, PROCESS_ONLY, environment={FORCED: str(abi)})
    expected = "active" if abi >= 6 else "partial"
    assert told["states"]["landlock"] == told["states"]["spawn_server"] == expected, told["reasons"]
    assert told["states"]["seccomp"] == "active"
    assert any(each.startswith("signals") for each in told["unenforced"]) is (abi < 6)
    assert bool(told["fixes"]["landlock"]) is (abi < 6)
    # Supported restrictions hold: files in any case; a child without network rules gets no internet sockets.
    assert all(attempt["ok"] for attempt in told["attempts"])
    child = {attempt["act"]: attempt for attempt in told["attempts"] if attempt["where"] == "child"}
    assert child["tcp v4"]["outcome"] == "stopped by EPERM"


@pytest.mark.parametrize("abi", [0, 1, 5])
def test_an_older_landlock_is_refused_where_it_is_required(tmp_path, abi):
    """``require`` with an incomplete control does not start, and names the needed kernel."""
    error = refused(tmp_path, PROCESS_ONLY, environment={FORCED: str(abi)})
    partial = {"landlock": "partial", "spawn_server": "partial"}
    assert lacking(error) == (partial if abi else {"landlock": "unsupported"})  # then nothing is tested
    assert error["fix"].startswith("landlock: ")


def test_without_landlock_children_run_unconfined_in_files_and_that_is_told(tmp_path):
    """The start continues as documented; the status and the attempts show what is not stopped."""
    told = look(tmp_path, PROCESS_ONLY, environment={FORCED: "0"})
    assert told["states"]["landlock"] == "unsupported" and told["fixes"]["landlock"]
    assert told["states"]["spawn_server"] == "partial" and told["unenforced"][0].startswith("files")
    child = {attempt["act"]: attempt for attempt in told["attempts"] if attempt["where"] == "child"}
    assert (child["read"]["expected"], child["read"]["outcome"], child["read"]["ok"]) == ("open", acts.THROUGH, True)
    assert child["ptrace"]["outcome"] == "killed by SIGSYS"
    assert child["tcp v4"]["outcome"] == "stopped by EPERM"


@pytest.mark.parametrize("value", ["seven", "-1", "7.0"])
def test_a_forced_abi_that_is_no_number_is_an_error(tmp_path, value):
    """An invalid value of the variable is reported."""
    told = application(tmp_path, "tell(error=failure(make, {}))", environment={FORCED: value})
    assert told["error"]["type"] == "KernelLayerError"
    assert FORCED in told["error"]["what"] and repr(value) in told["error"]["what"]


@pytest.mark.skipif(shutil.which("setarch") is None, reason="setarch is not installed")
def test_another_architecture_has_no_filter_and_says_so(tmp_path):
    """On another architecture the filter is unsupported; Landlock still works."""
    told = look(tmp_path, PROCESS_ONLY, within=["setarch", "linux32"])
    assert told["states"]["seccomp"] == "unsupported" and "x86_64 or aarch64" in told["fixes"]["seccomp"]
    assert told["states"]["landlock"] == "active"
    assert told["states"]["spawn_server"] == "partial" and len(told["unenforced"]) == 1
    child = {attempt["act"]: attempt["outcome"] for attempt in told["attempts"] if attempt["where"] == "child"}
    assert child["read"] == "stopped by EACCES" and child["setuid"] == acts.THROUGH
    assert lacking(refused(tmp_path, PROCESS_ONLY, within=["setarch", "linux32"]))["seccomp"] == "unsupported"


def test_a_system_without_the_compiled_part_reports_everything_as_unsupported(tmp_path):
    """As on systems other than Linux: nothing is applied or started, and the status reports it."""
    missing = 'import sys; sys.modules["democrai_sandbox.kernel._native"] = None'
    told = look(tmp_path, PROCESS_ONLY, before=missing)
    assert {told["states"][name] for name in ("landlock", "seccomp", "spawn_server")} == {"unsupported"}
    assert "Linux" in told["fixes"]["landlock"]
    error = refused(tmp_path, PROCESS_ONLY, before=missing)
    assert lacking(error) == dict.fromkeys(("landlock", "seccomp", "spawn_server"), "unsupported")


OUTER_FILTER = """
import errno
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.seccomp.filters import NUMBER, Assembler
code = Assembler()
code.load(NUMBER)
for number in (444, 445, 446, {"x86_64": 317, "aarch64": 277}[os.uname().machine]):  # Landlock's calls, and seccomp
    code.if_equal(number, "refused")
code.give(0x7FFF0000)
code.label("refused")
code.give(0x00050000 | errno.EPERM)
assert _native.seccomp_install(code.assemble(), 0) == 0
"""


def test_a_container_that_refuses_the_calls_is_found_out(tmp_path):
    """A filter around the application blocks Landlock and seccomp: both are unsupported, with the place to change it.

    Children cannot be confined there, so none is started.
    """
    told = application(tmp_path, f"{OUTER_FILTER}\nSECTION = {PROCESS_ONLY!r}\n{LOOK}")
    assert told["states"]["landlock"] == told["states"]["seccomp"] == "unsupported"
    assert "container" in told["fixes"]["landlock"] and "container" in told["fixes"]["seccomp"]
    assert told["states"]["spawn_server"] == "partial"
    child = [attempt for attempt in told["attempts"] if attempt["where"] == "child"]
    assert [attempt["ok"] for attempt in child] == [False] and child[0]["outcome"].startswith(acts.UNTRIED)


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [
        ("", {FORCED: "0"}, ("partial", 0, ["files"])),
        ("seccomp", {}, ("partial", 0, ["system calls and sockets"])),
        ("both", {}, ("unsupported", 1, ["files, network and system calls"])),
    ],
    ids=["no Landlock", "no seccomp", "neither"],
)
def test_by_default_the_application_starts_and_confines_what_it_can(tmp_path, before, environment, expected):
    """Also with ``require``, which is about controls that the configuration turns on; the rest is reported."""
    outer = {"": "", "both": OUTER_FILTER, "seccomp": OUTER_FILTER.replace("444, 445, 446, ", "*(), ")}[before]
    told = application(
        tmp_path,
        f"""{outer}
from democrai_sandbox.kernel import os_settings
from democrai_sandbox.kernel.application import unenforced_here
kernel = make({{"require": True}})
kernel.prepare()
status = kernel.confine()["spawn_server"]
tell(state=status.state, fix=status.fix, unconfined=kernel.unconfined, spawn=kernel.spawn is None)
tell(here=unenforced_here(os_settings({{}})), attempts=[one.as_dict() for one in kernel.status().attempts])
kernel.stop()
""",
        environment=environment,
    )
    state, is_missing, lacking = expected
    assert told["state"] == state and told["fix"]
    assert told["spawn"] is bool(told["unconfined"]) is bool(is_missing)
    assert [text.partition(":")[0] for text in told["here"]] == lacking
    assert all(attempt["ok"] for attempt in told["attempts"])


@needs_netlab
@pytest.mark.parametrize(("absent", "word"), [("ip", "no_iptables"), ("ip6tables", "no_ip6tables")])
def test_without_the_packet_filters_programs_the_egress_is_unsupported(absent, word):
    """Without iptables, or ip6tables with IPv6 in the kernel: named, with the fix; the rest is active."""
    with short_folder() as here, without_programs(absent) as within:
        told = look(here, EVERYTHING, within=within)
        assert told["states"]["egress"] == told["states"]["helper"] == "unsupported"
        assert told["reason"] == word and "iptables" in told["fixes"]["egress"]
        assert {told["states"][name] for name in ("landlock", "seccomp", "spawn_server")} == {"active"}
        assert lacking(refused(here, EVERYTHING, within=within))["egress"] == "unsupported"


@needs_netlab
@pytest.mark.parametrize(
    ("mount", "word"),
    [("umount -l {root}", "no_cgroup2"), ("mount -o remount,bind,ro {root}", "cgroup_read_only")],
)
def test_without_a_cgroup_tree_to_write_the_egress_is_unsupported(mount, word):
    """Without cgroup v2, or with a read-only one: named, with the fix."""
    within = mounted(mount.format(root=cgroup_mount()))
    with short_folder() as here:
        told = look(here, EVERYTHING, within=within)
        assert told["states"]["egress"] == told["states"]["helper"] == "unsupported", told
        assert told["reason"] == word and told["fixes"]["egress"]
        assert lacking(refused(here, EVERYTHING, within=within))["egress"] == "unsupported"


@needs_other_user
def test_a_user_without_a_way_up_is_told_what_an_administrator_installs():
    """Without root and a sudo rule the helper is unsupported, and the fix is the command that prints the rule."""
    with short_folder() as here:
        told = look(here, EVERYTHING, user=NOBODY)
        assert told["states"]["egress"] == told["states"]["helper"] == "unsupported"
        assert told["reason"] == "no_way_up"
        assert "helper sudoers --user nobody" in told["fixes"]["helper"]
        assert {told["states"][name] for name in ("landlock", "seccomp", "spawn_server")} == {"active"}
        assert "sudoers" in refused(here, EVERYTHING, user=NOBODY)["fix"]


@needs_netlab
def test_without_ipv6_there_is_nothing_to_hold_and_everything_is_active():
    """A machine without IPv6 is not degraded; its attempts are marked as not applicable."""
    with short_folder() as here, Lab(ipv6=False) as lab:
        told = look(here, {**EVERYTHING, "require": True}, space=lab.inside)
    assert set(told["states"].values()) == {"active"}
    met = {
        attempt["outcome"]
        for attempt in told["attempts"]
        if attempt["act"] == "tcp v6" and attempt["where"] == "process"
    }
    assert met and all(outcome.startswith(acts.UNTRIED) for outcome in met)


@needs_netlab
def test_an_unresolvable_host_does_not_keep_the_application_from_starting():
    """It is not reachable, and is named; everything else holds, also with ``require``."""
    with short_folder() as here, shared_lab() as lab:
        told = application(
            here,
            f"""
            with make({ {**EVERYTHING, "require": True}!r}, "no-such-host.invalid:443") as kernel:
                status = kernel.status()
                tell(states=states(status), unresolved=status["egress"].details["unresolved"], fix=status["egress"].fix)
            """,
            space=lab.inside,
        )
    assert set(told["states"].values()) == {"active"}
    assert told["unresolved"] == ["no-such-host.invalid"] and "name" in told["fix"]


def _long(here):
    return {"helper_socket": f"{here}/state/{'x' * 120}.sock"}


def _taken(here):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{here}/taken.sock")
    listener.listen()
    _taken.open.append(listener)
    threading.Thread(target=_hang_up, args=(listener,), daemon=True).start()
    return {"helper_socket": f"{here}/taken.sock"}


def _hang_up(listener):
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def _shared_folder(here):
    (here / "shared").mkdir()
    (here / "shared").chmod(0o777)
    return {"policy_file": f"{here}/shared/allowlist.json"}


def _somebody_elses(here):
    (here / "policy").mkdir(mode=0o755)
    os.chown(here / "policy", NOBODY, NOBODY)
    return {"policy_file": f"{here}/policy/allowlist.json"}


_taken.open = []


@needs_root
@needs_netlab
@pytest.mark.parametrize(
    ("prepared", "named"),
    [(_long, "107"), (_taken, "helper"), (_shared_folder, "shared"), (_somebody_elses, "policy")],
    ids=["socket path too long", "socket taken", "policy folder writable by all", "policy folder of another user"],
)
def test_a_bad_place_is_a_named_error_and_starts_only_where_nothing_is_required(prepared, named):
    """Unusable places are named with their fix; the egress is off, or the start is refused."""
    with short_folder() as here, shared_lab() as lab:
        try:
            section = {**EVERYTHING, **prepared(here)}
            told = look(here, section, space=lab.inside)
            assert told["states"]["egress"] in {"off", "unsupported"}
            assert named in told["reasons"]["egress"] + told["fixes"]["egress"] and told["fixes"]["egress"]
            assert told["states"]["landlock"] == "active"
            assert "egress" in lacking(refused(here, section, space=lab.inside))
        finally:
            while _taken.open:
                _taken.open[-1].shutdown(socket.SHUT_RDWR)
                _taken.open.pop().close()


@needs_netlab
@needs_other_user
@pytest.mark.skipif(shutil.which("sudo") is None, reason="sudo is not installed")
def test_a_user_without_privileges_has_everything_with_the_rule_that_is_printed():
    """With the sudoers rule installed the same user gets every control, also with ``require``."""
    with short_folder() as here, shared_lab() as lab:
        rules = here / "sudoers.d"
        rules.mkdir(mode=0o755)
        here.chmod(0o755)
        printed = lab.inside.run(
            [interpreter_for_all(), "-B", "-m", "democrai_sandbox.cli", "helper", "sudoers", "--user", "nobody"],
            env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
            check=False,
        )
        if printed.returncode:
            pytest.skip("the package lies where others than root can write, so the rule is not to be installed")
        (rules / "democrai").write_text(printed.stdout)
        (rules / "democrai").chmod(0o440)
        server = lab.world.serve("tcp", lab.world.v4)
        told = application(
            here,
            f"""
            kernel = make({ {**EVERYTHING, "require": True}!r}, "{lab.world.v4}:{server.port}")
            kernel.prepare()
            status = kernel.confine()
            tell(states=states(status), way=status["helper"].details["way"], user=os.getuid())
            tell(attempts=[attempt.as_dict() for attempt in status.attempts])
            tell(met=kind_of(lambda: socket.create_connection(("{lab.world.v4}", {server.port}), 10).close()))
            kernel.stop()
            tell(left=[path.name for path in Path(HERE).glob("*/os_sandbox*")])
            """,
            user=NOBODY,
            within=["unshare", "-m", "sh", "-c", f'mount --bind {rules} /etc/sudoers.d && exec "$@"', "sh"],
            space=lab.inside,
        )
        assert "DEMOCRAI" not in lab.inside.rules()
    assert told["user"] == NOBODY and told["way"] == "sudo"
    assert set(told["states"].values()) == {"active"}
    assert all(attempt["ok"] for attempt in told["attempts"])
    assert told["met"] == "nothing" and told["left"] == []
