"""Tables of rights, compared with the kernel's header and the running kernel."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock.rights import (
    DEVICE,
    EXECUTE,
    FEATURES,
    HIGHEST_ABI,
    READ,
    WRITE,
    FsRight,
    NetRight,
    ScopeRight,
    supported,
)
from tests.services.rows import rows

HEADER = Path("/usr/include/linux/landlock.h")
BIT = re.compile(r"#define\s+LANDLOCK_(ACCESS_FS|ACCESS_NET|SCOPE)_(\w+)\s+\(1ULL << (\d+)\)")
NAMES = {"ABSTRACT_UNIX_SOCKET": "ABSTRACT_UNIX"}
FIRST = {0: (0, 0, 0), 1: (13, 0, 0), 2: (14, 0, 0), 3: (15, 0, 0), 4: (15, 2, 0), 5: (16, 2, 0), 6: (16, 2, 2)}
"""Number of bits for files, ports and scopes in each ABI, from the kernel's documentation."""


@pytest.mark.skipif(not HEADER.is_file(), reason="the kernel's headers are not installed")
def test_bits_are_those_of_the_kernels_header():
    """Each bit of the header has our name and the same value. An older header has fewer."""
    kinds = {"ACCESS_FS": FsRight, "ACCESS_NET": NetRight, "SCOPE": ScopeRight}
    found = BIT.findall(HEADER.read_text())
    assert len(found) >= 13
    for kind, name, place in found:
        if 1 << int(place) > max(kinds[kind]):
            continue  # newer than the known rights
        assert kinds[kind][NAMES.get(name, name)] == 1 << int(place)


@rows("abi", range(12))
def test_an_abi_handles_what_it_knows_and_no_bit_more(abi):
    """An older kernel refuses a ruleset with one unknown bit; a newer kernel is used like the newest known one."""
    known = supported(abi)
    files, ports, scopes = FIRST[min(abi, 6)]
    assert (known.fs, known.net, known.scoped) == ((1 << files) - 1, (1 << ports) - 1, (1 << scopes) - 1)
    assert known.abi == min(abi, HIGHEST_ABI)
    assert known.features + known.lacking == FEATURES
    assert all(feature.abi <= abi for feature in known.features)


@rows("abi", range(1, 8))
def test_the_kernel_takes_the_handled_sets_of_every_abi(abi):
    """Creating a ruleset restricts no process."""
    known = supported(abi)
    os.close(_native.landlock_create(known.fs, known.net, known.scoped))


OF_FILES = FsRight.EXECUTE | FsRight.WRITE_FILE | FsRight.READ_FILE | FsRight.TRUNCATE | FsRight.IOCTL_DEV


@rows("right", list(FsRight), ids=lambda right: right.name)
def test_a_rule_for_a_file_has_the_rights_that_the_kernel_takes_for_one(right, tmp_path):
    """The kernel refuses rights of folders on a file; a path that has no other rights gets no rule."""
    (tmp_path / "file").touch()
    ruleset = _native.landlock_create(int(right), 0, 0)
    try:
        assert _native.landlock_add_path(ruleset, str(tmp_path / "file"), int(right), False) is True
    finally:
        os.close(ruleset)
    try:  # without a ruleset, only an attempt to add a rule fails
        added = not _native.landlock_add_path(-1, str(tmp_path / "file"), int(right), False)
    except OSError as error:
        added = error.errno == errno.EBADF
    assert added is (right in OF_FILES)


def test_no_group_makes_device_nodes_or_commands_devices():
    """Either would bypass every file rule."""
    never = FsRight.MAKE_BLOCK | FsRight.MAKE_CHAR | FsRight.IOCTL_DEV
    for group in (READ, EXECUTE, WRITE, DEVICE):
        assert not group & never
    assert FsRight.EXECUTE not in WRITE
    assert READ & WRITE == READ
