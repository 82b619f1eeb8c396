"""Has programs work on texts: a module that starts child processes, by the one way there is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from democrai_sandbox import sdk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@sdk.action("sort")
async def sort(text: str) -> list[str]:
    """Have a program of the system sort the lines of a text."""
    done = await sdk.tasks.run_subprocess(["sort"], input=text, env={"LC_ALL": "C"}, timeout=10)
    return done.text.splitlines()


@sdk.action("shout")
async def shout(text: str) -> str:
    """Have a program of the module's own work on it, which the manifest lets it execute."""
    return (await sdk.tasks.run_subprocess([str(sdk.extension_dir() / "bin" / "shout")], input=text)).text


@sdk.action("count")
async def count(limit: int) -> list[str]:
    """Read what a program writes while it is still writing, and leave early: the program is ended with it."""
    lines: list[str] = []
    async with sdk.tasks.stream_subprocess(["yes", "again"]) as child:
        async for line in child:
            lines.append(line.decode().strip())
            if len(lines) == limit:
                return lines
    return lines


@sdk.action("child")
async def child(text: str) -> dict[str, Any]:
    """Have a program in Python work on it, which takes over the guard of the module from its environment."""
    done = await sdk.tasks.run_subprocess([sys.executable, str(sdk.extension_dir() / "child.py")], input=text)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return dict(json.loads(done.text))


@sdk.command("misbehave")
async def misbehave(program: str) -> dict[str, str]:
    """Try to start programs in ways that are not for modules, and return what became of it."""
    run = sdk.tasks.run_subprocess
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "start one by itself": lambda: asyncio.create_subprocess_exec("true"),
        "start one in a thread": lambda: sdk.tasks.run_blocking(subprocess.run, ["true"], check=True),
        "become another program": lambda: sdk.tasks.run_blocking(os.execv, "/bin/true", ["true"]),
        "start one that is not the system's": lambda: run([program]),
        "start one in a folder of the host": lambda: run(["true"], cwd="/root"),
        "let a child call itself something else": lambda: run(["true"], env={"DEMOCRAI_NETWORK_SUBJECT": "core"}),
        "put other code into a child": lambda: run(["true"], env={"LD_PRELOAD": "mine.so"}),
    }
    return {name: await _try(attempt) for name, attempt in attempts.items()}


async def _try(attempt: Callable[[], Awaitable[object]]) -> str:
    try:
        await attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"
