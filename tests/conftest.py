"""What all tests share."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

# What pytest makes of the files it collects is kept, also where nothing else is to be: it takes as long as all the rest
# of collecting. Processes that tests start keep to the environment.
INHERITED = sys.dont_write_bytecode
sys.dont_write_bytecode = False

from hypothesis import HealthCheck, settings

from tests.services.databases import postgres, prepared_database, prepared_file  # fixtures, found by their names

# A slow example on a shared machine is not a failing property, so examples have no deadline.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same few examples in every run: a run that fails says something about the change, not about luck.
settings.register_profile("small", PATIENT, max_examples=25, derandomize=True)
# Many new examples in every run (`make fuzz`).
settings.register_profile("deep", PATIENT, max_examples=2000)
settings.load_profile("small")

pytest_plugins = ["tests.services.parallel"]


# A shell starts what runs in its background with Ctrl-C ignored, and every process from there on inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with the end of a terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    """Let the runs on further interpreters leave out what the first one has shown already."""
    parser.addoption(
        "--baseline-on",
        metavar="X.Y",
        help="the whole suite was run on Python X.Y: leave out what is marked `once`, and play attacks guarded only",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        default="0/1",
        help="on a further interpreter, run the K-th of N parts: N of them run all between them",
    )
    parser.addoption(
        "--fresh",
        action="store_true",
        help="play every attack without a guard too, also those that were seen to work in an earlier run",
    )
    parser.addoption(
        "--untested",
        metavar="FILE",
        help="add to this file what was left out on this machine, and why",
    )


def pytest_collection_modifyitems(config, items):
    """On a further interpreter, leave out what does not depend on the interpreter, and what is another one's share."""
    shown_on = config.getoption("--baseline-on")
    if shown_on is None or shown_on == "{}.{}".format(*sys.version_info):
        return
    part, parts = map(int, config.getoption("--share").split("/"))

    def is_left_out(item):
        others = crc32(item.nodeid.encode()) % parts != part
        return item.get_closest_marker("once") or (others and not item.get_closest_marker("every"))

    left_out = {item for item in items if is_left_out(item)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish():
    """Have what tests import leave nothing behind, where that is wanted."""
    sys.dont_write_bytecode = INHERITED


def pytest_terminal_summary(terminalreporter, config):
    """Say what was not tested here: with `make test` once for all interpreters, at the very end."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    lines = [f"{number} of the tests: {reason}" for reason, number in reasons.most_common()]
    file = config.getoption("--untested")
    if lines and file and not hasattr(config, "workerinput"):  # workers tell the first process, which tells all
        version = "{}.{}".format(*sys.version_info)
        with Path(file).open("a") as told:
            told.writelines(f"on CPython {version}, {line}\n" for line in lines)
