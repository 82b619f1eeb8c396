"""The served request, and the folders of an extension."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from democrai_sandbox.runtime import sdk_services


class Request(NamedTuple):
    """Caller of the extension. Missing values are empty: a schedule has no session."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


def request() -> Request:
    """Return the caller of the current call, as the runtime knows it."""
    return Request(*sdk_services.call("request"))


def data_dir() -> Path:
    """Return the data folder of this extension, the only one it can write without a declaration."""
    return Path(sdk_services.call("places")[0])


def extension_dir() -> Path:
    """Return the folder with this extension's manifest and code, which it can read."""
    return Path(sdk_services.call("places")[1])


def cancelled() -> bool:
    """Return whether this call was canceled. A coroutine is canceled directly; a plain function has to check.

    In the host's own process it is always False for a plain function.
    """
    return bool(sdk_services.is_served("cancelled") and sdk_services.call("cancelled"))
