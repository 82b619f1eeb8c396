"""Selection of the observed accesses that have to be declared."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from democrai_sandbox.runtime.calls.access_recorder import LIBRARY, OWN, RecordedAccess, RecordingDecider, needed


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".cache" / "fonts").mkdir(parents=True)
    (tmp_path / ".cache" / "fonts" / "list").touch()
    return tmp_path


def seen(operation, target, by):
    return RecordedAccess("filesystem", operation, str(target), by, "module.py:1")


def test_the_folders_around_one_that_a_library_makes_need_no_declaration(home):
    """They can be probed once the new folder is declared."""
    made = [seen("create", home / ".cache" / "fonts", LIBRARY), seen("read", home / ".cache" / "fonts", LIBRARY)]
    around = [seen("read", home, LIBRARY), seen("read", home / ".cache", LIBRARY)]
    assert list(needed([*around, *made])) == made


@pytest.mark.parametrize(
    ("made", "by"), [(".cache/fonts", OWN), (".cache/fonts/list", LIBRARY), (".cache/other", LIBRARY)]
)
def test_other_folders_that_are_read_are_declared(home, made, by):
    """The subject's own code may list them, and a library the folder in which it creates a file."""
    facts = [seen("read", home / ".cache", by), seen("create", home / made, LIBRARY)]
    assert list(needed(facts)) == facts


def look(target, by):
    return seen("read", target, by)._replace(probe=True)


def test_what_a_library_only_looks_at_is_not_needed(home):
    """The file looks absent to the library. The subject's own code fails instead."""
    facts = [look(home / ".cache", LIBRARY), look(home / ".cache" / "fonts", OWN)]
    assert list(needed(facts)) == facts[1:]


def test_folders_above_what_is_declared_can_be_looked_at(home):
    """By the subject's own code, too; a listed folder has to be declared."""
    used = seen("read", home / ".cache" / "fonts" / "list", OWN)
    assert list(needed([look(home, OWN), look(home / ".cache", OWN), used])) == [used]
    listed = seen("read", home / ".cache", OWN)
    assert list(needed([listed, look(home / ".cache", OWN), used])) == [listed, used]


def test_a_folder_that_stands_for_temporary_names_in_it_is_not_above_them(home):
    """The folder itself is declared, and probing it is not part of creating files in it."""
    made = seen("create", home / ".cache" / "tmpa1b2c3d4", OWN)
    facts = [look(home / ".cache", OWN), made]
    assert list(needed(facts)) == facts


@pytest.mark.parametrize("operation", ["create", "modify", "delete"])
def test_what_the_system_keeps_a_library_from_changing_is_not_told(tmp_path, monkeypatch, operation):
    """It gets the same error without an entry. What it asks for in a folder that is not there is told."""
    (tmp_path / "there").touch()
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    told = []
    for by in (LIBRARY, OWN):
        whence = SimpleNamespace(of=lambda _frame, by=by: (by, ""), above=frozenset())
        decider = RecordingDecider(None, told.append, whence)
        for target in (f"{tmp_path}/there", f"{tmp_path}/gone/x"):
            assert decider.decide(SimpleNamespace(resource_type="filesystem", operation=operation, target=target))
    assert [(fact[3], fact[2]) for fact in told] == [
        (LIBRARY, f"{tmp_path}/gone/x"),
        (OWN, f"{tmp_path}/there"),
        (OWN, f"{tmp_path}/gone/x"),
    ]
