"""Fixtures of the Landlock tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.kernel.landlock.harness import Ground
from tests.services.marks import mark_below


@pytest.fixture
def ground():
    """A separate folder for each test, which other users can enter."""
    with tempfile.TemporaryDirectory(prefix="landlock-") as base:
        Path(base).chmod(0o755)
        yield Ground(Path(base).resolve())


def pytest_collection_modifyitems(items):
    from democrai_sandbox.kernel.landlock.rights import landlock_support

    support = landlock_support()
    missing = pytest.mark.skipif(support.abi < 7, reason=f"needs Landlock ABI 7: {support.reason or support.abi}")
    mark_below(__file__, items, missing)
