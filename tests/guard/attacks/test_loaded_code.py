"""Attacks that succeed as plain functions are denied for code that was loaded as the subject's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.attacks.families import residuals  # noqa: F401 - registers its attacks
from tests.guard.attacks.kit import REGISTRY, Attack, Residual, running_version
from tests.guard.attacks.test_attacks import Stage, meets, unmet

CLOSED = [
    entry
    for entry in REGISTRY.attacks["residuals"].values()
    if isinstance(entry.expect, Residual) and entry.expect.loaded is not None
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Process that runs attacks in forks of itself."""
    made = Stage()
    yield made
    made.close()


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in CLOSED])
def test_a_residual_of_plain_functions_is_none_of_loaded_code(entry: Attack, stage: Stage) -> None:
    """The same attack is denied if a loader marked its code as the subject's."""
    if not entry.since <= running_version() <= entry.until:
        pytest.skip(f"concerns Python {entry.since} to {entry.until}")
    if lacking := unmet(entry):
        pytest.skip(f"needs {lacking}")
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as folder:
        stage.begin(entry, "loaded", Path(folder, "loaded"))
        result = stage.verdict(Path(folder, "loaded"))
    assert isinstance(entry.expect, Residual)
    assert entry.expect.loaded is not None
    assert meets(entry.expect.loaded, result), f"{entry.text}: got {result}"
