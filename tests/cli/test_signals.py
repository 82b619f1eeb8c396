"""Termination signals: partial work is removed, the terminal is restored, and the exit status is that of the signal."""

from __future__ import annotations

import signal
import subprocess
import termios

from tests.cli.goldens import COMMAND, environment, in_terminal
from tests.cli.local import configured
from tests.cli.odd_servers import EXPORT, Odd
from tests.console.serving import until

PATIENCE = 90
WAITING = """
import pathlib, time
from democrai_sandbox import sdk

@sdk.action("wait")
def wait():
    pathlib.Path("{marker}").touch()
    time.sleep(300)
"""


def test_an_export_and_a_recording_that_are_ended(tmp_path):
    """SIGTERM and SIGHUP leave no partial file and no folder."""
    work, temp, folder = (tmp_path / name for name in ("work", "temp", "waiting"))
    for place in (work, temp, folder):
        place.mkdir()
    with Odd(EXPORT, keeps=True) as odd:
        command = [*COMMAND, "audit", "export", "--url", odd.url, "--output", str(work / "audit.jsonl")]
        with subprocess.Popen(command, env=environment({"DEMOCRAI_TOKEN": "dsb_none"})) as export:
            assert odd.asked.wait(PATIENCE)
            export.send_signal(signal.SIGTERM)
            assert export.wait(PATIENCE) == -signal.SIGTERM
    assert list(work.iterdir()) == []
    (folder / "manifest.json").write_text('{"name": "waiting"}')
    marker = work / "begun"
    (folder / "module.py").write_text(WAITING.format(marker=marker))
    command = [*COMMAND, "record", "module", "--config", str(configured(tmp_path)), "--action", "wait", str(folder)]
    with subprocess.Popen(command, env=environment({"TMPDIR": str(temp)}), stderr=subprocess.PIPE) as recording:
        until(marker.exists, "recording")
        recording.send_signal(signal.SIGHUP)
        assert recording.communicate(timeout=PATIENCE)[1] == b""
        assert recording.returncode == -signal.SIGHUP
    assert list(temp.iterdir()) == []


def test_a_terminal_shows_again_what_is_typed(tmp_path):
    """A command killed at a password question restores the echo of the terminal."""
    with in_terminal(("admin", "create", "uma", "--config", configured(tmp_path))) as (process, screen):
        screen.read_until("assword")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
        assert termios.tcgetattr(screen.fd)[3] & termios.ECHO
