"""Reported coverage of a filter."""

from __future__ import annotations

import errno
import re
import sys

import pytest

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel.seccomp import (
    APPLICATION,
    Architecture,
    apply,
    now,
    process_filter,
    support,
    this_architecture,
)
from democrai_sandbox.kernel.seccomp.process_filter import parsed, threads
from democrai_sandbox.kernel.status import ControlState, ControlStatus
from tests.kernel.seccomp.children import told
from tests.services.rows import rows

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or this_architecture() is None, reason="needs Linux on x86_64 or aarch64"
)


def test_support_says_that_it_could_be_applied_and_applies_nothing():
    found = told("""
        status = support()
        tell(state=status.state, mode=_native.seccomp_mode(), nnp=_native.no_new_privs(), **status.details)
    """)
    assert found == {"state": "off", "mode": 0, "nnp": False, "architecture": this_architecture().value}


def test_the_status_counts_what_is_refused_and_measures_the_threads():
    found = told("""
        status = apply(APPLICATION)
        tell(mode=_native.seccomp_mode(), nnp=_native.no_new_privs(), **status.as_dict())
    """)
    details = found.pop("details")
    assert found == {"mode": 2, "nnp": True, "name": "seccomp", "state": "active", "reason": "", "fix": ""}
    assert {action: len(names) for action, names in details.pop("syscalls").items()} == {
        "kill_process": 22,
        "eperm": 38 if this_architecture() is Architecture.X86_64 else 36,
        "enosys": 4,
        "inspected": 5,
    }
    assert details == {
        "architecture": this_architecture().value,
        "filters": 1,
        "synchronised": True,
        "threads": 1,
        "threads_covered": 1,
        "threads_not_covered": [],
    }


def test_threads_that_were_there_before_are_covered():
    found = told("""
        holders = [Holder() for _ in range(3)]
        before = [holder.do(lambda: call("unshare")) for holder in holders]
        status = apply(APPLICATION)
        tell(before=before, after=[holder.do(lambda: call("unshare")) for holder in holders], state=status.state,
             threads=status.details["threads"], covered=status.details["threads_covered"],
             privileges=[holder.do(_native.no_new_privs) for holder in holders])
    """)
    assert found == {
        "before": ["ok"] * 3,
        "after": ["EPERM"] * 3,
        "state": "active",
        "threads": 4,
        "covered": 4,
        "privileges": [True] * 3,
    }


_DIVERGED = """
        other, bare = Holder(), Holder()
        other.do(lambda: _native.seccomp_install(program(NO_EXEC), 0))
        status = apply(APPLICATION)
"""


def test_a_thread_with_another_filter_makes_it_partial_and_is_counted_though_it_is_filtered():
    """The kernel returns the thread's id, which is not a success, and installs nothing."""
    found = told(
        _DIVERGED
        + """
        own = threading.get_native_id()
        tell(own=call("unshare"), other=other.do(lambda: call("unshare")), bare=bare.do(lambda: call("unshare")),
             started_later=Holder().do(lambda: call("unshare")), expected=sorted([other.native_id, bare.native_id]),
             **status.as_dict())
    """
    )
    details = found["details"]
    assert (found["own"], found["started_later"]) == ("EPERM", "EPERM")
    assert (found["other"], found["bare"]) == ("ok", "ok")
    assert found["state"] == "partial"
    assert re.findall(r"\d+", found["reason"]) == ["2", "3"]
    assert found["fix"] == process_filter._FIX_THREADS
    assert (details["threads"], details["threads_covered"], details["synchronised"]) == (3, 1, False)
    assert details["threads_not_covered"] == found["expected"]


def test_measured_again_it_follows_the_threads_but_never_becomes_active():
    found = told(
        _DIVERGED
        + """
        later = Holder()
        child_of_bare = bare.do(Holder)
        child_of_bare.do(lambda: None)
        first = now(status)
        for holder in (other, bare, child_of_bare):
            holder.end()
        deadline = time.monotonic() + 30
        while len(os.listdir("/proc/self/task")) > 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        second = now(first)
        tell(first=[first.state, first.details["threads"], first.details["threads_covered"]],
             second=[second.state, second.details["threads"], second.details["threads_covered"]])
    """
    )
    assert found == {"first": ["partial", 5, 2], "second": ["partial", 2, 2]}


def test_measured_again_an_active_filter_covers_threads_that_came_later():
    found = told("""
        status = apply(APPLICATION)
        holders = [Holder() for _ in range(4)]
        again = now(status)
        tell(state=again.state, threads=again.details["threads"], covered=again.details["threads_covered"])
    """)
    assert found == {"state": "active", "threads": 5, "covered": 5}


def test_measured_again_what_was_not_applied_stays_what_it_was():
    status = ControlStatus("seccomp", ControlState.UNSUPPORTED, "reason", "fix")
    assert now(status) is status


@rows(
    ("filters", "text"),
    [
        (2, "Seccomp:\t0\nSeccomp_filters:\t0\n"),
        (2, "Seccomp:\t2\nSeccomp_filters:\t1\n"),
        (None, "Seccomp:\t0\n"),
    ],
    ids=["none", "fewer", "none on an older kernel"],
)
def test_a_thread_without_the_filter_is_never_called_active(monkeypatch, filters, text):
    """If the kernel ever reports success but omits a thread, the count shows it."""
    full = parsed("Seccomp:\t2\n" + (f"Seccomp_filters:\t{filters}\n" if filters else ""))
    monkeypatch.setattr(process_filter, "threads", lambda: {1: full, 2: parsed(text)})
    details = {"filters": filters, "synchronised": True}
    status = now(ControlStatus("seccomp", ControlState.ACTIVE, details=details))
    assert (status.state, status.details["threads_not_covered"]) == (ControlState.PARTIAL, (2,))


def test_a_kernel_that_does_not_count_filters_is_measured_by_mode(monkeypatch):
    monkeypatch.setattr(process_filter, "threads", lambda: {1: parsed("Name:\tx\nSeccomp:\t2\n")})
    status = now(ControlStatus("seccomp", ControlState.ACTIVE, details={"filters": None, "synchronised": True}))
    assert status.state is ControlState.ACTIVE


def test_a_threads_name_does_not_pass_for_its_state():
    text = "Name:\tSeccomp:\t2\nUmask:\t0022\nSeccomp:\t0\nSeccomp_filters:\t0\n"
    assert parsed(text) == (False, 0)


def test_threads_that_cannot_be_counted_are_not_called_covered():
    found = told("""
        from democrai_sandbox.kernel.seccomp import process_filter
        from pathlib import Path
        process_filter._TASKS = Path("/nonexistent")
        status = apply(APPLICATION)
        tell(held=call("unshare"), state=status.state, again=now(status).state, reason=status.reason, fix=status.fix)
    """)
    assert (found["held"], found["state"], found["again"]) == ("EPERM", "partial", "partial")
    assert "/proc/self/task" in found["reason"] and found["fix"] == process_filter._FIX_PROC


def test_every_thread_of_this_process_is_listed():
    import threading

    assert threading.get_native_id() in threads()


@rows(
    ("number", "fix"),
    [
        (errno.EINVAL, process_filter._FIX_KERNEL),
        (errno.ENOSYS, process_filter._FIX_KERNEL),
        (errno.EPERM, process_filter._FIX_OUTER),
        (errno.EACCES, process_filter._FIX_OUTER),
    ],
)
def test_a_kernel_that_will_not_is_reported_as_unsupported(monkeypatch, number, fix):
    """A kernel without filters and a container that forbids them have different fixes."""

    def install(code, flags):
        raise OSError(number, "said the kernel")

    monkeypatch.setattr(process_filter._native, "seccomp_install", install)
    status = apply(APPLICATION)
    assert status.state is ControlState.UNSUPPORTED
    assert "said the kernel" in status.reason and status.fix == fix
    assert status.details["errno"] == errno.errorcode[number]


def test_anything_else_that_goes_wrong_is_an_error_not_a_status(monkeypatch):
    def install(code, flags):
        raise OSError(errno.ENOMEM, "too many filters")

    monkeypatch.setattr(process_filter._native, "seccomp_install", install)
    with pytest.raises(KernelLayerError, match="too many filters") as failed:
        apply(APPLICATION)
    assert failed.value.code == "os_sandbox_failed" and failed.value.fix


def test_filters_pile_up_to_the_kernels_limit_and_then_it_is_an_error():
    found = told("""
        from democrai_sandbox.errors import KernelLayerError
        count = 0
        try:
            while count < 1000:
                apply(APPLICATION)
                count += 1
        except KernelLayerError as error:
            tell(count=count, code=error.code, held=call("unshare"))
    """)
    assert 100 < found["count"] < 1000
    assert found["code"] == "os_sandbox_failed"
    assert found["held"] == "EPERM"


def test_an_architecture_without_a_table_is_unsupported_and_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(process_filter, "this_architecture", lambda: None)
    monkeypatch.setattr(process_filter._native, "seccomp_install", lambda *_: pytest.fail("installed"))
    for status in (support(), apply(APPLICATION)):
        assert status.state is ControlState.UNSUPPORTED
        assert "x86_64 or aarch64" in status.fix


def test_a_kernel_without_filters_is_unsupported(monkeypatch, tmp_path):
    monkeypatch.setattr(process_filter, "_ACTIONS", tmp_path / "missing")
    monkeypatch.setattr(process_filter, "threads", lambda: {1: parsed("Name:\tx\nSeccomp:\t0\n")})
    monkeypatch.setattr(process_filter._native, "seccomp_install", lambda *_: pytest.fail("installed"))
    assert apply(APPLICATION).state is ControlState.UNSUPPORTED


def test_a_hidden_proc_does_not_pass_for_a_kernel_without_filters(monkeypatch, tmp_path):
    monkeypatch.setattr(process_filter, "_ACTIONS", tmp_path / "missing")
    assert support().state is ControlState.OFF


def test_a_kernel_that_cannot_end_a_process_is_unsupported(monkeypatch, tmp_path):
    (tmp_path / "actions").write_text("kill_thread trap errno trace allow\n")
    monkeypatch.setattr(process_filter, "_ACTIONS", tmp_path / "actions")
    status = support()
    assert status.state is ControlState.UNSUPPORTED
    assert "kill_process" in status.reason and "errno" not in status.reason
