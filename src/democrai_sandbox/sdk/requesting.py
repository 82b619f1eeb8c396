"""The request that is being served, and the places an extension has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from democrai_sandbox.runtime import doors


class Request(NamedTuple):
    """For whom the extension is working. Empty texts stand for what is not there: a schedule has no session."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


def request() -> Request:
    """Return for whom this call is made, as the runtime knows it."""
    return Request(*doors.call("request"))


def data_dir() -> Path:
    """Return the folder in which this extension keeps its data. It is the only one it can write without declaring."""
    return Path(doors.call("places")[0])


def extension_dir() -> Path:
    """Return the folder with this extension's manifest and code, which it can read."""
    return Path(doors.call("places")[1])


def cancelled() -> bool:
    """Tell whether this call was cancelled. A coroutine is told by its cancellation; a plain function has to look.

    In the host's own process nothing can tell a plain function: it is always False there.
    """
    return bool(doors.is_served("cancelled") and doors.call("cancelled"))
