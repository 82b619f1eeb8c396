"""The guard's attacks without the guard, against a process that only the kernel confines.

Promises of the kernel layer for a worker: it does not read files outside its rules, does not create, remove or change
anything there, and starts no program. It does not promise what Landlock does not restrict: metadata.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.guard.attacks.kit import Works
from tests.guard.attacks.test_attacks import ATTACKS, running_version, unmet

HERE = Path(__file__).parent

# Families about files, processes and sockets. Without the helper the kernel only restricts ports: addresses, and
# datagrams of a subject with a network rule, are restricted by the packet filter, which has separate tests. Families
# about descriptors, threads and objects of the host do not apply to a worker.
FILES = (
    *("library_openings", "native_openings", "file_reads"),
    *("file_writes", "process_starts", "separate_operations", "traversal"),
    *("path_prefixes", "links", "argument_races", "late_files"),
    *("special_files", "lookalike_names", "other_syscalls", "object_graph"),
    *("deferred_calls", "finalizers", "sql", "network_functions"),
    *("unix_socket_paths", "unix_sockets"),
)

INHERITED = "through a descriptor that the host had open: a worker is started without any"
COARSE = "create, modify and delete are one right at the kernel, which includes reading"
EXECUTABLE = "the kernel reads a program to execute it: execute is a read-only path"
DATAGRAM = "a subject with a network rule may send datagrams: without the helper nobody looks at where they go"
OWN_MEMORY = "a memory file of the process's own"

LEFT: dict[str, dict[str, str]] = {
    "network_functions": dict.fromkeys(
        ("datagram_connected", "datagram_sendto", "datagram_sendto_flags", "datagram_sendmsg"), DATAGRAM
    ),
    "separate_operations": {
        **dict.fromkeys(("without_read_read", "without_read_read_and_write", "without_read_os_open_both"), COARSE),
        "execute_is_not_read": EXECUTABLE,
    },
    "special_files": {"memory_file_by_name": OWN_MEMORY, "memory_file_by_number": OWN_MEMORY},
    "other_syscalls": {
        **dict.fromkeys(("splice_in", "sendfile_to_pipe", "out_copy_file_range_out"), INHERITED),
        **dict.fromkeys(("out_pwritev", "out_splice_out"), INHERITED),
    },
}

NOT_PLAYED = {"late_files:protected_appears": "the host has to act meanwhile, and is another process here"}


@pytest.fixture(scope="module")
def player():
    """One process for all attacks of this pytest worker."""
    command = [sys.executable, "-P", str(HERE / "player.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def play(player, entry) -> str:
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        order = {"file": entry.file, "name": entry.name, "base": f"{folder}/k"}
        player.stdin.write(json.dumps(order) + "\n")
        player.stdin.flush()
        return json.loads(player.stdout.readline())["verdict"]


def is_played(entry) -> bool:
    if entry.id in NOT_PLAYED:
        return False
    return entry.since <= running_version() <= entry.until and not isinstance(entry.expect, Works) and not unmet(entry)


@pytest.mark.parametrize("file", FILES)
def test_the_kernel_stops_what_it_promises_to(file: str, player) -> None:
    """Without a guard, nothing outside is read, changed or executed, except the listed cases."""
    verdicts = {entry.name: play(player, entry) for entry in ATTACKS if entry.file == file and is_played(entry)}
    broken = {name: verdict for name, verdict in verdicts.items() if verdict.startswith(("secret", "changed"))}
    assert broken.keys() == LEFT.get(file, {}).keys(), broken
    odd = {name: verdict for name, verdict in verdicts.items() if verdict.startswith(("unconfined", "hung", "crashed"))}
    assert not odd
    assert sum(verdict.startswith("stopped") for verdict in verdicts.values()) > 0
