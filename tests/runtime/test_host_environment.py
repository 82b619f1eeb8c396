"""Later children of the host start with the environment from before any extension ran."""

from __future__ import annotations

import sys

from democrai_sandbox.runtime import child_process
from democrai_sandbox.runtime.installs import installer


def test_the_interpreter_of_the_hosts_children_is_the_one_from_before(monkeypatch):
    """Extensions share ``sys`` with the host: their changes must not select the program that the host runs."""
    genuine = installer.BASE_INTERPRETER
    monkeypatch.setattr(sys, "executable", "/planted/python")
    monkeypatch.setattr(sys, "_base_executable", "/planted/python")
    monkeypatch.setattr(sys, "prefix", "/planted")
    paths = (
        installer.BASE_INTERPRETER,
        child_process.BASE_INTERPRETER,
        child_process.INTERPRETER,
        child_process.PREFIX,
    )
    assert genuine
    assert not any("planted" in path for path in paths)
