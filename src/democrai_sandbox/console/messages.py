"""Messages after an action, selected by a code in the address, so that a link cannot inject text into a page."""

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
        "noted": "The note is saved.",
        "revoked": "Revoked.",
        "denial_removed": "The denial is removed.",
        "undone": "Undone. The decision has ended, and its requests are pending again.",
        "undone_partly": "Undone. Requests that have already resumed, or were filed again, stay answered.",
        "undone_some": "The decisions below were not undone, with the reason beside each. The others have ended.",
        # users and sessions
        "signed_out": "Signed out.",
        "session_ended": "The session has ended.",
        "sessions_ended": "All other sessions have ended.",
        "password_changed": "The password is changed.",
        "person_created": "The user can sign in now.",
        "person_disabled": "The user is disabled, and all sessions of the user have ended.",
        "person_signed_out": "All sessions of the user have ended.",
        "person_enabled": "The user is enabled.",
        "person_changed": "The user is changed.",
        "token_revoked": "The token is revoked.",
        # extensions and tasks
        "task_started": "The task is started.",
        "task_cancelled": "The task is canceled.",
        "install_started": "The installation is running.",
        "settings_changed": "The setting is changed. The next call starts a worker with it.",
        "server_added": "The MCP server is registered.",
        "server_enabled": "The MCP server is enabled.",
        "server_disabled": "The MCP server is disabled.",
        "server_removed": "The MCP server is removed.",
        "model_added": "The model is added. Agents can use it at once.",
        "model_changed": "The model is changed. Agents use the change from their next call.",
        "model_key_removed": "The key of the model is removed.",
        "model_removed": "The model is removed.",
        "shadow_started": "The shadow run has started. The current manifest still decides.",
        "shadow_ended": "The shadow run has ended. Its findings are kept.",
        "self_test_done": "The self-test has run.",
    }
)
"""Messages by the value of ``done`` in the address."""
