"""Where extensions run and why: for each extension, counted, and in the audit log."""

from __future__ import annotations

import os

import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from tests.services.forks import HostCase as Case

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")
MODULE = """
@sdk.action("nothing")
def nothing(): pass
"""


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def started(world, base, sandbox):
    """Start a host with two modules; return the modes, and the audit records about them."""
    import pathlib

    app = world.load(EMBEDDED)["Embedded"](pathlib.Path(world.base) / base)
    for name in ("one", "two"):
        app.module(name, MODULE)

    async def story(app):
        from democrai_sandbox.access.node import utc_now
        from democrai_sandbox.access.values import AuditFilter, PageRequest
        from democrai_sandbox.host.overview import list_extensions
        from democrai_sandbox.host.run_modes import count_modes, record_modes

        record_modes(app.sandbox, utc_now())  # as another start without a change
        kept = app.sandbox.access.store.audit(AuditFilter(), PageRequest(limit=100))
        return {
            "modes": {
                one.name: [one.isolation, one.mode.value, one.mode_reason] for one in list_extensions(app.sandbox)
            },
            "counts": count_modes(app.sandbox),
            "audit": [one.after["extensions"] for one in kept if one.after and one.after.get("change") == "isolation"],
        }

    return app.play(story, sandbox=sandbox)


def default(world):
    return started(world, "default", {})


def chosen(world):
    return started(world, "chosen", {"isolation": {"module:two": "in_process"}})


def off(world):
    return started(world, "off", {"isolation": {"default": "process"}, "os": {"enabled": False}})


@pytest.mark.skipif(landlock_support().abi < 1, reason="needs Landlock")
def test_modules_run_in_confined_workers(case):
    """Nothing is noted in the audit log."""
    told = case.run(default)
    assert {name: mode[:2] for name, mode in told["modes"].items()} == dict.fromkeys(
        ("one", "two"), ["process", "confined"]
    )
    assert (told["counts"], told["audit"]) == ({"confined": 2}, [])


@pytest.mark.skipif(landlock_support().abi < 1, reason="needs Landlock")
def test_a_module_in_the_process_of_the_host_is_named_with_its_setting(case):
    """The audit log has it once."""
    told = case.run(chosen)
    assert told["modes"]["two"][:2] == ["in_process", "in_process"]
    assert "module:two" in told["modes"]["two"][2]
    assert told["counts"] == {"confined": 1, "in_process": 1}
    assert [list(each) for each in told["audit"]] == [["module:two"]]


def test_without_confinement_workers_are_only_guarded(case):
    """The reason names the setting."""
    told = case.run(off)
    assert {tuple(mode[:2]) for mode in told["modes"].values()} == {("process", "guarded")}
    assert all("sandbox.os.enabled" in mode[2] for mode in told["modes"].values())
    assert [sorted(each) for each in told["audit"]] == [["module:one", "module:two"]]
