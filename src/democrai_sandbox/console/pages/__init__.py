"""Pages of the console. Every router is in the list."""

from __future__ import annotations

from democrai_sandbox.console import live_updates
from democrai_sandbox.host.host_only import taken

from . import accounts, bulk_decisions, decisions, extensions, requests, subjects

routers = taken(
    "console",
    (live_updates, "router"),
    (bulk_decisions, "router"),
    (requests, "router"),
    (decisions, "router"),
    (accounts, "router"),
    (subjects, "router"),
    (extensions, "router"),
)
"""Return the routers, to the host only, because a route could be changed to call anything."""
