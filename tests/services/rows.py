"""Tables of cases: written like ``pytest.mark.parametrize``, run as one test that reports every failing row.

@rows(("text", "expected"), [("a", 1), ("b", 2)])
def test_reading(text, expected): ...

For rows that need nothing of their own: fixtures are made once for the whole table. Rows may be ``pytest.param`` with
an id, and the decorator may be stacked. A row that needs a fresh folder or process stays a case of parametrize.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
from _pytest.mark import ParameterSet


class FailedRow(AssertionError):
    """Rows that failed, each with its reason."""


def rows(names, table, ids=None):
    """Run a test once for every row of a table."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_values(row, names) for row in table]
    if not cases:
        raise ValueError("the table has no rows")

    def decorate(function):
        signature = inspect.signature(function)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]

        @functools.wraps(function)
        def run(*instance: Any, **fixtures: Any) -> None:
            failures = []
            for number, (label, values) in enumerate(cases):
                try:
                    function(*instance, **fixtures, **dict(zip(names, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    label = label or (ids(*values) if callable(ids) else ids[number] if ids else None)
                    failures.append((label or _short(values), error))
            if failures:
                told = "\n".join(f"row {label}: {type(error).__name__}: {error}" for label, error in failures)
                message = f"{len(failures)} of {len(cases)} rows failed\n{told}"
                raise FailedRow(message) from failures[0][1]

        run.__signature__ = signature.replace(parameters=kept)
        return run

    return decorate


def _values(row, names):
    """Return the label and the values of a row."""
    if isinstance(row, ParameterSet):
        if row.marks:
            raise ValueError("a row has no marks of its own: make it a case of parametrize")
        return row.id, row.values
    return None, tuple(row) if len(names) > 1 else (row,)


def _short(values):
    text = ", ".join(map(repr, values))
    return text if len(text) <= 100 else f"{text[:97]}..."
