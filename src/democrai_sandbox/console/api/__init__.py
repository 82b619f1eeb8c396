"""HTTP API, ``/api/v1``. Every router is in one of the two lists."""

from __future__ import annotations

from democrai_sandbox.console import health, problems
from democrai_sandbox.host.host_only import taken

from . import accounts, decisions, extensions, subjects
from .openapi import document

__all__ = ["document", "routers", "unversioned"]

routers = taken(
    "console",
    (decisions, "requests"),
    (decisions, "decision_calls"),
    (decisions, "decisions"),
    (subjects, "subjects"),
    (extensions, "extensions"),
    (extensions, "mcp"),
    (extensions, "models"),
    (subjects, "explanations"),
    (subjects, "shadows"),
    (extensions, "modules"),
    (extensions, "tasks"),
    (accounts, "audit"),
    (subjects, "status"),
    (accounts, "accounts"),
)
"""Return the routers below ``/api/v1``, to the host only, because a route could be changed to call anything."""
unversioned = taken("console", (health, "health"), (health, "metrics"), (problems, "error_pages"))
"""Return the routers at the top: health, metrics, and the pages of error codes."""
