"""What ``runtime_story.py`` tells: each surface of the example extensions is called, and what came of it is printed."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access import Access, AccessSettings, Caller
from democrai_sandbox.errors import NotInstalled, SandboxDenied
from democrai_sandbox.runtime import Runtime, RuntimeSettings
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving
from democrai_sandbox.runtime.ai.scripted import ScriptedModel, calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

UMA = Caller(user_id="uma", session_key="monday")
ADA = Caller(user_id="ada", role="super")
SCRIPT = [
    calls(("list_notes", {})),
    calls(("read_note", {"name": "garden"})),
    "The tomatoes are watered\nin the morning.",
]


def run(host: Path, server: str, endpoint: Callable[[], str]) -> None:
    """Put the runtime together over a folder, and tell the story."""
    database = AccessSettings(database=f"sqlite:///{host}/state/access.db", key_file=f"{host}/state/keys")
    access = Access(database, GuardSurroundings())
    settings = RuntimeSettings(
        data_dir=str(host / "data"),
        modules_path=str(host / "modules"),
        engines_path=str(host / "engines"),
        extractors_path=str(host / "extractors"),
        isolation={"module:converter": "process"},
    )
    models = {"default": ScriptedModel(SCRIPT)}
    runtime = Runtime(settings, access, models=models, protected_paths=[str(host / "state")])
    with access:
        asyncio.run(Story(runtime, host, server, endpoint).tell())


class Story:
    """Calls one thing after the other, as a host would for its users."""

    def __init__(self, runtime: Runtime, host: Path, server: str, endpoint: Callable[[], str]) -> None:
        self._runtime = runtime
        self._host = host
        self._server = server
        self._endpoint = endpoint
        self._allowed = 0
        self._stopped = 0

    async def tell(self) -> None:
        """Serve, and go through the surfaces."""
        async with self._runtime:
            for extension in self._runtime.extensions:
                problems = "; ".join(map(str, extension.problems))
                print(f"{'broken ' if problems else 'found  '}  {extension.subject}", problems)
            modules = (self._reports, self._digest, self._converter, self._gallery, self._assistant)
            for part in (*modules, self._wordcount, self._plaintext, self._mcp):
                print()
                await part()
        print(f"\n{self._allowed} allowed, {self._stopped} stopped.")

    async def _reports(self) -> None:
        modules, sales, rates = self._runtime.modules, str(self._host / "sales"), f"{self._server}/v1/rates"
        given = {"month": "may", "sales": sales, "rates": rates}
        await self._show("reports: action write", modules.action("reports", "write", given, UMA))
        await self._show("reports: render", modules.render("reports", {}, UMA))
        await self._show("reports: command read", modules.command("reports", "read", {"month": "may"}, UMA))
        elsewhere = {**given, "sales": str(self._host / "documents")}
        await self._show("reports: write, from elsewhere", modules.action("reports", "write", elsewhere, UMA))
        await self._attempts("reports", modules.command("reports", "misbehave", {"sales": sales, "rates": rates}, UMA))

    async def _digest(self) -> None:
        pages = [f"{self._server}/v1/news/{number}" for number in range(3)]
        task = await self._runtime.modules.action("digest", "collect", {"pages": pages}, UMA)
        await self._show("digest: task collect", self._ended(task))
        params = {"other": f"{self._server}/accounts", "task_of_another": "unknown"}
        task = await self._runtime.tasks.submit("digest", "misbehave", params, UMA)
        await self._attempts("digest", self._ended(task))

    async def _ended(self, task_id: str) -> Any:
        while not (task := await self._runtime.tasks.status(task_id)).state.is_final:  # noqa: ASYNC110 - others may run it
            await asyncio.sleep(0.02)
        return task.result

    async def _converter(self) -> None:
        modules = self._runtime.modules
        text = {"text": "pear\napple\n"}
        await self._show("converter: a program of the system", modules.action("converter", "sort", text, UMA))
        await self._show("converter: a program of its own", modules.action("converter", "shout", text, UMA))
        given = {"program": str(self._host / "documents" / "letter.txt")}
        await self._attempts("converter", modules.command("converter", "misbehave", given, UMA))

    async def _gallery(self) -> None:
        modules, picture = self._runtime.modules, {"url": f"{self._server}/gallery/1"}
        await self._show("gallery: a declared picture", modules.action("gallery", "show", picture, UMA))
        other = {"url": f"{self._server}/others/2"}
        waiting = await modules.action("gallery", "show", other, UMA)
        self._stopped += 1
        print("stopped  gallery: another one, for which a request now waits:", waiting["locked"])
        with serving(ADA):
            self._runtime.access.administration.approve_for_session(waiting["request"])
        await self._show("gallery: now that it is approved", modules.action("gallery", "show", other, UMA))

    async def _assistant(self) -> None:
        modules, question = self._runtime.modules, {"question": "When are the tomatoes watered?"}
        await self._show("assistant: pipeline, agent, tools", modules.action("assistant", "ask", question, UMA))
        await self._attempts("assistant", modules.command("assistant", "misbehave", {}, UMA))

    async def _wordcount(self) -> None:
        try:
            await self._runtime.engines.call("wordcount", "count", {"text": "one two"}, UMA)
        except NotInstalled as error:  # pip would take longer than this story
            print("not yet  wordcount:", error)

    async def _plaintext(self) -> None:
        extractors = self._runtime.extractors  # it needs no packages, so its installation is quick
        await extractors.install("plaintext")
        letter = {"path": str(self._host / "documents" / "letter.txt")}
        await self._show("plaintext: a document", extractors.call("plaintext", "extract_file", letter, UMA))
        figures = {"path": str(self._host / "sales" / "may.csv")}
        await self._show("plaintext: another file", extractors.call("plaintext", "extract_file", figures, UMA))
        await self._attempts("plaintext", extractors.call("plaintext", "misbehave", {}, UMA))

    async def _mcp(self) -> None:
        entry = {"name": "calculator", "transport": "streamable_http", "endpoint_url": self._endpoint()}
        self._runtime.store.add_mcp_server(entry, now=datetime.now(UTC))
        call = self._runtime.mcp.call_tool("calculator", "add", {"a": 2, "b": 3}, UMA)
        await self._show("calculator: tool add", call)

    async def _show(self, what: str, work: Awaitable[Any]) -> Any:
        """Print what a call came to; with a denial, what would allow it."""
        try:
            value = await work
        except SandboxDenied as denial:
            self._stopped += 1
            print("stopped ", what)
            print("          ", denial)
            print("          ", denial.hint.replace("\n", "\n           "))
            return None
        self._allowed += 1
        print("allowed ", what, "->", json.dumps(value))
        return value

    async def _attempts(self, who: str, work: Awaitable[dict[str, str]]) -> None:
        """Print what an extension tried by itself, and what it met."""
        for attempt, outcome in (await work).items():
            self._stopped += outcome != "it worked"
            print("allowed " if outcome == "it worked" else "stopped ", f"{who}: {attempt} ({outcome})")
