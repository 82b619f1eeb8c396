"""List of tests that depend on the interpreter."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.versioned import VERSIONED

HERE = Path(__file__).parent


def test_every_entry_is_there():
    """An entry without a matching test would silently skip its tests."""
    for entry in VERSIONED:
        path, _, name = entry.partition("::")
        assert (HERE / path).exists(), entry
        assert not name or f"\ndef {name}" in (HERE / path).read_text(), entry
