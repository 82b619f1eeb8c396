"""Explanations match reality: a module in a real sandbox tries each access."""

from __future__ import annotations

from pathlib import Path

from tests.services.forks import HostCase

PROGRAM = str(Path(__file__).with_name("explaining_program.py"))


def asked_and_done(world):
    import asyncio

    base = Path(world.base, "house")
    base.mkdir()
    return asyncio.run(world.load(PROGRAM)["main"](base))


def test_an_explanation_is_what_happens(tmp_path):
    """For files and URLs: declared, approved, the subject's, the runtime's and the host's, also in call chains.

    Also for paths with dots, through links, and for a folder that contains the host's state: an approval to delete it
    opens only the files beside the state.
    """
    found = HostCase(tmp_path).run(asked_and_done)
    wrong = [row for row in found if (row[2] == "allowed") is not row[3]]
    assert wrong == []
    allowed = {(operation, Path(target).name) for operation, target, _, happened in found if happened}
    assert {("read", "passwd"), ("read", "group"), ("receive", "yes"), ("modify", "x")} <= allowed
    assert {("modify", "null"), ("delete", "full")} <= allowed and ("delete", "house") not in allowed
    assert sum(1 for row in found if not row[3]) >= 6
    dotted = [happened for operation, target, _, happened in found if operation == "read" and "/../" in target]
    assert dotted == [False, True, True, False]  # the first by the folder before the dots, the last by its target
    plain = [row for row in found if ":" in row[0] and "/../" not in row[1]]
    inside = {(command, Path(target).name): happened for command, target, _, happened in plain}
    assert inside["tool:probe.own", "passwd"] is inside["tool:probe.bare", "passwd"] is True
    assert inside["tool:probe.own", "x"] is False
    assert inside["tool:probe.bare", "module.py"] is True
