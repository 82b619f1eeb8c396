"""Adapters for HTTP clients and event loops, applied when a client is imported. The guard imports none of them.

An adapter is a function that gets the loaded module and returns whether it is done: False while the module is still
being imported. Repeated calls have no effect. It needs no rights and runs with those of the importing code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import aiohttp, asyncio_events, http_client, httpcore, httpx, requests, urllib3, urllib_request
from .uvloop import DIVERTED

if TYPE_CHECKING:
    from .patching import Install

__all__ = ["ADAPTERS", "DIVERTED"]

ADAPTERS: dict[str, Install] = {
    "http.client": http_client.install,
    "urllib.request": urllib_request.install,
    "urllib3": urllib3.install,
    "pip._vendor.urllib3": urllib3.install,
    "requests": requests.install,
    "pip._vendor.requests": requests.install,
    "httpcore": httpcore.install,
    "httpcore2": httpcore.install,
    "httpx": httpx.install,
    "httpx2": httpx.install,
    "httpx2.websockets": httpx.install_websockets,
    "httpx_ws": httpx.install_websockets,
    "aiohttp": aiohttp.install,
    "asyncio.base_events": asyncio_events.install,
    "asyncio.selector_events": asyncio_events.install_selector,
}
