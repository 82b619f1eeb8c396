"""The example in the documentation, run as a reader would run it."""

from __future__ import annotations

import re

import pytest

from tests.docs.examples import examples, run


@pytest.mark.once
def test_the_example_prints_what_the_page_says(tmp_path):
    """It runs unchanged, except for the port of the server."""
    ((example, expected),) = examples("docs/mcp.md")
    assert re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8731", run(example, tmp_path)) == expected
