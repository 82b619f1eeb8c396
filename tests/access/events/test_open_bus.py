"""Opening a bus by the name of its kind, and rejected settings."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from democrai_sandbox.access.events import check_bus, open_bus
from democrai_sandbox.errors import InvalidInputError
from tests.services.rows import rows


def refused(kind, **settings):
    with pytest.raises(InvalidInputError) as error:
        open_bus(kind, **settings)
    return {problem.pointer: problem for problem in error.value.problems}


@rows(
    ("kind", "meant"),
    [("memry", "memory"), ("Redis", "redis"), ("ipcs", "ipc"), ("", None), ("kafka", None), (None, None)],
)
def test_an_unknown_kind_is_refused_with_the_nearest_one(kind, meant):
    """The error suggests the nearest kind and lists all."""
    problem = refused(kind)["/type"]
    assert problem.suggestion == meant
    assert [name for name in ("memory", "ipc", "redis") if name not in problem.message] == []


def test_all_settings_that_are_wrong_are_told_at_once():
    """Missing and unknown settings are reported together, each with its pointer."""
    problems = refused("ipc", folde="/tmp", what=1)
    assert set(problems) == {"/folder", "/folde", "/what"}
    assert problems["/folde"].suggestion == "folder"
    assert set(refused("redis")) == {"/url"}
    assert set(refused("memory", url="redis://localhost")) == {"/url"}


@rows("channel", ["", "a/b", "../x", ".hidden", "a b", "x" * 65, "\u00fc", "a\n", 7, None])
@rows(("kind", "settings"), [("memory", {}), ("redis", {"url": "redis://localhost"})])
def test_a_channel_that_is_no_plain_name_is_refused(kind, settings, channel):
    """The channel becomes part of a file name or a key."""
    assert set(refused(kind, channel=channel, **settings)) == {"/channel"}


@rows("folder", ["", None, 7, "/dev/null", "/proc/no-such-place/x"])
def test_a_folder_that_cannot_be_one_is_refused(folder):
    """An invalid folder is rejected immediately with the reason."""
    assert set(refused("ipc", folder=folder)) == {"/folder"}


def test_a_channel_is_checked_before_a_folder_is_made(tmp_path):
    """A rejected call leaves nothing behind."""
    refused("ipc", folder=tmp_path / "events", channel="a/b")
    assert list(tmp_path.iterdir()) == []


def test_only_a_bus_through_redis_loads_redis():
    """The package is optional and slow to load."""
    code = """
import sys
from democrai_sandbox.access.events import open_bus
open_bus("memory")
open_bus("ipc", folder=sys.argv[1])
print("redis" in sys.modules)
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60, check=True
        )
    assert done.stdout == "False\n"


@rows(
    ("kind", "settings", "places"),
    [
        ("memory", {}, set()),
        ("memory", {"channel": "a/b"}, {"/channel"}),
        ("ipc", {"folder": "", "channel": 7}, {"/folder", "/channel"}),
        ("ipc", {}, {"/folder"}),
        ("redis", {"url": "redis://localhost", "longest": 500}, set()),
        ("redis", {"url": "http://localhost", "longest": 499, "channel": ""}, {"/url", "/longest", "/channel"}),
        ("kafka", {}, {"/type"}),
        (["redis"], {}, {"/type"}),
        ("memory", {"a/b": 1}, {"/a~1b"}),
    ],
)
def test_settings_can_be_checked_without_opening_anything(kind, settings, places):
    """All problems of a configuration are reported together."""
    problems = []
    try:
        check_bus(kind, settings)
    except InvalidInputError as error:
        problems = error.problems
    assert {problem.pointer for problem in problems} == places


def test_checking_makes_no_folder(tmp_path):
    """Checking leaves no trace."""
    check_bus("ipc", {"folder": tmp_path / "events"})
    assert list(tmp_path.iterdir()) == []
