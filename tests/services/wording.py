"""``python -m tests.services.wording [PATH ...]``: lists assertions that compare with a sentence of the product.

A test compares codes, fields, exit statuses, roles, labels and values. A sentence is kept in a golden file
(tests.services.golden), so that rewording one is a single command and a diff to review.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
WORDS = 4
"""A text of this many words in a row is a sentence."""
EXCUSE = "# wording:"
"""A comment on the line (or the one above) that gives the reason: text of a specification, or the test's own data."""


BROWSER = {"get_by_text", "to_have_text", "to_contain_text", "not_to_contain_text", "not_to_have_text"}
"""What browser tests find or compare texts with; roles and labels are found in other ways."""


class Finding(NamedTuple):
    """A sentence in an assertion."""

    file: Path
    line: int
    text: str


def is_sentence(text: str) -> bool:
    """Return whether a text has several plain words in a row."""
    run = 0
    for word in text.split(" "):
        run = run + 1 if re.fullmatch(r"[('\"]?[A-Za-z]+(?:['-][a-z]+)*['\")]?[,.;:!?]?", word) else 0
        if run >= WORDS:
            return True
    return False


def compared_texts(tree: ast.AST):
    """Yield the literals that assertions compare with, and those that `match=` looks for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield from _compared(node.test)
        elif isinstance(node, ast.keyword) and node.arg in {"match", "has_text"}:
            yield from _literals(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BROWSER:
            for argument in node.args:
                yield from _literals(argument)


def _compared(test: ast.expr):
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from _literals(side)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"startswith", "endswith", "fullmatch", "search", "match", "count", "index"}:
                for argument in node.args:
                    yield from _literals(argument)


def _literals(node: ast.expr):
    """Yield the texts in a literal; a subscript or a call is an access to a value, not a comparison."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
        yield node.lineno, "".join(parts)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from _literals(item)
    elif isinstance(node, ast.Dict):
        for item in node.values:
            yield from _literals(item)
    elif isinstance(node, ast.BinOp):
        yield from _literals(node.left)
        yield from _literals(node.right)


def findings(files):
    """Yield the sentences of test files that have no excuse."""
    for file in files:
        source = file.read_text()
        lines = source.splitlines()
        for number, text in sorted(set(compared_texts(ast.parse(source)))):
            near = lines[max(0, number - 2) : number]
            if is_sentence(text) and not any(EXCUSE in line for line in near):
                yield Finding(file, number, text)


def files_below(paths):
    """Return the Python files at or below paths."""
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(arguments):
    """Print what is found; 1 when something is."""
    found = list(findings(files_below(arguments or [TESTS])))
    for file, line, text in found:
        print(f"{file}:{line}: {text!r}")
    print(f"{len(found)} sentences in assertions", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
