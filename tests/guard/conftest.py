"""Fixtures of the guard tests."""

from __future__ import annotations

import pytest

from tests.services.forks import BareCase


@pytest.fixture
def case(tmp_path):
    """Private world in which a body runs in a separate process that has not loaded the guard yet."""
    return BareCase(tmp_path)
