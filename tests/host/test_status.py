"""Measured state of every layer, also with problems."""

from __future__ import annotations

import os
import re

import pytest

from democrai_sandbox.host.status_report import ReportArea, ReportLine, ReportLineState
from tests.services.forks import HostCase as Case
from tests.services.golden import sentence
from tests.services.rows import rows

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


def well_and_unwell(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", "@sdk.render\ndef render():\n    return 1\n")
    app.module("broken", "raise RuntimeError('no')")

    async def story(app):
        import asyncio
        import sqlite3

        from democrai_sandbox.host.status import report

        def measured():
            return asyncio.to_thread(lambda: report(app.sandbox).as_dict())

        first = await measured()
        file = app.base / "state" / "sandbox.db"
        with sqlite3.connect(file) as database:
            database.execute("UPDATE access_schema SET version_num = '9999'")
        database.close()
        other = await measured()
        app.sandbox.access.store.close()
        for found in file.parent.glob("sandbox.db*"):
            if not found.name.endswith(".lock"):
                found.rename(found.with_name(f"gone-{found.name}"))
        file.mkdir()
        away = await measured()
        file.rmdir()
        for found in file.parent.glob("gone-*"):
            found.rename(found.with_name(found.name.removeprefix("gone-")))
        return {"first": first, "other": other, "away": away, "seen": _labels(app.sandbox)}

    def _labels(sandbox):
        return [str(subject) for subject in sandbox.observations.subjects()]

    return app.play(story)


def test_layers_are_measured_one_by_one(case):
    """A broken module, and a database that is down or has another version, are detected and have a fix."""
    told = case.run(well_and_unwell)
    first = {line["name"]: line for line in told["first"]["lines"]}
    assert first["guard"]["state"] == "ok"
    assert "canary" in first["guard"]["summary"]
    assert first["store"]["state"] == first["snapshot"]["state"] == first["events"]["state"] == "ok"
    assert first["store"]["details"]["url"].startswith("sqlite:///")
    assert first["extensions"]["state"] == "degraded"
    assert "module:broken" in first["extensions"]["fix"]
    assert first["workers"]["summary"].startswith("1 module ")
    assert {first[name]["state"] for name in ("landlock", "seccomp", "egress", "helper")} == {"off"}
    assert not first["landlock"]["wanted"]
    assert (first["spawn_server"]["state"], first["spawn_server"]["wanted"]) == ("ok", True)
    assert told["first"]["ok"] is False, "the broken module"
    assert not [label for label in told["seen"] if "canary" in label], "the canaries are nobody's doing"

    other = {line["name"]: line for line in told["other"]["lines"]}
    assert other["store"]["state"] == "degraded"
    assert "9999" in other["store"]["fix"]
    fix = re.sub(r"\b0\d{3}\b", "(the latest)", other["store"]["fix"])
    sentence("store of a newer version", f"{other['store']['summary']}\n{fix}", folder=case.base)

    away = {line["name"]: line for line in told["away"]["lines"]}
    assert away["store"]["state"] == "off"
    assert away["store"]["fix"]
    assert away["tasks"]["state"] == away["resumes"]["state"] == "degraded"
    assert away["guard"]["state"] == "ok"


@rows(
    ("state", "wanted", "well"),
    [
        (ReportLineState.OK, True, True),
        (ReportLineState.OFF, False, True),
        (ReportLineState.UNSUPPORTED, False, True),
        (ReportLineState.DEGRADED, False, False),
        (ReportLineState.OFF, True, False),
        (ReportLineState.UNSUPPORTED, True, False),
        (ReportLineState.DEGRADED, True, False),
    ],
)
def test_what_nobody_asked_for_may_be_off(state, wanted, well):
    """An enabled layer that is not in force is a problem; a degraded one always is."""
    assert ReportLine("x", "X", ReportArea.KERNEL, state, "", wanted=wanted).is_well is well
