"""Adapters for HTTP clients and event loops, applied when a client is imported. The guard imports none of them.

An adapter is a function that gets the loaded module and returns whether it is done: False while the module is still
being imported. Repeated calls have no effect. It needs no rights and runs with those of the importing code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import aiohttp, event_loops, http_client, httpx, urllib3
from .event_loops import DIVERTED

if TYPE_CHECKING:
    from .adapter import Install

__all__ = ["ADAPTERS", "DIVERTED"]

ADAPTERS: dict[str, Install] = {
    "http.client": http_client.install,
    "urllib.request": http_client.install_urllib_request,
    "urllib3": urllib3.install,
    "pip._vendor.urllib3": urllib3.install,
    "requests": urllib3.install_requests,
    "pip._vendor.requests": urllib3.install_requests,
    "httpcore": httpx.install_httpcore,
    "httpcore2": httpx.install_httpcore,
    "httpx": httpx.install,
    "httpx2": httpx.install,
    "httpx2.websockets": httpx.install_websockets,
    "httpx_ws": httpx.install_websockets,
    "aiohttp": aiohttp.install,
    "asyncio.base_events": event_loops.install,
    "asyncio.selector_events": event_loops.install_selector,
}
