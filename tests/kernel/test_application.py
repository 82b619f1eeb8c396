"""Order of the kernel controls at start, and their end."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

import pytest

from tests.kernel.appcase import EVERYTHING, Talking, application, lacking, short_folder
from tests.kernel.netlab import needs_netlab, shared_lab, wait_until

PROCESS_ONLY = {"seccomp": {"enabled": True}, "landlock": {"enabled": True}}


def test_nothing_is_started_or_restricted_when_nothing_is_asked_for(tmp_path):
    """With every switch off both steps succeed, everything is off, and the process is unrestricted."""
    told = application(
        tmp_path,
        """
        kernel = make({"enabled": False})
        kernel.prepare()
        status = kernel.confine()
        children = Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text()
        tell(states=states(status), spawn=kernel.spawn is None, egress=kernel.egress is None, children=children)
        tell(root=len(os.listdir("/")), code=subprocess.run(["/bin/true"]).returncode, reason=status["landlock"].reason)
        kernel.stop()
        """,
    )
    assert set(told["states"].values()) == {"off"}
    assert told["spawn"] and told["egress"] and told["children"] == ""
    assert told["root"] and told["code"] == 0
    assert "sandbox.os.landlock.enabled" in told["reason"]


def test_by_default_only_what_the_application_starts_is_confined(tmp_path):
    """The spawn server is active and tested; the application itself is unrestricted, and starts programs."""
    told = application(
        tmp_path,
        """
        kernel = make({})
        kernel.prepare()
        status = kernel.confine()
        tell(states=states(status), unconfined=kernel.unconfined, attempts=[one.ok for one in status.attempts])
        tell(root=len(os.listdir("/")), code=subprocess.run(["/bin/true"]).returncode)
        kernel.stop()
        """,
    )
    assert {name for name, state in told["states"].items() if state != "off"} == {"spawn_server"}
    assert told["states"]["spawn_server"] == "active" and told["unconfined"] == ""
    assert told["attempts"] and all(told["attempts"])
    assert told["root"] and told["code"] == 0


def test_landlock_and_seccomp_hold_the_process_and_the_server_still_starts_programs(tmp_path):
    """Files outside the lists are denied, execve kills, and a child of the spawn server runs under the same lists."""
    told = application(
        tmp_path,
        f"""
        kernel = make({PROCESS_ONLY!r})
        kernel.prepare()
        tell(states=states(kernel.confine()), baseline=kernel.status()["spawn_server"].details["baseline"])
        tell(outside=kind_of(os.listdir, "/"), inside=kind_of(Path(HERE, "data", "x").write_text, "x"))
        tell(direct=subprocess.run(["/bin/true"]).returncode)
        from democrai_sandbox.kernel.spawn import SpawnOrder
        def run(*argv):
            child = kernel.spawn.spawn(SpawnOrder("/bin/sh", ("sh", "-c", *argv), {{}}, "/"))
            return child.collect()
        tell(child=run("exit 7"), listing=run("ls /"), reading=run("test -r /etc/passwd && cat /etc/passwd"))
        kernel.stop()
        tell(after=kind_of(os.listdir, "/"))
        """,
    )
    assert told["states"] == {
        "landlock": "active",
        "seccomp": "active",
        "spawn_server": "active",
        "egress": "off",
        "helper": "off",
    }
    assert told["baseline"]
    assert told["outside"] == "PermissionError" and told["inside"] == "nothing"
    assert told["direct"] == -31
    assert told["child"] == 7 and told["listing"] != 0 and told["reading"] == 0
    assert told["after"] == "PermissionError"


OUT_OF_ORDER = {
    "confine": ["new", "prepared"],
    "prepare prepare": ["prepared", "new"],
    "prepare confine confine": ["confined", "prepared"],
    "stop prepare": ["stopped", "new"],
    "prepare stop confine": ["stopped", "prepared"],
}
"""Steps, the last of which is refused: the stage then, and the one that it needs."""


def test_a_step_out_of_order_is_an_error_that_says_the_order(tmp_path):
    """Confining before preparing, and every step twice or after the end, is refused with a fix."""
    told = application(
        tmp_path,
        f"""
        def refused(steps):
            kernel = make({{}})
            *before, last = [getattr(kernel, step) for step in steps.split()]
            for step in before:
                step()
            return failure(last)
        tell(errors={{steps: refused(steps) for steps in {list(OUT_OF_ORDER)!r}}})
        """,
    )
    for steps, stages in OUT_OF_ORDER.items():
        error = told["errors"][steps]
        assert error["type"] == "KernelLayerError", steps
        assert re.findall(r"\b(new|prepared|confined|stopped)\b", error["what"]) == stages, steps
        assert re.findall(r"\b\w+\(\)", error["fix"])[:2] == ["prepare()", "confine()"], steps


def test_threads_from_before_make_landlock_partial_and_seccomp_takes_them_in(tmp_path):
    """A thread older than confine() is not covered by Landlock, which is reported; the filter covers it."""
    told = application(
        tmp_path,
        f"""
        go, done, seen = threading.Event(), threading.Event(), []
        def early():
            go.wait()
            seen.append(kind_of(os.listdir, "/"))
            done.set()
        threading.Thread(target=early).start()
        kernel = make({PROCESS_ONLY!r})
        kernel.prepare()
        status = kernel.confine()
        go.set(); done.wait()
        tell(states=states(status), reason=status["landlock"].reason, fix=status["landlock"].fix, seen=seen)
        tell(details=status["seccomp"].details, landlock=status["landlock"].details)
        kernel.stop()
        """,
    )
    assert told["states"]["landlock"] == "partial" and told["states"]["seccomp"] == "active"
    assert (told["landlock"]["threads"], told["landlock"]["threads_covered"]) == (2, 1)
    assert "thread" in told["reason"] and "thread" in told["fix"]
    assert told["seen"] == ["nothing"]
    assert told["details"]["threads"] == told["details"]["threads_covered"]


def test_require_refuses_when_a_thread_was_started_too_early(tmp_path):
    """With ``require`` partial is not enough: the error names control, reason and fix; nothing keeps running."""
    told = application(
        tmp_path,
        f"""
        stop = threading.Event()
        threading.Thread(target=stop.wait).start()
        kernel = make({ {**PROCESS_ONLY, "require": True}!r})
        kernel.prepare()
        server = kernel.spawn.pid
        tell(error=failure(kernel.confine), gone=not os.path.exists(f"/proc/{{server}}/exe"), stage=kernel.stage)
        stop.set()
        """,
    )
    error = told["error"]
    assert (error["type"], error["code"]) == ("KernelRefused", "os_sandbox_required")
    assert lacking(error) == {"landlock": "partial"} and error["fix"].startswith("landlock: ")
    assert told["gone"] and told["stage"] == "stopped"


def test_require_starts_when_everything_asked_for_is_active(tmp_path):
    """A control that is not enabled is off, and does not count."""
    section = {**PROCESS_ONLY, "require": True}
    told = application(
        tmp_path,
        f"""
        with make({section!r}) as kernel:
            tell(states=states(kernel.status()), stage=kernel.stage)
        """,
    )
    assert told["stage"] == "confined" and told["returncode"] == 0


def test_the_end_of_the_application_ends_the_server(tmp_path):
    """No spawn server stays behind in any case."""
    told = application(
        tmp_path,
        f"""
        kernel = make({PROCESS_ONLY!r})
        kernel.prepare()
        kernel.confine()
        tell(pid=kernel.spawn.pid)
        os._exit(3)
        """,
    )
    assert told["returncode"] == 3
    _gone(told["pid"])


def test_a_spawn_server_that_cannot_start_is_an_error_whether_required_or_not(tmp_path):
    """Children would not be confined, so the application does not start."""
    told = application(
        tmp_path,
        """
        sys.executable = "/nonexistent/python"
        tell(error=kind_of(make({"seccomp": {"enabled": True}}).prepare))
        """,
    )
    assert told["error"] == "SpawnFailed"


def test_folders_that_are_not_there_or_not_absolute_are_named(tmp_path):
    """A missing data or state directory is an error, and so is a relative path."""
    told = application(
        tmp_path,
        """
        os.rmdir(HERE + "/state")
        tell(missing=failure(make({}).prepare), unused=kind_of(make({"enabled": False}).prepare))
        tell(relative=failure(make, {}, write=("modules",)))
        """,
    )
    assert told["missing"]["type"] == "KernelLayerError" and f"{tmp_path}/state" in told["missing"]["what"]
    assert "prepare()" in told["missing"]["fix"]
    assert told["unused"] == "nothing"
    assert told["relative"]["type"] == "KernelLayerError" and "'modules'" in told["relative"]["what"]


def test_the_flow_tells_each_step(tmp_path):
    """With the debug variable each step is a line on standard error, in the order of the steps."""
    told = application(
        tmp_path,
        f"""
        with make({PROCESS_ONLY!r}):
            pass
        """,
        environment={"DEMOCRAI_DEBUG_OS_SANDBOX_FLOW": "1"},
    )
    lines = [line for line in told["stderr"].splitlines() if line.startswith("[OS_SANDBOX_FLOW]")]
    events = list(dict.fromkeys(line.split()[1] for line in lines))
    assert events == ["spawn_server_started", "landlock", "seccomp", "selftest", "stopped"]


@needs_netlab
def test_everything_together_is_active_and_leaves_nothing():
    """All controls together: a declared target is reachable, another is not, and after stop nothing is left."""
    with short_folder() as here, shared_lab() as lab:
        declared, other = (lab.world.serve("tcp", lab.world.v4) for _ in range(2))
        told = application(
            here,
            f"""
            kernel = make({ {**EVERYTHING, "require": True}!r}, "{lab.world.v4}:{declared.port}")
            kernel.prepare()
            status = kernel.confine()
            def call(port):
                with socket.create_connection(("{lab.world.v4}", port), 10) as link:
                    link.sendall(b"x")
                    assert link.recv(1) == b"x"
            tell(states=states(status), declared=kind_of(call, {declared.port}), other=kind_of(call, {other.port}))
            def child(port):
                from democrai_sandbox.kernel.spawn import SpawnOrder
                code = f"import socket; socket.create_connection(('{lab.world.v4}', {{port}}), 10)"
                order = SpawnOrder(sys.executable, (sys.executable, "-I", "-S", "-c", code), {{}}, "/")
                return kernel.spawn.spawn(order).collect()
            tell(child=[child({declared.port}), child({other.port})])
            tell(json=json.dumps(status.as_dict()), cgroup=status["egress"].details["cgroup"])
            tell(files=sorted(path.stem for path in Path(HERE).glob("*/*")))
            kernel.stop()
            tell(left=sorted(path.stem for path in Path(HERE).glob("*/*")))
            """,
            space=lab.inside,
        )
        assert set(told["states"].values()) == {"active"}, told
        assert told["declared"] == "nothing"
        assert told["other"] == "ConnectionRefusedError"
        # A child without rules has the restrictions of the application.
        assert told["child"] == [0, 1]
        assert [name.rstrip("0123456789") for name in told["files"]] == ["os_sandbox_allowlist_", "os_sandbox_helper_"]
        assert told["left"] == []
        assert "DEMOCRAI" not in lab.inside.rules() + lab.inside.rules("ipv6")
        assert not os.path.exists(told["cgroup"])


@needs_netlab
def test_a_policy_file_elsewhere_can_still_be_written_under_landlock():
    """The configured folder is writable: the allowlist is still updated."""
    with short_folder() as here, shared_lab() as lab:
        (here / "elsewhere").mkdir(mode=0o700)
        section = {**EVERYTHING, "policy_file": f"{here}/elsewhere/list_{{pid}}.json"}
        port = lab.world.serve("tcp", lab.world.v4).port
        told = application(
            here,
            f"""
            kernel = make({section!r}, "127.0.0.1:9")
            kernel.prepare()
            kernel.confine()
            def call():
                socket.create_connection(("{lab.world.v4}", {port}), 10).close()
            tell(before=kind_of(call))
            kernel.endpoints.add(Wanted("{lab.world.v4}:{port}"))
            tell(error=kind_of(kernel.egress.refresh, "test", wait=True), after=kind_of(call))
            tell(file=kernel.egress.policy_file, there=os.path.exists(kernel.egress.policy_file))
            kernel.stop()
            tell(left=os.listdir(HERE + "/elsewhere"))
            """,
            space=lab.inside,
        )
    assert told["error"] == "nothing", told
    assert (told["before"], told["after"]) == ("ConnectionRefusedError", "nothing")
    assert told["file"].startswith(f"{here}/elsewhere/list_") and told["there"] and told["left"] == []


@needs_netlab
def test_two_applications_side_by_side_do_not_touch_each_other():
    """Each has a separate server, helper, cgroup and chains; killing one does not affect the other."""
    with short_folder() as here, shared_lab() as lab, ExitStack() as stack:
        ports = [lab.world.serve("tcp", lab.world.v4).port for _ in range(2)]
        folders = [here / name for name in ("one", "two")]
        running = []
        for folder, port in zip(folders, ports, strict=True):
            folder.mkdir()
            body = f"""
                kernel = make({EVERYTHING!r}, "{lab.world.v4}:{port}")
                kernel.prepare()
                details = kernel.confine()["egress"].details
                tell(cgroup=details["cgroup"], chains=details["chains"], policy_file=details["policy_file"])
                def call(port):
                    socket.create_connection(("{lab.world.v4}", port), 10).close()
                for line in sys.stdin:
                    tell(met=[kind_of(call, port) for port in {ports!r}], states=states(kernel.status()))
                kernel.stop()
                """
            running.append(stack.enter_context(Talking(folder, body, space=lab.inside)))
        facts = [each.hear() for each in running]
        assert all(facts[0][name] != facts[1][name] for name in ("cgroup", "chains", "policy_file"))
        first, second = running
        assert first.ask()["met"] == ["nothing", "ConnectionRefusedError"]
        assert second.ask()["met"] == ["ConnectionRefusedError", "nothing"]
        second.process.kill()
        wait_until(lambda: not os.path.exists(facts[1]["cgroup"]), "the end of what belonged to the killed one")
        wait_until(lambda: f"_{second.process.pid}_" not in lab.inside.rules(), "the end of its chains")
        assert list(folders[1].glob("*/os_sandbox*")) == []
        answer = first.ask()
        assert answer["met"] == ["nothing", "ConnectionRefusedError"] and set(answer["states"].values()) == {"active"}
        assert first.end() == 0


def _gone(pid):
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), f"the end of {pid}")
