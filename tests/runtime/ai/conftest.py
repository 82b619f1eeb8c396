"""Every test has a world of its own, in which a body runs in a process of its own."""

from __future__ import annotations

import pytest

from tests.services.forks import RuntimeCase as Case


@pytest.fixture
def case(tmp_path):
    """A private world: the guard seals at its first use, which must not be in pytest's process."""
    return Case(tmp_path)
