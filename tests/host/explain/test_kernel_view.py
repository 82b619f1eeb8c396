"""Landlock lists of the application, and the declarations of its extensions."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from tests.console.serving import serving

READING = """
from democrai_sandbox import sdk

@sdk.action("read")
def read(path):
    with open(path) as file:
        return file.read()

@sdk.action("write")
def write(path):
    with open(path, "w") as file:
        return file.write("written")
"""
pytestmark = pytest.mark.skipif(landlock_support().abi < 1, reason="needs Landlock")


@pytest.fixture
def elsewhere():
    """A folder in no default list: the temporary folder is open to the application."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))  # noqa: S108 - private, and removed later
    yield made
    shutil.rmtree(made)


def test_declared_paths_are_open_below_landlock_and_others_are_reported(tmp_path, elsewhere):
    """A path that was missing at the start fails with a hint, and the status names it."""
    declared, written, late = (elsewhere / name for name in ("declared", "written", "late"))
    declared.mkdir()
    written.mkdir()
    (declared / "file").write_text("there")
    folder = tmp_path / "modules" / "reading"
    folder.mkdir(parents=True)
    access = [
        {"resource_type": "filesystem", "operation": "read", "target": str(declared)},
        {"resource_type": "filesystem", "operation": ["create", "modify"], "target": str(written)},
        {"resource_type": "filesystem", "operation": "read", "target": str(late)},
    ]
    (folder / "manifest.json").write_text(json.dumps({"name": "reading", "access": access}))
    (folder / "module.py").write_text(READING)
    own = {"modules_path": str(folder.parent), "sandbox": {"os": {"landlock": {"enabled": True}}}}
    with serving(tmp_path, own, extensions=False) as served, served.bearer(served.administrator()) as admin:
        late.write_text("too late")

        def act(name, path):
            return admin.post(f"/api/v1/modules/reading/actions/{name}", json={"params": {"path": str(path)}})

        assert act("read", declared / "file").json()["result"] == "there"
        assert act("write", written / "file").status_code == 200
        refused = act("read", late)
        assert (refused.status_code, refused.json()["code"]) == (502, "extension_failed")
        assert str(late) in refused.json()["hint"]
        lines = {line["name"]: line for line in admin.get("/api/v1/status").json()["lines"]}
        assert lines["extensions"]["state"] == "degraded"
        assert lines["extensions"]["details"]["outside_landlock"] == {"module:reading": [str(late)]}
        assert lines["extensions"]["fix"]
