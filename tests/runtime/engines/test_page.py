"""The page about engines, run as a reader would run it."""

from __future__ import annotations

import pytest

from tests.docs.examples import examples, run


@pytest.mark.once
def test_the_example_prints_what_the_page_says(tmp_path):
    """It runs unchanged and prints the output shown below it."""
    ((example, expected),) = examples("docs/engines.md")
    assert run(example, tmp_path) == expected
