"""What all tests share."""

from __future__ import annotations

import sys

from hypothesis import HealthCheck, settings

# Shared machines stall now and then; a slow example is no failing property.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_addoption(parser):
    """Let the runs on further interpreters leave out what the first one has shown already."""
    parser.addoption(
        "--baseline-on",
        metavar="X.Y",
        help="the whole suite was run on Python X.Y: leave out what is marked `once`, and play attacks guarded only",
    )


def pytest_collection_modifyitems(config, items):
    """On a further interpreter, leave out what does not depend on the interpreter."""
    shown_on = config.getoption("--baseline-on")
    if shown_on is None or shown_on == "{}.{}".format(*sys.version_info):
        return
    once = [item for item in items if item.get_closest_marker("once")]
    config.hook.pytest_deselected(items=once)
    items[:] = [item for item in items if item not in set(once)]
