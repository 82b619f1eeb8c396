"""``python -m democrai_sandbox.kernel``, and the page of the documentation: both say what really happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.appcase import SECONDS, SOURCE
from tests.kernel.netlab import Lab, needs_netlab

PAGE = SOURCE.parent / "docs" / "os-enforcement.md"


def command(*arguments, environment=None, run=subprocess.run):
    return run(
        [sys.executable, "-B", "-m", "democrai_sandbox.kernel", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})},
    )


def test_the_command_says_what_this_machine_can_do():
    """Text for people: every control with its state, and every attempt with its outcome."""
    ended = command()
    assert re.search(r"^landlock +active +\(ABI \d+\)$", ended.stdout, re.MULTILINE)
    assert re.search(r"^seccomp +active$", ended.stdout, re.MULTILINE)
    assert "ok   process             execve: killed by SIGSYS" in ended.stdout
    assert ended.stderr == ""
    assert ended.returncode == (0 if "possible, not tried" in ended.stdout else 1)


def test_the_command_prints_plain_data_and_fails_on_a_degraded_machine():
    """With ``--json`` the same as data; exit code 1 where something is less than active."""
    ended = command("--json", environment={"DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI": "0"})
    data = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert data["controls"]["landlock"]["state"] == "unsupported"
    assert data["controls"]["seccomp"]["state"] == "active"
    assert {"act", "where", "outcome", "ok"} <= set(data["selftest"][0])


@needs_netlab
def test_the_command_tries_the_helper_when_asked_to():
    """With ``--egress`` all five controls are tried for real."""
    with Lab() as lab:
        ended = command("--json", "--egress", run=lab.inside.run)
        assert "DEMOCRAI" not in lab.inside.rules()
    states = {name: control["state"] for name, control in json.loads(ended.stdout)["controls"].items()}
    assert states == dict.fromkeys(("landlock", "seccomp", "spawn_server", "egress", "helper"), "active")
    assert ended.returncode == 0


@pytest.mark.parametrize(
    "what",
    [("sudoers", "--user", "nobody"), ("polkit", "--user", "nobody"), ("systemd",)],
    ids=["sudoers", "polkit", "systemd"],
)
def test_the_command_hands_on_to_what_prints_the_administrators_files(what):
    """``sudoers``, ``polkit`` and ``systemd`` print what the helper's own command prints."""
    ours = command(*what)
    argv = [sys.executable, "-B", "-m", "democrai_sandbox.kernel.helper.printing", *what]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    theirs = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert ours.stdout == theirs.stdout != ""
    assert ours.returncode == theirs.returncode


def test_the_example_of_the_page_prints_what_the_page_says(tmp_path):
    """The program of the documentation runs as it stands."""
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
    """A key or control that is not described, or no longer exists, is noticed."""
    from dataclasses import fields

    from democrai_sandbox.kernel import LandlockSettings, OsSettings, status

    text = PAGE.read_text()
    names = [field.name for field in (*fields(OsSettings), *fields(LandlockSettings))]
    names += [status.LANDLOCK, status.SECCOMP, status.SPAWN_SERVER, status.EGRESS, status.HELPER]
    assert [name for name in names if name not in text] == []
