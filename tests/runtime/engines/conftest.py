"""The same private world as for installations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.installs.conftest import Workshop, rule, web

__all__ = ["rule", "web"]

HOSTING = str(Path(__file__).with_name("hosting.py"))


class House(Workshop):
    """A workshop whose children have a whole host."""

    def host(self, body, *args, network=None, **more):
        return self.run(body, HOSTING, *args, **(self.offline() if network is None else network), **more)

    def module(self, code, name="demo", **manifest):
        """Write a module."""
        import json

        folder = self.base / "modules" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"name": name, **manifest}))
        (folder / "module.py").write_text(code)
        return folder


@pytest.fixture
def workshop(tmp_path, prepared_file, prepared_tools):
    """Make the workshop of one test."""
    made = House(tmp_path, prepared_file)
    made.give_tools(prepared_tools)
    return made
