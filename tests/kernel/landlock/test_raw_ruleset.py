"""Rulesets from plain numbers, as in the spawn server."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock import raw_ruleset
from democrai_sandbox.kernel.landlock.rights import READ, WRITE, supported
from democrai_sandbox.kernel.landlock.ruleset import PathRule, RulesetPlan, build
from tests.services.rows import rows

ALONE = """
import importlib.machinery, importlib.util, json, os, sys
def load(name, path, kind):
    spec = importlib.util.spec_from_loader(name, kind(name, path), origin=path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
native = load("_native", sys.argv[1], importlib.machinery.ExtensionFileLoader)
raw_ruleset = load("raw_ruleset", sys.argv[2], importlib.machinery.SourceFileLoader)
fs, allowed, absent, secret = 7 << 1, *sys.argv[3:]
fd, missing = raw_ruleset.build(native, fs, 0, 0, [(allowed, fs), (absent, fs)], [])
native.landlock_restrict(fd)
try:
    open(secret)
except PermissionError:
    refused = True
else:
    refused = False
ours = [name for name in sys.modules if "democrai" in name or name in ("typing_extensions", "ctypes")]
print(json.dumps([missing, os.listdir(allowed), refused, ours]))
"""


class Recorder:
    """Compiled module that only records calls; it returns real descriptors, so that leaks are detected."""

    def __init__(self, failure=None):
        self.failure = failure
        self.rules = []

    def landlock_create(self, fs, net, scoped):
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def landlock_add_path(self, ruleset, path, access, exact):
        if self.failure is not None:
            raise self.failure
        self.rules.append((path, access, exact))
        return os.path.exists(path)

    def landlock_add_port(self, ruleset, port, access):
        self.rules.append((port, access))


def descriptors():
    return set(os.listdir("/proc/self/fd"))


def test_it_works_in_an_interpreter_that_has_nothing_of_ours(tmp_path):
    """Both files are loaded by path, isolated and without site; nothing else of the package is imported."""
    (tmp_path / "allowed").mkdir()
    (tmp_path / "secret").touch()
    places = [str(tmp_path / name) for name in ("allowed", "absent", "secret")]
    command = [sys.executable, "-I", "-S", "-B", "-c", ALONE, _native.__file__, raw_ruleset.__file__, *places]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    missing, listed, refused, ours = json.loads(child.stdout)
    assert missing == [places[1]]
    assert listed == []
    assert refused is True
    assert ours == []


def test_rights_are_masked_by_what_is_handled(tmp_path):
    """The kernel refuses a rule with an unknown bit, and an empty one: neither is sent."""
    recorder = Recorder()
    place, absent = str(tmp_path), str(tmp_path / "absent")
    fd, missing = raw_ruleset.build(recorder, 0x1FFF, 2, 0, [(place, 0xFFFF), (absent, 1)], [(80, 3), (81, 1), (82, 2)])
    os.close(fd)
    assert missing == [absent]
    assert recorder.rules == [(place, 0x1FFF, False), (absent, 1, False), (80, 2), (82, 2)]


@rows("exact", [True, False])
def test_a_link_counts_as_missing_only_with_exact(tmp_path, exact):
    """A process with write access may have placed it since the path was checked."""
    (tmp_path / "folder").mkdir(exist_ok=True)
    if not os.path.islink(tmp_path / "link"):
        (tmp_path / "link").symlink_to("folder")
    paths = [(str(tmp_path / name), 4) for name in ("folder", "link", "link/.", "absent", "folder/absent/below")]
    fd, missing = raw_ruleset.build(_native, 4, 0, 0, paths, [], exact=exact)
    os.close(fd)
    assert [os.path.relpath(path, tmp_path) for path in missing] == (["link"] * 2 if exact else []) + [
        "absent",
        "folder/absent/below",
    ]


@rows("number", [errno.EINVAL, errno.ENOMEM, errno.EBADF])
def test_a_failure_leaves_no_descriptor_behind(tmp_path, number):
    """The ruleset and the path are closed, and the error is not treated as a missing path."""
    before = descriptors()
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        raw_ruleset.build(Recorder(OSError(number, os.strerror(number))), 1, 0, 0, [(str(tmp_path), 1)], [])
    assert raised.value.errno == number
    assert descriptors() <= before  # other threads may have closed some meanwhile


def test_a_path_with_a_nul_is_an_error_and_leaves_nothing_behind():
    """The value is not a valid path."""
    before = descriptors()
    with pytest.raises(ValueError, match="null"):
        raw_ruleset.build(_native, 1, 0, 0, [("/etc\0", 1)], [])
    assert descriptors() <= before


def test_running_out_of_descriptors_is_not_taken_for_a_missing_path(tmp_path):
    """Otherwise a busy process would silently get fewer rules."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = RulesetPlan((PathRule(str(tmp_path), READ),))
    highest = max(map(int, descriptors()))
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):  # noqa: PT012 - the loop uses up the descriptors
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        os.close(taken.pop())  # one for the ruleset, none for the path
        with pytest.raises(KernelLayerError) as refused:
            build(plan, 7).__enter__()
        assert refused.value.__cause__.errno == errno.EMFILE
        assert refused.value.fix
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def test_a_built_ruleset_says_what_it_covers_and_is_closed(tmp_path):
    """The descriptor is closed after the block, and is not inherited by programs."""
    before = descriptors()
    plan = RulesetPlan((PathRule(str(tmp_path), WRITE), PathRule("/absent", READ)), scopes=False)
    with build(plan, 2) as built:
        assert built.covered == (str(tmp_path),)
        assert built.missing == ("/absent",)
        assert built.features == ("files", "refer")
        assert not os.get_inheritable(built.fd)
    assert descriptors() <= before
