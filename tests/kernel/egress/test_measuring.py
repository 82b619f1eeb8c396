"""Sockets, connections and leftovers are read correctly from the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from democrai_sandbox.kernel.egress.control import connections, internet_sockets, own_cgroup
from democrai_sandbox.kernel.egress.helper_process import sweep


def test_internet_sockets_are_found_by_what_they_are_and_others_are_not():
    before = internet_sockets()
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_INET6) as tcp:
        expected = {os.fstat(udp.fileno()).st_ino, os.fstat(tcp.fileno()).st_ino}
        assert internet_sockets() - before == expected
    assert internet_sockets() - before == set()


def test_the_far_ends_of_connections_are_told_for_both_families():
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((address, 0), family=family) as server:
            port = server.getsockname()[1]
            assert (address, port) not in connections()
            with socket.create_connection((address, port)):
                assert (address, port) in connections()


def test_a_mapped_address_is_told_as_what_it_is():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as link:
        link.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        assert ("127.0.0.1", server.getsockname()[1]) in connections()


def test_the_own_cgroup_is_what_the_kernel_writes():
    with open("/proc/self/cgroup") as lines:
        expected = [line[3:].rstrip("\n") for line in lines if line.startswith("0::")]
    assert own_cgroup() == (expected[0] if expected else "")


def _dead_pid():
    done = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    done.wait()
    return done.pid


def test_files_of_dead_processes_are_swept_and_those_of_living_ones_and_strangers_stay(tmp_path):
    dead = _dead_pid()
    gone = [
        tmp_path / f"os_sandbox_allowlist_{dead}.json",
        tmp_path / f".os_sandbox_allowlist_{dead}.json.00ff.unfinished",
        tmp_path / f"os_sandbox_helper_{dead}.sock",
    ]
    kept = [
        tmp_path / f"os_sandbox_allowlist_{os.getpid()}.json",
        tmp_path / "os_sandbox_allowlist_1.json",
        tmp_path / f"os_sandbox_allowlist_{dead}.json.bak",
        tmp_path / f"x_os_sandbox_helper_{dead}.sock",
    ]
    for path in gone + kept:
        path.write_text("")
    assert sorted(sweep(str(tmp_path), str(tmp_path))) == sorted(map(str, gone))
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert sweep(str(tmp_path), str(tmp_path / "missing")) == ()


def test_where_a_helper_listens_for_it_nothing_is_taken_for_a_leftover(tmp_path):
    dead = _dead_pid()
    (tmp_path / f"os_sandbox_allowlist_{dead}.json").write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / f"os_sandbox_helper_{dead}.sock"))
        listener.listen()
        assert sweep(str(tmp_path), str(tmp_path)) == ()
    assert len(sweep(str(tmp_path), str(tmp_path))) == 2
