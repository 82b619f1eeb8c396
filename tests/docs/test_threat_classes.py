"""The page of threat classes names every attack family, and only files that exist."""

from __future__ import annotations

import re

from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "threat-classes.md").read_text(encoding="utf-8")
FAMILIES = REPOSITORY / "tests" / "guard" / "attacks" / "families"
OUTSIDE_CLASSES = {"permitted_work", "residuals", "residuals_network"}
"""Families that the page describes below the tables."""


def rows():
    """Return the cells of all tables of classes, by row."""
    lines = re.findall(r"^\| (.+) \|$", PAGE.partition("## Files")[2], re.MULTILINE)
    return [re.split(r" \| ", line) for line in lines if not line.startswith(("Class |", "---"))]


def names(cell):
    """Return the names in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_family_belongs_to_one_class():
    """A family is in exactly one row, and a row has no family without a file."""
    listed = [name for row in rows() if len(row) == 5 for name in names(row[-1])]
    assert sorted(listed) == sorted({file.stem for file in FAMILIES.glob("*.py")} - OUTSIDE_CLASSES)


def test_other_families_are_explained():
    """The page also names the families that belong to no class."""
    text = re.sub(r"^\|.*$", "", PAGE, flags=re.MULTILINE)
    assert OUTSIDE_CLASSES <= set(names(text))
    assert [name for name in OUTSIDE_CLASSES if not (FAMILIES / f"{name}.py").is_file()] == []


def test_every_row_has_tests():
    """No class is only a promise."""
    assert [row[0] for row in rows() if not names(row[-1])] == []


def test_named_paths_exist():
    """Paths of tests and sources in the page exist."""
    paths = set(re.findall(r"`(tests/[^`]+)`", PAGE))
    assert len(paths) > 5
    assert sorted(path for path in paths if not (REPOSITORY / path).exists()) == []
