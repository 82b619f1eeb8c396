"""Which of the observed accesses have to be declared."""

from __future__ import annotations

import pytest

from democrai_sandbox.runtime.noticing import LIBRARY, OWN, Noticed, needed


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".cache" / "fonts").mkdir(parents=True)
    (tmp_path / ".cache" / "fonts" / "list").touch()
    return tmp_path


def seen(operation, target, by):
    return Noticed("filesystem", operation, str(target), by, "module.py:1")


def test_the_folders_around_one_that_a_library_makes_need_no_declaration(home):
    """They can be looked at once the new folder is declared."""
    made = [seen("create", home / ".cache" / "fonts", LIBRARY), seen("read", home / ".cache" / "fonts", LIBRARY)]
    around = [seen("read", home, LIBRARY), seen("read", home / ".cache", LIBRARY)]
    assert list(needed([*around, *made])) == made


@pytest.mark.parametrize(
    ("made", "by"), [(".cache/fonts", OWN), (".cache/fonts/list", LIBRARY), (".cache/other", LIBRARY)]
)
def test_other_folders_that_are_read_are_declared(home, made, by):
    """The subject's own code may list them, and a library the folder in which it makes a file."""
    facts = [seen("read", home / ".cache", by), seen("create", home / made, LIBRARY)]
    assert list(needed(facts)) == facts
