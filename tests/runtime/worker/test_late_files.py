"""Files that are approved while a call runs in a confined worker: the host opens them for it."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace

import pytest

from democrai_sandbox.guard.runtime_paths import read_only_paths
from democrai_sandbox.policy import Operation
from democrai_sandbox.runtime.worker.host_requests import LateFiles, open_without_links, operations_of

LAB = os.path.join(os.path.dirname(__file__), "..", "confinement", "confined_host.py")

MODULE = """
import asyncio, ctypes, os, time
from democrai_sandbox import sdk

libc = ctypes.CDLL(None, use_errno=True)

def outcome(act, *args):
    try:
        return act(*args)
    except OSError as error:
        return getattr(error, "kind", "") or type(error).__name__

def read(path):
    with open(path) as file:
        return file.read()

def write(path):
    with open(path, "w") as file:
        file.write("written")
    return "ok"

def natively(path):
    number = libc.open(path.encode(), os.O_RDONLY)
    return "ok" if number >= 0 else ctypes.get_errno()

ACTS = {"read": read, "list": os.listdir, "write": write, "native": natively}

async def changed(act, path, before):
    (sdk.data_dir() / act).write_text("waits")
    until = time.monotonic() + 30
    while (now := outcome(ACTS[act], path)) == before and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return now

@sdk.action("wait")
async def wait(act, path):
    before = outcome(ACTS[act], path)
    return [before, await changed(act, path, before), outcome(natively, path), os.getpid()]

@sdk.action("pid")
def pid(): return os.getpid()
"""


def running_calls(world):
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    wanted, told = house.file("wanted/file"), {}
    folder, new = os.path.dirname(wanted), os.path.join(os.path.dirname(wanted), "new")
    declared = os.path.join(house.base, "outside", "later", "file")
    rule = {"resource_type": "filesystem", "operation": "read", "target": declared}
    house.extension("demo", MODULE, access=[rule], allowed_imports=["ctypes"])
    decide = lambda operation, target: house.decide("approval", "module:demo", "filesystem", operation, target)

    async def waiting(act, path):
        mark = os.path.join(house.base, "data", "modules", "demo", act)
        if os.path.exists(mark):
            os.unlink(mark)
        work = asyncio.ensure_future(lab.action("demo", "wait", act=act, path=path))
        while not (os.path.exists(mark) or work.done()):
            await asyncio.sleep(0.01)
        return work

    async def story():
        first = await lab.action("demo", "pid")
        work = [await waiting("read", wanted), await waiting("write", new), await waiting("list", folder)]
        decide("read", wanted)
        told["read"] = await work[0]
        for operation in ("create", "modify"):
            decide(operation, new)
        told["write"] = await work[1]
        decide("read", folder)
        told["list"] = await work[2]
        told["same process"] = {done[-1] for done in told.values()} == {first}
        last = await waiting("read", wanted)
        for decision in house.admin("approvals").items:
            house.admin("revoke", decision.id)
        told["revoked"] = await last
        with open(new) as file:
            told["new"] = file.read()
        later = await waiting("read", declared)
        house.file("later/file", "declared")
        told["declared"] = await later
        return told

    return lab.serve(story, isolation={"module:demo": "process"})


@pytest.fixture(scope="module")
def running(shared_case):
    """Return the outcomes of calls that were running when the decisions were made."""
    return shared_case.run(running_calls)


REFUSED = "sandbox_filesystem_denied"


def test_an_approval_reaches_a_running_call_of_a_confined_worker(running):
    assert running["read"][:2] == ["FilesystemDenied", "found"]
    assert running["same process"]


def test_an_approved_file_is_created_for_a_running_call(running):
    assert running["write"][:2] == ["FilesystemDenied", "ok"]
    assert running["new"] == "written"


def test_an_approved_folder_is_listed_by_a_running_call(running):
    assert running["list"][0] == "FilesystemDenied"
    assert sorted(running["list"][1]) == ["file", "new"]


def test_the_kernel_rules_of_a_running_process_do_not_grow(running):
    assert running["read"][2] == running["list"][2] == errno.EACCES


def test_a_revocation_reaches_a_running_call(running):
    assert running["revoked"][:2] == ["found", "FilesystemDenied"]


def test_a_declared_file_that_is_created_later_is_open_to_a_running_call(running):
    assert running["declared"][:2] == ["FileNotFoundError", "declared"]


# ---- checks of the host ----------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Return a function that opens a path for a worker whose every question is answered with yes."""
    own, shut = tmp_path / "own", tmp_path / "shut"
    own.mkdir()
    shut.mkdir()
    (shut / "key").write_text("secret")
    spec = SimpleNamespace(own_read=(), own_write=(str(own),), protected=(str(shut),))

    def opened(path, flags=os.O_RDONLY, *, allowed=tuple(Operation)):
        found = LateFiles(spec, lambda rule: False).open(str(path), flags, 0o600, lambda asked: asked in allowed)
        if found < 0:
            return errno.errorcode[-found]
        os.close(found)
        return "open"

    return opened


def test_an_allowed_file_is_opened(files, tmp_path):
    (tmp_path / "file").write_text("x")
    assert files(tmp_path / "file") == "open"


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (os.O_RDONLY, ["read"]),
        (os.O_RDONLY | os.O_TRUNC, ["read", "modify"]),
        (os.O_WRONLY | os.O_APPEND, ["modify"]),
        (os.O_RDWR, ["read", "modify"]),
        (os.O_WRONLY | os.O_CREAT, ["create", "modify"]),
        (os.O_WRONLY | os.O_CREAT | os.O_EXCL, ["create"]),
        (os.O_RDONLY | os.O_CREAT, ["read", "create"]),
    ],
)
def test_the_flags_say_which_operations_have_to_be_allowed(flags, wanted):
    assert [one.value for one in operations_of(flags)] == wanted


@pytest.mark.parametrize("missing", list(Operation)[:3])
def test_each_operation_has_to_be_allowed(files, tmp_path, missing):
    path, flags = tmp_path / "file", os.O_RDWR | os.O_CREAT
    needed = tuple(operations_of(flags))
    allowed = tuple(one for one in needed if one is not missing)
    assert files(path, flags, allowed=allowed) == ("EACCES" if missing in needed else "open")
    assert path.exists() == (missing not in needed)


def test_protected_files_stay_closed(files, tmp_path):
    assert files(tmp_path / "shut" / "key") == "EACCES"


def test_links_are_not_followed_in_any_place(files, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").symlink_to(tmp_path)
    assert files(tmp_path / "link") == "ELOOP"
    assert files(tmp_path / "folder" / "file") in ("ELOOP", "ENOTDIR")


def test_a_link_to_a_protected_file_is_not_followed(files, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "shut" / "key")
    assert files(tmp_path / "link") == "ELOOP"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/1/status", "relative", "/etc/../etc/hostname", "//etc"])
def test_paths_of_processes_and_unclean_paths_stay_closed(files, path):
    assert files(path) == "EACCES"


def test_code_of_the_host_stays_unchanged(files):
    path = os.path.join(read_only_paths()[0], "democrai-test-file")
    assert files(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) == "EACCES"
    assert not os.path.exists(path)


def test_pipes_and_sockets_are_not_opened_and_do_not_block(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert files(tmp_path / "pipe") == "EACCES"
        assert files(tmp_path / "socket") == "ENXIO"


def test_a_path_that_the_kernel_would_refuse_is_not_walked(files):
    assert files("/a" * 2048) == "ENAMETOOLONG"


@pytest.mark.parametrize("flags", [os.O_TMPFILE | os.O_RDWR, os.O_PATH, os.O_ACCMODE, 1 << 40, -1])
def test_unknown_flags_are_refused(files, tmp_path, flags):
    assert files(tmp_path, flags) == "EINVAL"


def test_a_descriptor_keeps_its_append_mode_and_blocks(tmp_path):
    (tmp_path / "file").write_text("x")
    found = open_without_links(str(tmp_path / "file"), os.O_WRONLY | os.O_APPEND, 0)
    try:
        assert os.get_blocking(found)
        os.write(found, b"y")
    finally:
        os.close(found)
    assert (tmp_path / "file").read_text() == "xy"
