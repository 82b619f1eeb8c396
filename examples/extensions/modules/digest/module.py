"""Collects pages in the background: a module with a task that requests start, and one that runs by the clock.

Tasks need no declarations of their own. They run as the module, under what its manifest says.
"""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox import sdk

if TYPE_CHECKING:
    from collections.abc import Callable


@sdk.action("collect")
async def start(pages: list[str]) -> str:
    """Have pages collected, and return at once: the id of the task that does it."""
    return await sdk.tasks.start("collect", {"pages": pages})


@sdk.action("status")
async def status(task_id: str) -> dict[str, Any]:
    """Return how far a task is, and what came of it."""
    found = await sdk.tasks.status(task_id)
    return {"state": found.state, "fraction": found.fraction, "result": found.result, "failure": found.failure}


@sdk.action("stop")
async def stop(task_id: str) -> bool:
    """End a task early."""
    return await sdk.tasks.cancel(task_id)


@sdk.task("collect", timeout=60)
async def collect(pages: list[str]) -> dict[str, Any]:
    """Fetch one page after the other and keep them. It still works for whoever asked for it, in the same session."""
    for done, page in enumerate(pages, 1):
        text = await sdk.tasks.run_blocking(_fetch, page)
        (sdk.data_dir() / f"{done}.txt").write_text(text)
        sdk.tasks.progress(done / len(pages), f"{done} of {len(pages)} pages")
    return {"pages": len(pages), "for": sdk.request().user_id, "session": sdk.request().session_key}


@sdk.task("tidy", every=3600)
def tidy() -> dict[str, Any]:
    """Remove what was collected, once an hour. By the clock there is no user, and no session to approve anything in."""
    kept = list(sdk.data_dir().glob("*.txt"))
    for page in kept:
        page.unlink()
    return {"removed": len(kept), "session": sdk.request().session_key}


@sdk.task("misbehave")
def misbehave(other: str, task_of_another: str) -> dict[str, str]:
    """Try in the background what the module must not do either, and return what became of it."""
    attempts = {
        "read a file of the host": lambda: Path("/etc/passwd").read_text(),
        "fetch what is not declared": lambda: _fetch(other),
        "start a program by itself": lambda: subprocess.run(["/bin/true"], check=True),
        "look at a task of another module": lambda: sdk.tasks.blocking.status(task_of_another),
        "stop a task of another module": lambda: sdk.tasks.blocking.cancel(task_of_another),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - the guard checks it
        return answer.read(100_000).decode()


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (PermissionError, LookupError) as error:
        return type(error).__name__
    return "it worked"
