"""Debug log: lines on standard error if enabled, with masked session keys."""

from __future__ import annotations

import io
import sys

from democrai_sandbox.kernel import FlowLog
from democrai_sandbox.kernel.flow_log import SWITCH, masked_key
from tests.services.rows import rows

KEY = "session-key-of-uma-2f9c"


@rows("value", [None, "", "0", "false", "No", " off "])
def test_nothing_is_printed_unless_asked_for(monkeypatch, capsys, value):
    """Without the variable, or with a negative value, nothing is written."""
    if value is None:
        monkeypatch.delenv(SWITCH, raising=False)
    else:
        monkeypatch.setenv(SWITCH, value)
    FlowLog()("helper_started", pid=7)
    assert capsys.readouterr() == ("", "")


@rows("value", ["1", "true", "yes"])
def test_a_line_names_the_event_and_its_details(monkeypatch, capsys, value):
    """The documented variable prints one line per event, on standard error only."""
    monkeypatch.setenv(SWITCH, value)
    FlowLog()("helper_started", pid=7, socket="/run/x.sock")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[OS_SANDBOX_FLOW] helper_started pid=7 socket='/run/x.sock'\n"


@rows("name", ["session", "session_key"])
def test_session_keys_are_masked(capsys, name):
    """A key never appears; two lines of the same session have the same mask."""
    flow = FlowLog(enabled=True)
    flow("refresh", **{name: KEY})
    flow("apply", **{name: KEY})
    flow("apply", **{name: "another"})
    lines = capsys.readouterr().err.splitlines()
    assert KEY not in "".join(lines)
    marks = [line.rpartition("=")[2] for line in lines]
    assert marks[0] == marks[1] != marks[2]


def test_a_missing_key_stays_missing():
    """A missing session is shown as empty, not as a mask."""
    assert masked_key(None) == masked_key("") == ""


def test_a_line_is_one_line(capsys):
    """A value with line ends cannot forge a second line."""
    FlowLog(enabled=True)("resolved", host="a\n[OS_SANDBOX_FLOW] forged")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_closed_standard_error_does_not_matter(monkeypatch):
    """If the reader closes, the work continues."""
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    FlowLog(enabled=True)("apply")
