"""The hints of denials: what to declare."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.errors import FilesystemDenied


def declared(denial):
    """The entry in a hint."""
    return json.loads(denial.hint.splitlines()[1])


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
    """The folder around it is, unless that is a very broad one."""
    denial = FilesystemDenied(target, subject="demo", subject_kind="module", operations=("create",))
    assert declared(denial)["target"] == named
    assert denial.target == target
