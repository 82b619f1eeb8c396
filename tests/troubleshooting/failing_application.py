"""An application that gets into trouble, as bodies of these tests run it in their own process. Loaded by its path.

Its folder is written before, and stays: a second process shows what the fix has changed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

KINDS = ("module", "engine", "extractor")


class Application:
    """A sandbox over a folder of extensions, and what is said about each error that comes out of it."""

    def __init__(self, base):
        from democrai_sandbox.host import Sandbox

        self.base = Path(base, "app")
        places = {f"{kind}s_path": str(self.base / f"{kind}s") for kind in KINDS}
        for place in places.values():
            Path(place).mkdir(parents=True, exist_ok=True)
        config = {"state_dir": str(self.base / "state"), **places}
        self.sandbox = Sandbox.from_config(config, environ={})
        self.runtime = self.sandbox.runtime

    def play(self, story):
        """Run a coroutine function while the sandbox is started; return what it returns."""

        async def whole():
            async with self.sandbox:
                return await story(self)

        return asyncio.run(whole())

    # ---- as users

    def action(self, name, action, params, session="s1"):
        """Have the user call an action; tell what came of it."""
        return self.told(self.runtime.modules.action(name, action, params, uma(session)), session)

    async def task(self, name, task, params):
        """Have a task run to its end."""
        task_id = await self.runtime.tasks.submit(name, task, params, uma())
        while not (found := await self.runtime.tasks.status(task_id)).state.is_final:
            await asyncio.sleep(0.02)
        if found.failure is None:
            return {"value": found.result}
        return {"line": found.failure.message, **await self.explained(found.failure.message)}

    def admin(self, act, *args, **details):
        """Do something as the administrator."""
        from democrai_sandbox.access import Caller
        from democrai_sandbox.runtime.access_environment import serving

        with serving(Caller(user_id="ada", role="super")):
            return getattr(self.sandbox.access.administration, act)(*args, **details)

    # ---- what is told

    async def told(self, work, session="s1"):
        """The value of some work; or the line of its error, and what is said about all that it prints."""
        try:
            return {"value": await asyncio.wait_for(work, 90)}
        except Exception as error:
            line = str(error)
            printed = error.diagnostics() if hasattr(error, "diagnostics") else line
            return {"line": line, "printed": printed, **await self.explained(printed, session)}

    async def explained(self, text, session="s1"):
        """What is said about a text now; nothing for one that is no error of ours."""
        from democrai_sandbox.errors import ErrorUnknown
        from democrai_sandbox.host.explain.explainer import explain_line

        try:
            found = await asyncio.to_thread(explain_line, self.sandbox, text, user_id="uma", session_key=session)
        except ErrorUnknown:
            return {"code": ""}
        reading = found.reading
        return {
            "code": reading.entry.code,
            "subject": reading.subject,
            "target": reading.target,
            "note": found.note,
            "now": [_plain(one) for one in found.explanations],
        }


def _plain(found):
    return {
        "verdict": found.verdict.value,
        "words": found.words,
        "subject": str(found.question.subject),
        "operation": found.question.operation,
        "layers": {layer.layer: layer.text for layer in found.layers},
        "answers": {layer.layer: layer.answer.value for layer in found.layers},
        "nearest": _near(found.nearest),
        "installing": found.question.installing,
        "decides": [layer.layer for layer in found.layers if layer.decides],
        "entry": found.entry,
        "file": found.file,
        "advice": "\n".join(found.advice),
    }


def _near(nearest):
    """The target and the operation of the rule that lacks least."""
    return [nearest.rule.normalized_target, nearest.rule.operation] if nearest else []


def uma(session="s1"):
    """An ordinary user."""
    from democrai_sandbox.access import Caller

    return Caller(user_id="uma", session_key=session)
