"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Shared machines stall now and then; a slow example is no failing property.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser):
    """Let the runs on further interpreters leave out what the first one has shown already."""
    parser.addoption(
        "--baseline-on",
        metavar="X.Y",
        help="attacks that concern Python X.Y were shown there to work without a guard: play them under it only",
    )
