"""The example in docs/ai.md, run as a reader would run it."""

from __future__ import annotations

from tests.docs.examples import examples, run


def test_the_example_prints_what_the_page_says(tmp_path):
    """It runs unchanged and prints the lines shown below it."""
    ((example, expected),) = examples("docs/ai.md")
    assert run(example, tmp_path) == expected
