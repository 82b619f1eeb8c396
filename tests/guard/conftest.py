"""Fixtures of the guard tests."""

from __future__ import annotations

import pytest

from tests.guard.harness import Case


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)
