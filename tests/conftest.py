"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Shared machines stall now and then; a slow example is no failing property.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
