"""Hints of denials: the entries to declare."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.errors import FilesystemDenied
from democrai_sandbox.policy import parse_access


def declared(denial):
    """The entry in a hint."""
    return json.loads(denial.hint.splitlines()[1])


def test_a_file_that_looks_like_a_pattern_is_declared_literally():
    """The entry of the hint is read back as the same file."""
    denial = FilesystemDenied("/srv/a[1].csv", subject="demo", subject_kind="module", operations=("read",))
    (rule,) = parse_access([declared(denial)], base=None)
    assert rule.normalized_target == denial.target


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("/srv/out/report.csv", "/srv/out/report.csv"),
        ("/srv/out/tmpa1b2c3d4", "/srv/out"),
        ("/srv/out/tmpa1b2c3d4/inner.txt", "/srv/out"),
        ("/srv/out/0123456789abcdef0123456789abcdef.part", "/srv/out"),
        ("/srv/tmpa1b2c3d4", "/srv/tmpa1b2c3d4"),
        ("relative", "relative"),
    ],
)
def test_a_name_that_is_different_in_every_run_is_not_declared(target, named):
    """The hint names the parent folder, unless that is a very broad one."""
    denial = FilesystemDenied(target, subject="demo", subject_kind="module", operations=("create",))
    assert declared(denial)["target"] == named
    assert denial.target == target
