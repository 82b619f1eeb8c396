"""Shows a forecast from wherever its user says: a module that declares nothing, is stopped, and goes on by itself.

Which server that is no manifest can know. So the module asks, and leaves word how to go on: after an approval the
action runs again for the same user, with what was kept for it.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from democrai_sandbox import sdk

FILE = "weather.json"


@sdk.render
def render() -> dict[str, Any]:
    """Return what the page shows: the last forecast, and what waits for an approval."""
    kept = _kept()
    return {"title": "Weather", "forecast": kept.get("forecast", "none yet"), "waiting for": kept.get("waiting", [])}


@sdk.action("fetch")
async def fetch(url: str) -> dict[str, Any]:
    """Fetch a forecast, and keep it for the page."""
    decision = sdk.access.require_external_access(
        resource_type=sdk.access.EXTERNAL_RESOURCE_NETWORK,
        operation="receive",
        target=url,
        resume_action="fetch",
        resume_context={"url": url},
    )
    waiting = [other for other in _kept().get("waiting", []) if other != url]
    if not decision.allowed:
        _keep(waiting=[*waiting, url])
    # Until somebody has approved it this raises an error that says what is missing, and whom to ask.
    forecast = await sdk.tasks.run_blocking(_read, url)
    _keep(forecast=forecast, waiting=waiting)
    return {"forecast": forecast, "for": sdk.request().user_id}


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the guard checks it
        return answer.read(10_000).decode()


def _kept() -> dict[str, Any]:
    place = sdk.data_dir() / FILE
    return dict(json.loads(place.read_text())) if place.exists() else {}


def _keep(**changes: Any) -> None:
    (sdk.data_dir() / FILE).write_text(json.dumps({**_kept(), **changes}))
