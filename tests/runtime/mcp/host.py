"""A host with MCP servers, set up by test bodies in a separate process."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import UTC, datetime


class Host:
    """The access-policy service, the registry in its database, and the MCP runtime over both."""

    def __init__(self, world, *, required=False, tls=None, **limits):
        from democrai_sandbox.access import Access, AccessSettings
        from democrai_sandbox.guard import access_changed, configure_guard
        from democrai_sandbox.runtime.access_environment import GuardSurroundings
        from democrai_sandbox.runtime.mcp import McpApproval, McpRuntime, McpSettings
        from democrai_sandbox.runtime.store import open_runtime_store

        folder = os.path.join(world.base, "state")
        os.makedirs(folder)
        shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(folder, "access.db"))
        database = f"sqlite:///{folder}/access.db"
        settings = AccessSettings(database=database, key_file=f"{folder}/keys", poll_seconds=0.1)
        self.access = Access(settings, GuardSurroundings())
        configure_guard(decider=self.access.service, protected_paths=[folder])
        self.access.node.on_change(access_changed)
        self.store = open_runtime_store(database)
        approval = McpApproval.REQUIRED if required else McpApproval.REGISTERED
        settings = McpSettings(approval=approval, **limits)
        self.mcp = McpRuntime(self.store, self.access.service, settings, tls=tls)
        self.mcp.prepare()

    def __enter__(self):
        self.access.start()
        return self

    def __exit__(self, *_):
        self.access.stop()
        self.store.close()

    def register(self, name, url, transport="streamable_http", **more):
        """Add a server to the registry."""
        entry = {"name": name, "transport": transport, "endpoint_url": url, "timeout_ms": 30_000, **more}
        self.store.add_mcp_server(entry, now=datetime.now(UTC))

    def change(self, name, **changes):
        """Change its entry."""
        self.store.update_mcp_server(name, changes, now=datetime.now(UTC))

    def admin(self, act, *args, **details):
        """Run an operation as an administrator."""
        from democrai_sandbox.access import Caller
        from democrai_sandbox.runtime.access_environment import serving

        with serving(Caller(user_id="ada", role="super")):
            return getattr(self.access.administration, act)(*args, **details)

    def pending(self):
        """Return the pending requests: id, subject, operation, target, chain, user, session."""
        return [
            {
                "id": found.id,
                "subject": str(found.access.subject),
                "operation": str(found.access.operation),
                "target": found.access.target,
                "chain": list(found.chain),
                "user": found.origin.user_id,
                "session": found.origin.session_key,
            }
            for found in self.admin("pending_requests").items
        ]

    def decide(self, effect, subject, operation, target):
        """Record a decision without a request."""
        from democrai_sandbox.policy import Subject

        self.admin(
            "decide_unasked",
            Subject.parse(subject),
            resource_type="network",
            operation=operation,
            target=target,
            effect=effect,
        )

    async def tools(self, name, *, chain=(), **identity):
        """Return the names of a server's tools, or the error."""
        from democrai_sandbox.access import Caller

        work = self.mcp.list_tools(name, Caller(**identity), chain=chain)
        return await told(work, lambda found: [tool["name"] for tool in found])

    async def call(self, name, tool="echo", arguments=None, *, chain=(), **identity):
        """Return the answer of a tool, or the error."""
        from democrai_sandbox.access import Caller

        given = {"text": "hi"} if arguments is None else arguments
        return await told(self.mcp.call_tool(name, tool, given, Caller(**identity), chain=chain))


async def told(work, form=None):
    """Return the result of some work; an error as its class and text."""
    try:
        found = await asyncio.wait_for(work, 60)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return form(found) if form else found
