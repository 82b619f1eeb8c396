"""Command line tests run on the default interpreter only, because the command line is the same on all."""

from __future__ import annotations

import pytest

from tests.cli.served_node import asked  # a fixture, found by its name
from tests.services.marks import mark_below


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_below(__file__, items, pytest.mark.once)
