"""Shows pictures that lie elsewhere. The runtime fetches them, under what this module declares or was approved."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

from democrai_sandbox import sdk
from democrai_sandbox.errors import NetworkDenied

CACHE = "media-cache"


@sdk.action("show")
async def show(url: str) -> dict[str, Any]:
    """Return what is known about a picture, or that somebody has to approve its site first."""
    try:
        picture = await sdk.media.fetch(url, headers={"Accept": "image/*"}, max_bytes=5_000_000, timeout=10)
    except NetworkDenied as denial:
        return {"locked": denial.target, "request": denial.request_id}
    except sdk.media.MediaError as error:
        return {"failed": error.code, "why": str(error)}
    return {
        "status": picture.status,
        "type": picture.headers.get("content-type", ""),
        "bytes": len(picture.body),
        "from": picture.url,
        "kept": picture.from_cache,
    }


@sdk.action("preview")
async def preview(url: str, size: int) -> bytes:
    """Return the first bytes of something large, and let the rest go."""
    async with await sdk.media.stream(url, range=f"bytes=0-{size - 1}") as stream:
        found = b""
        async for part in stream:
            found += part
            if len(found) >= size:
                break
        return found[:size]


@sdk.command("size")
def size(url: str) -> int:
    """Return how large something is, without fetching it. A plain function: it waits for the answer."""
    return int(sdk.media.fetch_blocking(url, method="HEAD").headers.get("content-length", "0"))


@sdk.command("misbehave")
def misbehave(declared: str, other: str) -> dict[str, str]:
    """Try what media are no way to, and return what became of it."""
    host, port = other.split("/")[2].split(":")
    attempts = {
        "fetch what is not declared": lambda: sdk.media.fetch_blocking(other),
        "be led there by a redirect": lambda: sdk.media.fetch_blocking(f"{declared}/moved"),
        "open it without the runtime": lambda: urllib.request.urlopen(other, timeout=1),  # noqa: S310 - it must not work
        "connect to the host": lambda: socket.create_connection((host, int(port)), 1),
        "send a cookie along": lambda: sdk.media.fetch_blocking(declared, headers={"Cookie": "a=b"}),
        "post something": lambda: sdk.media.fetch_blocking(declared, method="POST"),
        "read a file": lambda: sdk.media.fetch_blocking("file:///etc/passwd"),
    }
    return {name: _try(attempt) for name, attempt in attempts.items()}


@sdk.command("poison")
def poison() -> int:
    """Put other bytes into what is kept for this module, which lies among its own data; return into how many."""
    folder = Path(sdk.data_dir()) / CACHE
    entries = list(folder.iterdir())
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-1] + b"!")
    return len(entries)


def _try(attempt: Any) -> str:
    try:
        attempt()
    except (PermissionError, ValueError) as error:
        return type(error).__name__
    return "it worked"
