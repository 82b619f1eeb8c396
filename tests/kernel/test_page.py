"""Page about enforcement by the kernel: its example runs, and everything that it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.kernel.appcase import SECONDS, SOURCE

PAGE = SOURCE.parent / "docs" / "os-enforcement.md"


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path):
    """The program of the documentation runs unchanged."""
    program, expected = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL).groups()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert ended.stderr == ""
    assert [line.rstrip() for line in ended.stdout.splitlines()] == [line.rstrip() for line in expected.splitlines()]


def test_the_page_names_every_setting_and_every_control():
    """A key or control that is undocumented or removed fails this test."""
    from dataclasses import fields

    from democrai_sandbox.kernel import LandlockSettings, OsSettings, status

    text = PAGE.read_text()
    names = [field.name for field in (*fields(OsSettings), *fields(LandlockSettings))]
    names += [status.LANDLOCK, status.SECCOMP, status.SPAWN_SERVER, status.EGRESS, status.HELPER]
    assert [name for name in names if name not in text] == []
