"""Pages of the console. Every router is in the list."""

from __future__ import annotations

from democrai_sandbox.console import live
from democrai_sandbox.host.keeping import taken

from . import (
    account,
    audit,
    bulk,
    deciding,
    decisions,
    explain,
    extensions,
    login,
    people,
    requests,
    running,
    shadows,
    status,
    subjects,
    tasks,
)

routers = taken(
    "console",
    (live, "router"),
    (bulk, "router"),
    (requests, "router"),
    (deciding, "router"),
    (decisions, "router"),
    (login, "router"),
    (account, "router"),
    (people, "router"),
    (subjects, "router"),
    (extensions, "router"),
    (running, "router"),
    (shadows, "router"),
    (tasks, "router"),
    (audit, "router"),
    (status, "router"),
    (explain, "router"),
)
"""Return the routers, to the host only, because a route could be changed to call anything."""
