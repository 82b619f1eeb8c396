"""HTTP API, ``/api/v1``. Every router is in one of the two lists."""

from __future__ import annotations

from democrai_sandbox.console import error_pages, health, metrics
from democrai_sandbox.host.keeping import taken

from . import (
    accounts,
    audit,
    deciding,
    decisions,
    explaining,
    extensions,
    mcp,
    models,
    modules,
    requests,
    shadows,
    status,
    subjects,
    tasks,
)
from .documenting import document

__all__ = ["document", "routers", "unversioned"]

routers = taken(
    "console",
    (requests, "requests"),
    (deciding, "deciding"),
    (decisions, "decisions"),
    (subjects, "subjects"),
    (extensions, "extensions"),
    (mcp, "mcp"),
    (models, "models"),
    (explaining, "explaining"),
    (shadows, "shadows"),
    (modules, "modules"),
    (tasks, "tasks"),
    (audit, "audit"),
    (status, "status"),
    (accounts, "accounts"),
)
"""Return the routers below ``/api/v1``, to the host only, because a route could be changed to call anything."""
unversioned = taken("console", (health, "health"), (metrics, "metrics"), (error_pages, "error_pages"))
"""Return the routers at the top: health, metrics, and the pages of error codes."""
