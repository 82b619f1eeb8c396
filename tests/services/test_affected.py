"""`make check` runs the tests that a change affects, nearest first."""

from __future__ import annotations

import pytest

from tests.services.affected import ROOT, affected_tests
from tests.services.rows import rows

pytestmark = pytest.mark.once


def names(*changed):
    return [str(file.relative_to(ROOT)) for file in affected_tests(list(changed))]


@rows(
    ("changed", "expected"),
    [
        ("src/democrai_sandbox/access/checks.py", "tests/access/test_checks.py"),
        ("src/democrai_sandbox/cli/serve.py", "tests/cli/test_serve.py"),
        ("src/democrai_sandbox/policy/rules.py", "tests/policy/test_rules.py"),
        ("tests/policy/test_rules.py", "tests/policy/test_rules.py"),
    ],
)
def test_the_test_of_a_changed_file_comes_first(changed, expected):
    """The test named after a file is the nearest."""
    assert names(changed)[0] == expected


@rows(
    ("changed", "expected"),
    [
        ("src/democrai_sandbox/guard/_core/rules/paths.c", "tests/guard/attacks/test_attacks.py"),
        ("src/democrai_sandbox/kernel/_native/module.c", "tests/kernel/test_native.py"),
        ("docs/quickstart.md", "tests/docs/test_quickstart.py"),
        ("src/democrai_sandbox/console/templates/login.html", "tests/console/test_login.py"),
        ("tests/runtime/conftest.py", "tests/runtime/test_modules.py"),
        ("tests/services/rows.py", "tests/policy/test_rules.py"),
        ("scripts/supervising.py", "tests/scripts/test_supervise.py"),
    ],
)
def test_files_that_nothing_imports_affect_the_tests_that_read_them(changed, expected):
    """Sources in C, documents, templates, scripts and shared files of tests are followed too."""
    assert expected in names(changed)


def test_tests_of_other_packages_come_after_those_of_the_changed_one():
    """What lies further away is left out first when time is short."""
    found = names("src/democrai_sandbox/access/checks.py")
    assert found[0].startswith("tests/access/")
    assert not found[-1].startswith("tests/access/")


def test_a_change_that_affects_nothing_runs_nothing():
    """A file that no test depends on selects none."""
    assert names("LICENSE") == []
