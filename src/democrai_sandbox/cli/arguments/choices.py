"""Choices of options, copied from enums that are slow to import. A test keeps them equal."""

from __future__ import annotations

SUBJECT_KINDS = ("module", "task", "engine", "extractor", "mcp", "tool", "agent", "pipeline", "skill", "core")
RESOURCE_TYPES = ("network", "filesystem", "system_dependency")
OPERATIONS = ("connect", "receive", "send", "read", "create", "modify", "delete", "execute")
MANIFEST_KINDS = ("module", "engine", "extractor", "mcp", "tool", "agent", "pipeline")
MCP_TRANSPORTS = ("streamable_http", "sse")
SCOPES = ("session", "permanent")
REQUEST_STATES = (
    *("pending", "approved_for_session", "approved", "denied", "aged_out"),
    *("revoked", "expired", "replaced"),
)
AUDIT_ACTIONS = (
    *("requested", "approved_for_session", "approved", "denied", "revoked", "expired", "session_ended", "aged_out"),
    *("resume_attached", "resume_succeeded", "resume_failed", "check_failed"),
    *("account_signed_in", "account_sign_in_failed", "account_signed_out", "account_password_changed"),
    *("account_added", "account_changed", "account_token_made", "account_token_revoked"),
    *("noted", "shadow_started", "shadow_ended"),
)
LOG_FORMATS = ("text", "json")
