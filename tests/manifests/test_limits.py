"""Limits of manifests and of the host's configuration; the stricter one applies."""

from __future__ import annotations

import pytest

from democrai_sandbox.manifests import FindingCode, Limits, limits_from, lint, make_manifest
from democrai_sandbox.manifests.limits import LARGEST, NO_LIMITS, limit_problems
from democrai_sandbox.policy import InvalidInputError
from tests.services.rows import rows


def problems_of(value, kind):
    with pytest.raises(InvalidInputError) as caught:
        make_manifest(value, kind)
    return caught.value.problems


def test_the_stricter_of_two_limits_counts():
    """Each limit is compared separately; a limit that only one has stays."""
    host = Limits(cpu_seconds=10, open_files=100)
    manifest = Limits(cpu_seconds=20, open_files=50, processes=3)
    assert host.stricter(manifest) == Limits(cpu_seconds=10, open_files=50, processes=3)
    assert host.stricter(manifest) == manifest.stricter(host)
    assert host.stricter(NO_LIMITS) == host


@rows(
    ("value", "pointer", "suggestion"),
    [
        ([], "/limits", None),
        ({"memory": 5}, "/limits/memory", "memory_mb"),
        ({"timeout": 5}, "/limits/timeout", "wall_seconds"),
        ({"cpu_second": 5}, "/limits/cpu_second", "cpu_seconds"),
        ({"cpu_seconds": 0}, "/limits/cpu_seconds", None),
        ({"cpu_seconds": "5"}, "/limits/cpu_seconds", None),
        ({"cpu_weight": 101}, "/limits/cpu_weight", None),
        ({"nice": 5}, "/limits/nice", "cpu_weight"),
        ({7: 5}, "/limits/7", None),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_by_place(value, pointer, suggestion):
    """Each problem has its pointer and the probably intended name."""
    with pytest.raises(InvalidInputError) as caught:
        limits_from(value)
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.suggestion) == (pointer, suggestion)


def test_all_problems_are_told_at_once():
    """All problems are reported together."""
    with pytest.raises(InvalidInputError) as caught:
        limits_from({"cpu_seconds": 0, "ram": 1, "processes": None})
    assert len(caught.value.problems) == 3


def test_limits_made_by_hand_are_checked_too():
    """Limits that a host constructs in code are checked too."""
    assert limit_problems(Limits(cpu_seconds=5)) == []
    assert [problem.pointer for problem in limit_problems(Limits(cpu_seconds=0, open_files="9"))] == [
        "/limits/cpu_seconds",
        "/limits/open_files",
    ]
    assert [problem.pointer for problem in limit_problems({"cpu_seconds": 5})] == ["/limits"]


def test_a_configuration_that_is_right_is_read():
    """All limits are read."""
    given = {name: number for number, name in enumerate(LARGEST, 1)}
    assert dict(limits_from(given).given()) == given


@rows(("key", "limit"), [("rss_mb", "memory_mb"), ("cpu_seconds", "cpu_seconds")])
def test_a_limit_beside_the_object_is_told_where_it_belongs(key, limit):
    """Names of other systems lead to ours."""
    (problem,) = problems_of({"name": "demo", key: 5}, "module")
    assert problem.pointer == f"/{key}"
    assert f"'{limit}'" in problem.message
    assert "'limits'" in problem.message


def test_limits_of_an_engine_belong_into_a_phase():
    """Limits apply only to a phase."""
    (problem,) = problems_of({"name": "demo", "limits": {}}, "engine")
    assert problem.pointer == "/limits"
    assert "'runtime'" in problem.message
    assert "'install'" in problem.message


@rows("limits", [{}, {"cpu_seconds": 31_536_000}])
def test_limits_that_limit_nothing_are_found(limits):
    """A reviewer could mistake them for protection."""
    (finding,) = lint(make_manifest({"name": "demo", "limits": limits}, "module"))
    assert finding.code is FindingCode.NEEDLESS_LIMIT
    assert finding.pointer.startswith("/limits")
