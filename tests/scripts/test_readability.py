"""The measures of readability stay within their limits: ``python scripts/readability.py``."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

MEASURES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts" / "readability.py"))
MODULES = MEASURES["modules_of"]()


def test_modules_are_named_after_things():
    """No name is a gerund, apart from the usual nouns."""
    assert MEASURES["gerunds"](MODULES) == []


@pytest.mark.parametrize(
    ("measure", "limit"), [("repeated_classes", 0), ("single_importers", 19), ("lonely_protocols", 1)]
)
def test_lists_do_not_grow(measure, limit):
    """Class names of two packages, modules with one importer, and protocols with one implementation."""
    found = MEASURES[measure](MODULES)
    assert len(found) <= limit, found


def test_there_are_few_files():
    """Merge a module with its only importer, instead of adding small ones."""
    assert len(MODULES) <= 302


def test_headers_are_short():
    """Headers are at most nine percent of all lines; details belong to the classes and functions they explain."""
    assert MEASURES["header_share"](MODULES) <= 9.0
