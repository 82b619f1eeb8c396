"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not make a property fail.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
