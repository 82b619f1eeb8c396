"""Tests compare behavior: no assertion has a sentence of the product in it."""

from __future__ import annotations

import ast

import pytest

from tests.services.rows import rows
from tests.services.wording import TESTS, compared_texts, files_below, findings, is_sentence

pytestmark = pytest.mark.once


def test_no_assertion_compares_with_a_sentence():
    """Sentences are kept in golden files, or have a comment that gives the reason."""
    assert [f"{file.relative_to(TESTS)}:{line}: {text}" for file, line, text in findings(files_below([TESTS]))] == []


@rows(
    ("text", "expected"),
    [
        ("the helper does not run", True),
        ("Error: there is nothing, here.", True),
        ("did you mean 'add'?", True),
        ("sandbox_filesystem_denied:demo:/etc/passwd", False),
        ("GET /api/v1 HTTP/1.1", False),
        ("two words", False),
    ],
)
def test_sentences_are_told_from_values(text, expected):
    """Four plain words in a row are a sentence."""
    assert is_sentence(text) is expected


@rows(
    "statement",
    [
        "assert 'one two three four' in text",
        "assert text == f'one two three four {x}'",
        "assert text.startswith('one two three four')",
        "assert found == {'a': ['one two three four']}",
        "expect(page.get_by_text('one two three four'))",
        "pytest.raises(ValueError, match='one two three four')",
    ],
)
def test_comparisons_are_found(statement):
    """Every usual way to compare with a text is looked at."""
    assert any(is_sentence(text) for _, text in compared_texts(ast.parse(statement)))
