"""Scopes of an API token. A token acts for its owner and never has more rights than the owner."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Permission of a token."""

    REQUESTS_READ = "requests:read"
    REQUESTS_DECIDE = "requests:decide"
    APPROVALS_READ = "approvals:read"
    """Approvals and denials."""
    APPROVALS_REVOKE = "approvals:revoke"
    SUBJECTS_READ = "subjects:read"
    """Subjects, extensions with their manifests, and explanations."""
    EXTENSIONS_MANAGE = "extensions:manage"
    """Installing engines and extractors, their settings, and MCP servers."""
    MODULES_RUN = "modules:run"
    """Renders, actions, commands, and starting tasks."""
    TASKS_READ = "tasks:read"
    TASKS_CANCEL = "tasks:cancel"
    AUDIT_READ = "audit:read"
    STATUS_READ = "status:read"
    """Status and metrics."""
    ACCOUNTS_MANAGE = "accounts:manage"
    """Users, sessions and tokens."""
