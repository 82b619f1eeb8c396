"""Writes a report for each month: a module with a page, actions and a command."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox import sdk

if TYPE_CHECKING:
    from collections.abc import Callable


@sdk.render
def render() -> dict[str, Any]:
    """Return what the page shows: for whom it is, and which reports there are."""
    written = sorted(path.stem for path in sdk.data_dir().glob("*.txt"))
    return {"title": "Reports", "for": sdk.request().user_id, "months": written}


@sdk.action("write")
async def write(month: str, sales: str, rates: str) -> str:
    """Write the report of a month, of a file and a URL that the manifest declares; return it."""
    total = await sdk.tasks.run_blocking(_total, sales, month)
    rate = await sdk.tasks.run_blocking(_fetch, f"{rates}/{month}")
    report = f"{month}: {total} sold; {rate}"
    (sdk.data_dir() / f"{month}.txt").write_text(report)
    return report


@sdk.action("import")
def take_over(path: str) -> dict[str, Any]:
    """Read figures from wherever the user says. That no manifest can know: somebody has to approve it."""
    decision = sdk.access.require_external_access(
        resource_type=sdk.access.EXTERNAL_RESOURCE_FILESYSTEM,
        operation="read",
        target=path,
        resume_action="reports.import",
        resume_context={"path": path},
    )
    if not decision.allowed:
        return {"waits for": decision.request_id, "why": decision.message}
    return {"figures": Path(path).read_text().strip()}


@sdk.command("read")
def read(month: str) -> str:
    """Return a report that was written before."""
    return (sdk.data_dir() / f"{month}.txt").read_text()


@sdk.command("misbehave")
def misbehave(sales: str, rates: str) -> dict[str, str]:
    """Try what a module must not do, and return what became of it."""
    host, port = rates.split("/")[2].split(":")
    attempts = {
        "read a file of the host": lambda: Path("/etc/passwd").read_text(),
        "change what it may only read": lambda: Path(sales, "may.csv").write_text("0"),
        "change its own code": lambda: (sdk.extension_dir() / "module.py").write_text(""),
        "look at the data of others": lambda: list(sdk.data_dir().parent.iterdir()),
        "fetch another page of the server": lambda: _fetch(rates.replace("/rates", "/accounts")),
        "post to the page it may fetch": lambda: urllib.request.urlopen(rates, b"0", timeout=5),  # noqa: S310 - it is refused
        "open a socket to the server": lambda: socket.create_connection((host, int(port)), 5),
        "start a program by itself": lambda: subprocess.run(["/bin/true"], check=True),
        "use native code": lambda: importlib.import_module("ctypes"),
        "call itself something else": lambda: os.environ.update(DEMOCRAI_NETWORK_SUBJECT="core"),
        "decide for itself": lambda: sdk.access.approve_permanently("1"),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


def _total(sales: str, month: str) -> int:
    return sum(map(int, Path(sales, f"{month}.csv").read_text().split(",")))


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - the guard checks it
        return answer.read(10_000).decode()


def _try(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except PermissionError as error:
        return type(error).__name__
    return "it worked"
