"""The self-test runs forbidden operations and reports the actual results."""

from __future__ import annotations

import errno
import os
import signal
import socket

from democrai_sandbox.kernel import selftest_operations as acts
from democrai_sandbox.kernel.selftest import (
    _AS_ROOT,
    OPEN,
    SelfTestFixtures,
    judged,
    needless,
    readable_outside,
    writable_outside,
)
from tests.kernel.appcase import EVERYTHING, NOBODY, application, needs_other_user, short_folder
from tests.kernel.netlab import needs_netlab, shared_lab
from tests.services.rows import rows

PROCESS_ONLY = {"seccomp": {"enabled": True}, "landlock": {"enabled": True}}
TELL = "tell(attempts=[attempt.as_dict() for attempt in kernel.status().attempts], states=states(kernel.status()))"


def outcomes(told, where):
    return {
        attempt["act"].partition(":")[0]: attempt["outcome"]
        for attempt in told["attempts"]
        if attempt["where"] == where
    }


def test_what_went_through_is_not_well_unless_it_was_expected():
    """Stopped and killed are ok; success and untested are not, if a control should have stopped it."""
    assert judged("a", "process", "c", "stopped by EACCES").ok
    assert judged("a", "process", "c", "killed by SIGSYS").ok
    assert not judged("a", "process", "c", acts.THROUGH).ok
    assert not judged("a", "process", "c", f"{acts.UNTRIED}no child").ok
    assert judged("a", "process", "c", acts.THROUGH, expected=OPEN).ok


def test_a_network_that_is_not_there_proves_nothing_and_is_no_hole():
    """An unreachable network counts as untested, not as stopped by a control."""
    attempt = judged("tcp v6", "process", "egress", "stopped by ENETUNREACH")
    assert attempt.ok and attempt.outcome.startswith(acts.UNTRIED)
    assert needless("x", "process", "c", "why").ok


def test_every_act_goes_through_where_nothing_holds_it(tmp_path):
    """Each operation succeeds without controls, so only a control can stop it later."""
    with SelfTestFixtures(str(tmp_path)) as ground:
        assert acts.outcome_of(acts.read, ground.file) == acts.THROUGH
        assert acts.outcome_of(acts.write, ground.folder) == acts.THROUGH
        assert acts.outcome_of(acts.open_for_writing, ground.file) == acts.THROUGH
        assert acts.outcome_of(acts.connect, socket.AF_INET, ground.addresses["tcp v4"]) == acts.THROUGH
        assert acts.outcome_of(acts.send, socket.AF_INET, ground.addresses["udp v4"], ground.token) == acts.THROUGH
        assert ground.arrived("v4") and not ground.arrived("v4")
        assert acts.outcome_of(ground.call_unix) == acts.THROUGH
        assert acts.outcome_of(os.kill, os.getpid(), 0) == acts.THROUGH
        assert acts.in_a_fork(acts.execute, ground.program) == acts.THROUGH
        assert acts.outcome_of(acts.attributes, ground.file) == acts.THROUGH
        assert acts.outcome_of(acts.metadata, ground.file) == acts.THROUGH
        assert acts.outcome_of(acts.netlink) == acts.outcome_of(acts.join_group) == acts.THROUGH
        assert acts.outcome_of(acts.read, f"/proc/{os.getpid()}/net/unix") == acts.THROUGH
        assert sorted(os.listdir(ground.folder)) == ["file", "program", "socket"]
    assert os.listdir(tmp_path) == []


PROBES = (
    *("ptrace", "unshare", "io_uring_setup", "process_vm_readv", "setns", "userfaultfd"),
    *("mq_unlink", "memfd_create", "inotify_init1"),
)


@rows("name", PROBES)
def test_a_probe_reaches_the_kernel_where_no_filter_is(name):
    """A probe fails by its invalid arguments; a filter would return another error."""
    from democrai_sandbox.kernel import _native

    if name == "io_uring_setup" and _native.probe(name) in {errno.ENOSYS, errno.EPERM}:
        return  # io_uring is disabled on this machine
    assert acts.outcome_of(acts.probe, _native, name) == acts.THROUGH


def test_a_fork_tells_how_it_ended():
    """Killed, refused, succeeded and broken are distinguished."""
    assert acts.in_a_fork(lambda: os.kill(os.getpid(), signal.SIGSYS)) == "killed by SIGSYS"
    assert acts.in_a_fork(acts.read, "/nonexistent") == "stopped by ENOENT"
    assert acts.in_a_fork(lambda: None) == acts.THROUGH
    assert acts.in_a_fork(lambda: 1 / 0).startswith(acts.UNTRIED)


def test_the_ground_has_room_for_long_paths(tmp_path):
    """A state directory with a path longer than a socket address works."""
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    with SelfTestFixtures(str(deep)) as ground:
        assert acts.outcome_of(ground.call_unix) == acts.THROUGH


def test_places_outside_the_lists_are_outside(tmp_path):
    """A folder below a listed path is not used; if everything is listed, none is found."""
    assert readable_outside(["/usr"]) == "/"
    assert readable_outside(["/"]) is None and writable_outside(["/"]) is None
    outside = writable_outside([str(tmp_path)])
    assert outside is None or os.access(outside, os.W_OK)


def test_all_acts_are_stopped_under_landlock_and_seccomp(tmp_path):
    """In the process and in the child, each operation has the documented result."""
    told = application(
        tmp_path,
        f"""
        with make({PROCESS_ONLY!r}) as kernel:
            {TELL}
        """,
    )
    assert outcomes(told, "process") == {
        "read outside the lists": "stopped by EACCES",
        "write outside the lists": "stopped by EACCES",
        "signal to a process outside": "stopped by EPERM",
        "execve": "killed by SIGSYS",
        "unshare": "stopped by EPERM",
        "io_uring_setup": "stopped by ENOSYS",
        "process_vm_readv": "stopped by EPERM",
        "packet socket": "stopped by EPERM",
    }
    child = outcomes(told, "child")
    by_landlock = ("read", "write", "exec", "network tables", "leave the cgroup")
    assert {name: child[name] for name in by_landlock} == dict.fromkeys(by_landlock, "stopped by EACCES")
    assert {child[name] for name in ("ptrace", "setuid", "chroot")} == {"killed by SIGSYS"}
    assert {child[name] for name in ("unshare", "packet socket", "unix socket", "udp v4")} == {"stopped by EPERM"}
    assert {child[name] for name in ("message queue", "metadata", "netlink", "multicast group")} == {"stopped by EPERM"}
    assert child["attributes"] == "stopped by ENOTSUP" and child["memory program"] == "stopped by EACCES"
    assert child["watch for changes"] == "stopped by ENOSYS"
    assert child["tcp v4"] == "stopped by EPERM" and child["io_uring"] == "stopped by ENOSYS"
    assert all(attempt["ok"] for attempt in told["attempts"])


@needs_netlab
def test_connections_are_tried_in_the_process_and_in_a_child_that_only_its_cgroup_holds():
    """The packet filter stops TCP and UDP, IPv4 and IPv6; a unix socket stays open, as expected."""
    with short_folder() as here, shared_lab() as lab:
        told = application(
            here,
            f"""
            with make({EVERYTHING!r}) as kernel:
                {TELL}
            """,
            space=lab.inside,
        )
    for where in ("process", "child with network"):
        met = outcomes(told, where)
        assert [met[f"tcp {name}"] for name in ("v4", "v6")] == ["stopped by ECONNREFUSED"] * 2
        assert [met[f"udp {name}"] for name in ("v4", "v6")] == ["stopped by EPERM"] * 2
    assert outcomes(told, "process")["unix socket"] == acts.THROUGH
    assert outcomes(told, "child with network")["multicast group"] == "stopped by EPERM"
    assert set(told["states"].values()) == {"active"}


@needs_netlab
def test_root_without_the_other_controls_can_leave_and_that_is_told():
    """The allowlist alone does not restrict a root application: the self-test gets out, the status is partial."""
    with short_folder() as here, shared_lab() as lab:
        told = application(
            here,
            f"""
            kernel = make({ {"enabled": True}!r})
            kernel.prepare()
            status = kernel.confine()
            tell(state=status["egress"].state, reason=status["egress"].reason, fix=status["egress"].fix)
            {TELL}
            kernel.stop()
            """,
            space=lab.inside,
        )
    met = outcomes(told, "process")
    assert met["tcp v4"] == "stopped by ECONNREFUSED"
    assert met["leave the cgroup"] == met["packet socket"] == acts.THROUGH
    assert told["state"] == "partial" and told["fix"] == _AS_ROOT
    assert all(act in told["reason"] for act in ("leave the cgroup", "packet socket")), told["reason"]
    assert "tcp" not in told["reason"]


@needs_netlab
def test_a_packet_filter_that_lets_through_is_found_out():
    """Rules that another program flushed: the next self-test detects it, and the control is not active."""
    with short_folder() as here, shared_lab() as lab:
        told = application(
            here,
            f"""
            kernel = make({ {**EVERYTHING, "seccomp": {"enabled": False}}!r})
            kernel.prepare()
            first = states(kernel.confine())["egress"]
            subprocess.run(["/usr/sbin/iptables", "-F", "OUTPUT"], check=True)
            kernel.selftest()
            then = kernel.status()["egress"]
            tell(state=then.state, reason=then.reason)
            {TELL}
            kernel.stop()
            """,
            space=lab.inside,
        )
    assert told["state"] == "partial" and "tcp v4" in told["reason"] and "tcp v6" not in told["reason"]
    assert outcomes(told, "process")["tcp v4"] == acts.THROUGH
    assert outcomes(told, "process")["tcp v6"] == "stopped by ECONNREFUSED"


def test_a_child_that_cannot_be_started_is_not_taken_for_one_that_was_stopped(tmp_path):
    """Without a spawn server nothing is proven about children."""
    told = application(
        tmp_path,
        f"""
        kernel = make({ {"seccomp": {"enabled": True}}!r})
        kernel.prepare()
        kernel.confine()
        kernel.spawn.stats()
        os.kill(kernel.spawn.standby, signal.SIGSTOP)  # it would take over
        os.kill(kernel.spawn.pid, signal.SIGKILL)
        os.waitid(os.P_PID, kernel.spawn.pid, os.WEXITED | os.WNOWAIT)
        os.kill(kernel.spawn.standby, signal.SIGKILL)
        kernel.selftest()
        {TELL}
        kernel.stop()
        """,
    )
    child = [attempt for attempt in told["attempts"] if attempt["where"] == "child"]
    assert [attempt["ok"] for attempt in child] == [False]
    assert child[0]["outcome"].startswith(f"{acts.UNTRIED}os_sandbox_spawn_failed")


def test_threads_do_not_matter_to_a_later_self_test(tmp_path):
    """It can run again at any time, from any thread, and leaves nothing behind."""
    told = application(
        tmp_path,
        f"""
        kernel = make({PROCESS_ONLY!r})
        kernel.prepare()
        kernel.confine()
        before = len(os.listdir("/proc/self/fd"))
        failed = []
        def again():
            failed.append([attempt.act for attempt in kernel.selftest() if not attempt.ok])
        threads = [threading.Thread(target=again) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        tell(failed=failed, same=before == len(os.listdir("/proc/self/fd")), left=os.listdir(HERE + "/state"))
        kernel.stop()
        """,
    )
    assert told["failed"] == [[], [], []]
    assert told["same"] and told["left"] == []


@needs_other_user
def test_a_user_without_privileges_is_held_as_well():
    """Landlock and seccomp need no root: the same operations have the same results."""
    with short_folder() as here:
        told = application(
            here,
            f"""
            with make({ {**PROCESS_ONLY, "require": True}!r}) as kernel:
                {TELL}
            """,
            user=NOBODY,
        )
    assert all(attempt["ok"] for attempt in told["attempts"])
    assert outcomes(told, "process")["execve"] == "killed by SIGSYS"
    assert outcomes(told, "child")["read"] == "stopped by EACCES"
    assert [told["states"][name] for name in ("landlock", "seccomp", "spawn_server")] == ["active"] * 3


@needs_other_user
def test_a_state_directory_that_cannot_be_written_is_a_named_error():
    """Without a writable folder the self-test fails with a fix."""
    with short_folder() as here:
        told = application(
            here,
            """
            os.chmod(HERE + "/state", 0o500)
            kernel = make({"seccomp": {"enabled": True}})
            kernel.prepare()
            tell(error=failure(kernel.confine), stage=kernel.stage)
            """,
            user=NOBODY,
        )
    error = told["error"]
    assert error["type"] == "KernelLayerError" and f"{here}/state" in error["what"] and error["fix"]
    assert told["stage"] == "stopped"
