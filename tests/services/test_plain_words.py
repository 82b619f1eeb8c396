"""Texts of the product and comments of its source avoid the words that readers stumbled over.

The glossary has the words to use. Identifiers are not checked here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.services.rows import rows

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "democrai_sandbox"
AVOIDED = re.compile(
    r"\b(?:somebody|anybody|nobody(?! democrai)|everybody|whoever|whomever|whatever|whereabouts"
    r"|(?:is|are) no (?!longer)|there (?:is|are) no|of (?:its|their) own (?=[a-z]* *(?:$|[.,;:]))|by way of"
    r"|puts? down|shut out|(?:is|are) told|leaves? word|lets? go of|comes? to nothing|goes on with"
    r"|behaviour|colour|licence|catalogue|misspelt)\b",
    re.IGNORECASE,
)
NAMES = frozenset({"nobody", "NOBODY", "everybody", "catalogue"})
"""Strings that are names: a reserved user name, an anchor of a page, and a package."""


def found_in(text):
    """Return the avoided words of a text without inline code."""
    return sorted({match.group().lower() for match in AVOIDED.finditer(re.sub(r"`+[^`\n]+`+", "", text))})


def texts(source):
    """Yield the strings and comments of a Python source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in NAMES:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@rows("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_python_sources(path):
    """Docstrings, comments and messages."""
    assert [(words, text) for text in texts(path.read_text()) if (words := found_in(text))] == []


@rows("path", sorted(SOURCE.rglob("*.[ch]")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_c_sources(path):
    """Comments and messages."""
    found = re.findall(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', path.read_text(), re.DOTALL)
    assert [(words, text) for text in found if (words := found_in(text))] == []


@rows("path", sorted(SOURCE.rglob("*.html")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_templates(path):
    """Labels and sentences of the console, without tags and expressions."""
    text = re.sub(r"<[^>]*>|\{[{%#].*?[}%#]\}", " ", path.read_text(), flags=re.DOTALL)
    assert found_in(text) == []


@rows("path", [ROOT / "docs" / "cli.md", *sorted((ROOT / "docs" / "errors").glob("*.md"))], ids=lambda path: path.name)
def test_generated_pages(path):
    """The command reference and the error pages; ``tests/docs/test_prose.py`` checks the others."""
    assert found_in(re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)) == []
