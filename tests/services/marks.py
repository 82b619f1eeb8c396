"""A mark for all tests of a folder, from its conftest."""

from __future__ import annotations

from pathlib import Path


def mark_below(conftest, items, mark):
    """Mark those of the tests that lie in the folder of a conftest, or deeper."""
    here = f"{Path(conftest).parent}/"
    for item in items:
        if str(item.path).startswith(here):  # every conftest is asked about every test: parents of paths take seconds
            item.add_marker(mark)
