"""The command line is the same for every interpreter: its tests run on the default one only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.asking import asked  # a fixture, found by its name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.once)
