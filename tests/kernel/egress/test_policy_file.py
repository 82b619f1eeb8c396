"""The policy file is replaced as a whole, and no other user can replace it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from democrai_sandbox.errors import PolicyFileRefused
from democrai_sandbox.kernel.egress import Endpoint
from democrai_sandbox.kernel.egress.updater import LARGEST, PolicyFile, encoded
from democrai_sandbox.kernel.helper.policy import parse_policy, read_policy
from democrai_sandbox.kernel.settings import policy_path, socket_path
from tests.kernel import forked_programs
from tests.services.golden import sentence

SOURCES = Path(__file__).parents[3] / "src"


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_default_names_carry_the_process_and_configured_ones_may():
    assert policy_path("", "/data", 42) == "/data/os_sandbox_allowlist_42.json"
    assert socket_path("", "/state", 42) == "/state/os_sandbox_helper_42.sock"
    assert policy_path("/var/lib/x.json", "/data", 42) == "/var/lib/x.json"
    assert policy_path("/var/lib/x_{pid}.json", "/data", 42) == "/var/lib/x_42.json"
    assert socket_path("/run/{pid}/s", "/state", 42) == "/run/42/s"


def test_a_relative_folder_is_taken_from_where_the_application_is(monkeypatch, folder):
    monkeypatch.chdir(folder)
    assert policy_path("", "data", 7) == f"{folder}/data/os_sandbox_allowlist_7.json"


def test_the_helper_reads_what_was_written_under_the_same_digest(folder):
    endpoints = (
        Endpoint("a.example", 443, "tcp", "module:ä", ("10.0.0.1", "2001:db8::1")),
        Endpoint("localhost", 1, "udp"),
    )
    content = encoded(endpoints)
    file = PolicyFile(folder / "deep" / "er" / "policy.json")
    file.write(content)
    read = read_policy(file.path, os.geteuid(), lambda path: os.open(path, os.O_RDONLY | os.O_NOFOLLOW))
    assert [tuple(end) for end in read.endpoints] == [
        ("a.example", 443, "tcp", "module:ä", ("10.0.0.1", "2001:db8::1")),
        ("localhost", 1, "udp", "", ()),
    ]
    assert read.digest == hashlib.sha256(content).hexdigest()


def test_only_the_owner_can_read_or_write_it_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        PolicyFile(folder / "p.json").write(b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "p.json").stat().st_mode) == 0o600


def test_a_link_at_its_place_is_replaced_and_not_followed(folder):
    (folder / "elsewhere").write_text("untouched")
    (folder / "p.json").symlink_to(folder / "elsewhere")
    PolicyFile(folder / "p.json").write(b"{}")
    assert (folder / "elsewhere").read_text() == "untouched"
    assert not (folder / "p.json").is_symlink()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused_with_the_fix(folder, mode):
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(PolicyFileRefused) as refused:
        PolicyFile(shared / "p.json").write(b"{}")
    assert str(shared) in refused.value.what
    assert "chmod go-w" in refused.value.fix
    assert list(shared.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(folder):
    theirs = folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(PolicyFileRefused, match="65534"):
        PolicyFile(theirs / "p.json").write(b"{}")


def test_a_folder_that_cannot_be_made_or_a_directory_at_its_place_is_a_typed_error(folder):
    (folder / "file").write_text("")
    with pytest.raises(PolicyFileRefused) as refused:
        PolicyFile(folder / "file" / "p.json").write(b"{}")
    sentence("a file in the place of the folder", str(refused.value), folder)
    (folder / "p.json").mkdir()
    with pytest.raises(PolicyFileRefused) as refused:
        PolicyFile(folder / "p.json").write(b"{}")
    sentence("a folder in the place of the file", str(refused.value), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["file", "p.json"]


def test_more_than_the_helper_reads_is_refused_and_the_old_file_stays(folder):
    file = PolicyFile(folder / "p.json")
    file.write(b"{}")
    with pytest.raises(PolicyFileRefused, match=str(LARGEST)):
        file.write(b"x" * (LARGEST + 1))
    assert (folder / "p.json").read_bytes() == b"{}"


def test_removing_it_leaves_nothing_and_may_be_done_twice(folder):
    file = PolicyFile(folder / "p.json")
    file.write(b"{}")
    file.remove()
    file.remove()
    assert list(folder.iterdir()) == []


def test_what_this_application_did_not_write_is_not_removed_and_no_folder_is_made_for_it(folder):
    (folder / "p.json").write_text("another's")
    PolicyFile(folder / "p.json").remove()
    PolicyFile(folder / "new" / "p.json").remove()
    assert [path.name for path in folder.iterdir()] == ["p.json"]


def test_what_a_killed_writer_left_is_removed_when_it_is_old(folder):
    old, young, other = (folder / f".{name}.unfinished" for name in ("p.json.00", "p.json.01", "q.json.00"))
    for path in (old, young, other):
        path.write_text("half")
    os.utime(old, (time.time() - 3600,) * 2)
    PolicyFile(folder / "p.json").write(b"{}")
    assert not old.exists()
    assert young.exists() and other.exists()


_HOLDER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.kernel.egress.updater import PolicyFile
file = PolicyFile(sys.argv[2])
for content in (b"[1]", b"[2]"):
    file.write(content)
if os.fork():
    sys.stdin.readline()
else:
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_a_second_application_is_refused_until_the_first_has_ended(folder):
    """The first writer keeps the lock, also after each write, until it is killed, even if its forks live on."""
    path = folder / "p.json"
    file = PolicyFile(path)
    with forked_programs.start(_HOLDER, SOURCES, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(PolicyFileRefused) as caught:
                file.write(b"[3]")
            assert str(path) in caught.value.what and "{pid}" in caught.value.fix
            file.remove()
            assert path.read_bytes() == b"[2]" and os.listdir(folder) == ["p.json"]
        finally:
            holder.kill()
            holder.wait()
        file.write(b"[3]")
        assert path.read_bytes() == b"[3]"
    file.remove()
    assert os.listdir(folder) == []


_WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from democrai_sandbox.kernel.egress import Endpoint
from democrai_sandbox.kernel.egress.updater import PolicyFile, encoded
file = PolicyFile(sys.argv[2])
contents = [encoded([Endpoint(f"h{n}.example", 1 + kind) for n in range(1, 200 + 100 * kind)]) for kind in range(2)]
for number in range(10**9):
    file.write(contents[number % 2])
    if number == 1:
        print("ready", flush=True)
"""


def test_readers_never_see_a_torn_file_also_when_writers_are_killed(folder):
    path = folder / "p.json"
    seen, torn, done = set(), [], threading.Event()

    def read():
        while not done.is_set():
            try:
                policy = parse_policy(path.read_bytes())
            except FileNotFoundError:
                continue
            except Exception as error:
                torn.append(error)
            else:
                seen.add((len(policy.endpoints), policy.endpoints[0].port))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(4):
            seen.clear()
            writer = forked_programs.start(_WRITER, SOURCES, path, stdout=subprocess.PIPE)
            try:
                writer.stdout.readline()
                end = time.monotonic() + 20
                while len(seen) < 2 and time.monotonic() < end:
                    time.sleep(0.01)
            finally:
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                writer.stdout.close()
            parse_policy(path.read_bytes())
    finally:
        done.set()
        reader.join()
    assert not torn
    assert seen == {(199, 1), (299, 2)}
    assert json.loads(path.read_bytes())["version"] == 1
