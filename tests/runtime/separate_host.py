"""A host with extensions, for tests that run it in a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path


class Stage:
    """Writes extensions into folders, and runs a `Runtime` over them."""

    def __init__(self, base):
        self.base = Path(base, "stage")
        self.modules = self.base / "modules"
        self.data = self.base / "data"
        self.modules.mkdir(parents=True)
        self.access = None
        self.runtime = None

    def module(self, name, code, *access, **manifest):
        """Write a module; `access` are entries as (resource type, operation, target)."""
        folder = self.modules / name
        folder.mkdir()
        entries = [{"resource_type": kind, "operation": act, "target": str(target)} for kind, act, target in access]
        (folder / "manifest.json").write_text(json.dumps({"name": name, "access": entries, **manifest}))
        (folder / "module.py").write_text("from democrai_sandbox import sdk\n" + code)
        return folder

    def open(self, access_settings=None, **settings):
        """Make the access service and the runtime; nothing is loaded yet."""
        from democrai_sandbox.access import Access, AccessSettings
        from democrai_sandbox.runtime import Runtime, RuntimeSettings
        from democrai_sandbox.runtime.access_environment import GuardSurroundings

        state = self.base / "state"
        state.mkdir()
        if prepared := os.environ.get("PREPARED_DATABASE"):  # a copy of it already has its schema
            shutil.copyfile(prepared, state / "access.db")
        self.access = Access(
            AccessSettings(
                database=f"sqlite:///{state}/access.db",
                key_file=f"{state}/keys",
                poll_seconds=0.1,
                **(access_settings or {}),
            ),
            GuardSurroundings(),
        )
        settings["isolation"] = {"default": "in_process", **settings.get("isolation", {})}
        given = {"modules_path": str(self.modules), "data_dir": str(self.data), "call_timeout": 30.0, **settings}
        self.runtime = Runtime(RuntimeSettings(**given), self.access, protected_paths=[str(state)])
        return self.runtime

    def play(self, story, **settings):
        """Run a coroutine function with the stage while the runtime serves; return its result."""
        runtime = self.runtime or self.open(**settings)

        async def whole():
            async with runtime:
                return await story(self)

        with self.access:
            return asyncio.run(whole())

    async def told(self, awaitable):
        """Return the outcome of a call: its value, or the class and text of the error."""
        try:
            return await awaitable
        except Exception as error:  # noqa: BLE001 - the error class is the result
            return [type(error).__name__, str(error)]

    def action(self, module, action, caller=None, **params):
        """Call an action and return its outcome."""
        return self.told(self.runtime.modules.action(module, action, params, caller or self.uma()))

    @staticmethod
    def uma(**more):
        """Return an ordinary user in a session."""
        from democrai_sandbox.access import Caller

        return Caller(**{"user_id": "uma", "session_key": "monday", **more})

    @staticmethod
    def ada():
        """Return the administrator."""
        from democrai_sandbox.access import Caller

        return Caller(user_id="ada", role="super")
