"""What a page says after an act: known codes in the address, so that nobody else's words get onto a page."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        # requests and decisions
        "approved_for_session": "Approved until that session ends.",
        "approved": "Approved permanently.",
        "denied": "Denied.",
        "noted": "The note is kept with the request.",
        "revoked": "Revoked.",
        "denial_removed": "The denial is removed.",
        "undone": "Undone: the decision has ended, and the requests that it answered wait again.",
        "undone_partly": "Undone. Requests whose action has resumed already, or that were made again, stay answered.",
        "undone_some": "The decisions below were not undone: each says why. The others have ended.",
        # people and sessions
        "signed_out": "Signed out.",
        "session_ended": "The session has ended.",
        "sessions_ended": "All other sessions have ended.",
        "password_changed": "The password is changed.",
        "person_created": "The person can sign in now.",
        "person_disabled": "The person is shut out; their sessions have ended.",
        "person_signed_out": "All sessions of that person have ended.",
        "person_enabled": "The person can sign in again.",
        "person_changed": "The person is changed.",
        "token_revoked": "The token is revoked.",
        # extensions and tasks
        "task_started": "The task is started.",
        "task_cancelled": "The task is cancelled.",
        "install_started": "The installation is running.",
        "settings_changed": "The setting is changed. The next call starts a process with it.",
        "server_added": "The MCP server is registered.",
        "server_enabled": "The MCP server is enabled.",
        "server_disabled": "The MCP server is disabled.",
        "server_removed": "The MCP server is removed.",
        "model_added": "The model is added. Agents can use it at once.",
        "model_changed": "The model is changed. Agents use it so from their next question on.",
        "model_key_removed": "The key of the model is removed.",
        "model_removed": "The model is removed.",
        "shadow_started": "It runs beside the candidate now. What it may do has not changed.",
        "shadow_ended": "The run has ended; what was found is kept.",
        "self_test_done": "The self-test has run.",
    }
)
"""By the code that an address carries as ``done``."""
