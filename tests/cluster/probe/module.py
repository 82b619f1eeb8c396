"""Fetches what it is told to, waits for as long as it is told to, and counts in its own folder."""

from __future__ import annotations

import asyncio
import urllib.request

from democrai_sandbox import sdk


@sdk.render
def render():
    return {"title": "Probe"}


@sdk.action("fetch")
async def fetch(url):
    return await sdk.tasks.run_blocking(_read, url)


@sdk.action("fetch_later")
async def fetch_later(url, seconds=0):
    sdk.access.require_external_access(
        resource_type="network",
        operation="receive",
        target=url,
        resume_action="fetch_later",
        resume_context={"url": url, "seconds": seconds},
    )
    found = await sdk.tasks.run_blocking(_read, url)
    await asyncio.sleep(seconds)
    return found


@sdk.task("wait", timeout=600)
async def wait(seconds):
    await asyncio.sleep(seconds)


def _read(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read(10_000).decode()
