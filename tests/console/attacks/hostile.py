"""A served host with a module in its process that runs any given code for the attacker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.console.serving import Served

SEARCHING = Path(__file__).with_name("object_search.py")
MODULE = '''
from democrai_sandbox import sdk


@sdk.action("run")
async def run(code: str):
    """Run a text; return what its function ``main`` says, or the class and the text of its error."""
    names = {"sdk": sdk}
    try:
        exec(compile(code, "attack", "exec"), names)
        found = names["main"]()
        return await found if hasattr(found, "__await__") else found
    except Exception as error:
        return f"{type(error).__name__}: {error}"
'''


class Hostile(Served):
    """Server whose first module belongs to the attacker; ``access`` is its manifest."""

    def __init__(self, folder, config=None, *, access=(), **more):
        self.access = list(access)
        # What is loaded, and before what, is what some attacks are about.
        super().__init__(
            folder,
            {"sandbox": {"call_timeout": 120, "isolation": {"default": "in_process"}}, **(config or {})},
            fresh=True,
            **more,
        )

    def furnish(self):
        super().furnish()
        folder = self.folder / "modules" / "hostile"
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"name": "hostile", "access": self.access}))
        (folder / "module.py").write_text(MODULE)

    def by_the_form(self):
        """The first administrator, whose password the process has seen."""
        return self.signed_in(self.admin, self.password)

    def run(self, client, code):
        """Let the module run a text for the client's user."""
        answer = client.post("/api/v1/modules/hostile/actions/run", json={"params": {"code": code}}, timeout=150)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def as_administrator(self, code):
        """Run it for an administrator, whose rights are worth most."""
        with self.bearer(self.administrator()) as client:
            return self.run(client, code)

    def search(self, client, roots, wanted):
        """Let the module search everything reachable; return the findings by kind."""
        call = f"\nasync def main():\n    return search({roots}, {wanted!r})\n"
        return self.run(client, SEARCHING.read_text() + call)
