"""How many examples a property gets: a multiple of what the Hypothesis profile gives, small or deep."""

from __future__ import annotations

from hypothesis import settings


def examples(times):
    """Return so many times the profile's number of examples, at least five."""
    return max(5, round(times * settings.default.max_examples))
