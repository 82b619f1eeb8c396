"""Status of Landlock on a machine, also without Landlock."""

from __future__ import annotations

import errno
import sys
from types import SimpleNamespace

import pytest

from democrai_sandbox.errors import KernelLayerError, KernelUnsupported
from democrai_sandbox.kernel.landlock import rights
from democrai_sandbox.kernel.landlock.rights import READ, NetRight, landlock_support
from democrai_sandbox.kernel.landlock.ruleset import PathRule, PortRule, RulesetPlan, apply, build
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture
def kernel(monkeypatch):
    """Simulate a kernel with an ABI, with nothing forced."""

    def play(abi, number=0, *, forced=None):
        native = SimpleNamespace(landlock_abi=lambda: abi, landlock_errno=lambda: number)
        monkeypatch.setattr(rights, "native_module", lambda: native)
        monkeypatch.setattr(rights, "_limit_from_environment", lambda: forced)

    return play


@rows(
    ("name", "number"),
    [("not built", errno.ENOSYS), ("not enabled", errno.EOPNOTSUPP), ("refused", errno.EPERM), ("other", errno.EIO)],
)
def test_each_reason_for_there_being_none_has_its_fix(kernel, name, number):
    """Nothing is restricted, and the status has the reason and the fix."""
    kernel(0, number)
    status = apply(RulesetPlan())
    assert status.state == "unsupported"
    assert status.details["abi"] == 0
    sentence(name, f"{status.reason}\n{status.fix}")


def test_a_system_without_the_compiled_part_is_unsupported(monkeypatch):
    """The module is not built on other systems than Linux; the rest can be imported and reports it."""
    monkeypatch.delattr("democrai_sandbox.kernel._native", raising=False)
    monkeypatch.setitem(sys.modules, "democrai_sandbox.kernel._native", None)
    found = landlock_support()
    assert (found.abi, found.kernel_abi) == (0, 0)
    status = apply(RulesetPlan())
    assert status.state == "unsupported"
    with pytest.raises(KernelUnsupported) as refused:
        build(RulesetPlan(), 7).__enter__()
    assert refused.value.what == found.reason == status.reason
    sentence("no compiled part", found.reason)


@rows(
    ("kernel_abi", "forced", "used", "was_forced", "threads"),
    [
        (7, None, 7, False, False),
        (7, 3, 3, True, False),
        (3, 7, 3, False, False),
        (7, 0, 0, True, False),
        (11, None, 7, False, True),
        (8, None, 7, False, True),
        (8, 7, 7, True, False),
        (8, 8, 7, False, True),
    ],
)
def test_the_abi_is_the_lowest_of_kernel_force_and_knowledge(kernel, kernel_abi, forced, used, was_forced, threads):
    """A forced ABI can only lower it, and existing threads are covered only by a kernel that supports it."""
    for by_argument in (True, False):
        kernel(kernel_abi, forced=None if by_argument else forced)
        found = landlock_support(forced if by_argument else None)
        assert (found.abi, found.kernel_abi, found.forced) == (used, kernel_abi, was_forced)
        assert found.synchronises_threads is threads


@rows("text", ["seven", "-1", "3.5", "٣", "0x3"])
def test_a_forced_abi_that_is_no_number_is_refused(monkeypatch, text):
    """A typing error does not silently disable anything."""
    monkeypatch.setenv(rights.FORCED, text)
    rights._limit_from_environment.cache_clear()
    try:
        with pytest.raises(KernelLayerError, match=rights.FORCED) as refused:
            landlock_support()
        assert refused.value.fix
    finally:
        rights._limit_from_environment.cache_clear()


def test_the_environment_is_looked_at_once(monkeypatch):
    """Later changes of the variable have no effect."""
    monkeypatch.delenv(rights.FORCED, raising=False)
    rights._limit_from_environment.cache_clear()
    try:
        before = landlock_support()
        monkeypatch.setenv(rights.FORCED, "0")
        assert landlock_support() == before
    finally:
        rights._limit_from_environment.cache_clear()


@rows("path", ["", "relative", "./here", "/with\0nul"])
def test_a_rule_needs_an_absolute_path(path):
    """A relative path would depend on the working directory."""
    with pytest.raises(KernelLayerError) as refused:
        PathRule(path, READ)
    assert repr(path) in refused.value.what and refused.value.fix


@rows("port", [-1, 65536])
def test_a_rule_needs_a_port(port):
    """The kernel would refuse the whole ruleset for it."""
    with pytest.raises(KernelLayerError) as refused:
        PortRule(port, NetRight.CONNECT_TCP)
    assert repr(port) in refused.value.what and "65535" in refused.value.fix


def test_no_ruleset_is_made_for_a_kernel_without_landlock():
    """Using it anyway raises a distinct error."""
    with pytest.raises(KernelUnsupported):
        build(RulesetPlan(), 0).__enter__()
