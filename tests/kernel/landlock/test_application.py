"""The application's lists: it keeps working, and paths outside are denied."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from democrai_sandbox.kernel.landlock import ruleset
from democrai_sandbox.kernel.landlock.rights import EXECUTE, WRITE, FsRight
from democrai_sandbox.kernel.landlock.ruleset import application_paths, application_plan
from democrai_sandbox.kernel.settings import LandlockSettings
from tests.kernel.landlock.harness import NOBODY
from tests.services.rows import rows


def rights_of(plan):
    """Rights of a plan at each path, combined over its rules."""
    found = {}
    for rule in plan.paths:
        found[rule.path] = found.get(rule.path, FsRight(0)) | rule.rights
    return found


def test_lists_hold_the_system_the_runtime_and_what_is_named(tmp_path):
    """Read-only: system, interpreter, this package, and configured paths. Read-write: configured paths only."""
    settings = LandlockSettings(True, ("/opt/extra",), ("/srv/work",))
    paths = application_paths(["/srv/readable"], [str(tmp_path)], settings)
    assert {"/usr", "/etc", "/proc", "/srv/readable", "/opt/extra", sys.prefix, sys.base_prefix} <= set(paths.read)
    assert os.path.realpath(sys.executable) in paths.read
    package = Path(ruleset.__file__).parents[2]
    assert any(package.is_relative_to(path) for path in paths.read)
    assert paths.write == (str(tmp_path), "/srv/work")
    assert tempfile.gettempdir() in paths.scratch
    rights = rights_of(application_plan(paths))
    assert rights["/usr"] == EXECUTE
    assert rights[str(tmp_path)] == WRITE | EXECUTE
    assert rights["/dev/shm"] == WRITE
    assert rights["/dev"] == FsRight.READ_DIR


def test_nothing_is_made_up_for_what_does_not_exist(monkeypatch):
    """Missing system folders are not listed, so that only configured paths are reported as missing."""
    monkeypatch.setattr(ruleset, "_SYSTEM", ("/usr", "/lib-of-another-machine"))
    paths = application_paths([], [], LandlockSettings())
    assert "/usr" in paths.read
    assert "/lib-of-another-machine" not in paths.read


@rows("wide", ["/", "/home", "~"])
def test_a_home_on_the_import_path_is_left_out(monkeypatch, tmp_path, wide):
    """A script that was started from there does not open the whole folder."""
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = os.path.expanduser(wide)
    monkeypatch.setattr(sys, "path", [*sys.path, folder, ""])
    paths = application_paths([], [], LandlockSettings())
    assert folder not in paths.read
    assert "" not in paths.read


def test_ports_are_not_restricted():
    """The packet filter restricts TCP, because it also checks addresses."""
    paths = application_paths([], [], LandlockSettings())
    assert application_plan(paths).handle_connect is False
    assert application_plan(paths).handle_bind is False


def test_a_device_that_the_host_names_can_be_commanded():
    """A graphics card needs its ioctls; device nodes cannot be created there."""
    paths = application_paths([], [], LandlockSettings(extra_write_paths=("/dev/dri",)))
    assert rights_of(application_plan(paths))["/dev/dri"] & FsRight.IOCTL_DEV
    everywhere = FsRight(0)
    for rule in application_plan(application_paths([], ["/srv"], LandlockSettings())).paths:
        everywhere |= rule.rights
    assert not everywhere & (FsRight.MAKE_BLOCK | FsRight.MAKE_CHAR | FsRight.IOCTL_DEV)


def ordinary_work(w):
    import asyncio
    import os
    import socket
    import subprocess
    import tempfile
    import threading

    from democrai_sandbox.kernel.landlock.ruleset import application_paths, application_plan
    from democrai_sandbox.kernel.settings import LandlockSettings

    data, outside = str(w.inside), w.outside
    (w.inside / "program").write_text("#!/bin/sh\nexit 7\n")
    (w.inside / "program").chmod(0o755)
    settings = LandlockSettings(True, (str(w.read),), (str(w.base / "absent"),))
    # The test's folder is below the temporary folder, which is read-write as a whole, so another one is used.
    tempfile.tempdir = str(w.base / "tmp")
    os.environ["TMPDIR"] = tempfile.tempdir
    status = w.apply(application_plan(application_paths([], [data], settings)))
    done = []

    def database():
        import sqlite3

        store = sqlite3.connect(f"{data}/store.db")
        store.execute("pragma journal_mode=wal")
        store.execute("create table t (v)")
        store.execute("create temp table u as select 1")
        store.commit()
        store.close()

    def tls():
        import ssl

        ssl.create_default_context()

    def shared_memory():
        from multiprocessing import shared_memory

        memory = shared_memory.SharedMemory(create=True, size=64)
        memory.close()
        memory.unlink()

    def temporary():
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")

    def late_import():
        import decimal
        import xml.dom.minidom

    def program():
        subprocess.run(["/bin/sh", "-c", "true"], check=True)

    def names():
        socket.getaddrinfo("localhost", 80)

    def loop():
        asyncio.run(asyncio.sleep(0))

    def thread():
        worker = threading.Thread(target=done.append, args=(1,))
        worker.start()
        worker.join()

    def devices():
        open("/dev/null", "w").close()
        open("/dev/zero", "rb").close()
        open("/dev/urandom", "rb").read(1)

    def own_process():
        open("/proc/self/status").close()
        os.listdir("/dev")

    def replaced():
        with open(f"{data}/new", "w") as file:
            file.write("x")
        os.replace(f"{data}/new", f"{data}/one/old")

    works = (database, tls, shared_memory, temporary, late_import, program, names, loop, thread, devices)
    works = {act.__name__: w.tried(act) for act in (*works, own_process, replaced)}

    dropped = w.base / "tmp/dropped"
    dropped.write_text("#!/bin/sh\nexit 7\n")
    dropped.chmod(0o755)
    disks = [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith(("vd", "sd", "loop0", "kmsg", "mem"))]
    shut = {
        "secret": w.tried(open, outside / "secret.txt"),
        "home": w.tried(os.listdir, w.base),
        "system": w.tried(open, "/etc/landlock-test", "x"),
        "read-only": w.tried(open, w.read / "file.txt", "a"),
        "program outside": w.executed(outside / "program"),
        "program in the temporary folder": w.executed(dropped),
        **{disk: w.tried(open, disk, "rb") for disk in disks},
    }
    return {
        "status": status.as_dict(),
        "works": works,
        "shut": shut,
        "read": w.tried(open, w.read / "file.txt"),
        "own program": w.executed(w.inside / "program"),
    }


@pytest.mark.parametrize(
    "user", [None, pytest.param(NOBODY, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))]
)
def test_an_application_works_on_under_its_lists_and_reaches_nothing_else(ground, user):
    """Databases, TLS, imports, programs, names, shared memory keep working. Secrets, disks, new programs are denied."""
    # The interpreter may be in a private home folder: then only loaded modules work for other users.
    reachable = user is None or not any(
        not os.stat(parent).st_mode & 1 for parent in Path(os.path.realpath(sys.executable)).parents
    )
    if not reachable:
        pytest.skip("the interpreter lies in a home that another user cannot enter")
    answer = ground.run(ordinary_work, user=user)
    assert answer["status"]["state"] == "active"
    assert answer["status"]["details"]["missing"] == [str(ground.base / "absent")]
    assert set(answer["works"].values()) == {"ok"}, answer["works"]
    assert set(answer["shut"].values()) == {"EACCES"}, answer["shut"]
    assert answer["read"] == "ok"
    assert answer["own program"] == 7
