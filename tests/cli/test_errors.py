"""Errors of commands: short lines without a traceback, and without new imports."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
from unittest import mock

import pytest

from democrai_sandbox.cli import entry, errors
from democrai_sandbox.errors import CommandRefused, ExtensionBroken, NodeRefused
from democrai_sandbox.policy import InvalidInputError
from tests.cli.goldens import COMMAND, environment

FORESEEN = [
    CommandRefused("no", fix="yes"),
    ExtensionBroken("broken"),
    InvalidInputError.of("not a path", pointer="/x"),
    NodeRefused(403, {"code": "scope_missing", "detail": "no"}),
    FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/nowhere"),
    OSError("a text alone"),
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    ModuleNotFoundError("No module named 'yaml'", name="yaml"),
    ImportError("/x lies where extensions can write"),
]


def without_imports(function, *arguments):
    """Call a function while every import fails; pytest itself imports before and after."""

    def refuse(name, *_arguments, **_keywords):
        raise ImportError(f"imported at the time of the error: {name}")

    with mock.patch.object(builtins, "__import__", refuse):
        return function(*arguments)


@pytest.mark.parametrize("error", FORESEEN, ids=lambda error: type(error).__name__)
def test_a_foreseen_error_is_told_without_an_import(error, capsys):
    """The error is reported with the status of a failure."""
    assert without_imports(errors.report_error, error) == 1
    said = capsys.readouterr().err
    assert said.strip()
    assert "Errno" not in said


def test_an_error_of_the_system_names_its_file(capsys):
    """The text has the code, the file and the system error."""
    errors.report_error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/nowhere/x"))
    code, file, text = capsys.readouterr().err.strip().split(": ")
    assert (code, file, text) == ("command_refused", "/nowhere/x", os.strerror(errno.ENOENT))


def test_an_unforeseen_error_is_two_lines(monkeypatch, capsys):
    """Class and text, printable, and how to see the traceback."""
    _break(monkeypatch, ZeroDivisionError("by\x1b[31m zero"))
    assert entry.main(["config", "show"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.split(": ")[:2] == ["internal_error", "ZeroDivisionError"]
    assert first.isprintable()
    assert "DEMOCRAI_TRACEBACK=1" in second


def test_the_traceback_is_shown_to_who_asks_for_it(monkeypatch):
    """A variable enables the traceback."""
    _break(monkeypatch, ZeroDivisionError("by zero"))
    monkeypatch.setenv("DEMOCRAI_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        entry.main(["config", "show"])


def _break(monkeypatch, error):
    def fail(_options):
        raise error

    monkeypatch.setattr(entry, "_done", fail)


def test_a_package_that_is_missing_is_one_refusal(tmp_path):
    """The first import of a command fails in an incomplete environment."""
    (tmp_path / "yaml.py").write_text("raise ImportError('broken', name='yaml')\n")
    done = subprocess.run(
        [*COMMAND, "config", "show"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment({"PYTHONPATH": str(tmp_path)}),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "'yaml'" in done.stderr and sys.prefix in done.stderr
