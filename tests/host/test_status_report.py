"""Controls of the kernel layer as lines of a report."""

from __future__ import annotations

from democrai_sandbox.host.status_report import ReportLineState, control_line
from democrai_sandbox.kernel.status import ControlState, ControlStatus
from tests.services.golden import sentence


def test_what_is_in_force_is_told_with_its_facts():
    """Each line is complete in itself; a missing measurement shortens it."""
    details = {"architecture": "x86_64", "threads": 3, "threads_covered": 3}
    told = control_line(ControlStatus("seccomp", ControlState.ACTIVE, details=details), wanted=True)
    bare = control_line(ControlStatus("seccomp", ControlState.ACTIVE), wanted=True)
    late = control_line(ControlStatus("egress", ControlState.ACTIVE, details={"last_apply": None}), wanted=True)
    assert {line.state for line in (told, bare, late)} == {ReportLineState.OK}
    assert "x86_64" in told.summary
    assert told.summary.startswith(bare.summary)
    assert late.summary == bare.summary
    sentence("controls in force", f"{told.summary}\n{bare.summary}")
