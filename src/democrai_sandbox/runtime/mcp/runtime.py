"""MCP runtime: checks, calls and results of registered servers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.mcp import McpBusy, McpDisabled, McpToolFailed, McpUnknown
from democrai_sandbox.guard import plain
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import invisible_character
from democrai_sandbox.runtime.promises import Promises

from .answers import LONGEST_TOOL_NAME, text_of
from .checking import check_endpoint, guard_of
from .library import conversations
from .settings import McpApproval, McpSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from democrai_sandbox.access import Caller
    from democrai_sandbox.manifests import McpServer

    from .interface import EndpointDecider, McpRegistry

_LONGEST_CALL = 7300.0
"""Upper limit in seconds: connecting and answering each have the timeout of the registry entry, an hour at most."""


class McpRuntime:
    """Lists and calls the tools of registered servers. Each call is a separate conversation, under its own guard.

    Connections are not kept open: they would have to be separated by server, call chain and user, and could outlive the
    decision that permitted them.
    """

    def __init__(
        self,
        registry: McpRegistry,
        decider: EndpointDecider,
        settings: McpSettings | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Read servers from the registry, and ask the decider (the access-policy service) about their endpoints.

        ``tls`` is for servers with certificates that the system does not trust.
        """
        self._registry = registry
        self._decider = decider
        self._settings = settings or McpSettings()
        self._tls = tls
        self._under_way: Counter[tuple[str, ...]] = Counter()
        self.promises = Promises("mcp", patience=_LONGEST_CALL)
        """Gives extension code bare futures of this runtime's results."""

    def open(self) -> None:
        """Serve extension code on the running loop, which is the host's."""
        self.promises.open()

    def prepare(self) -> None:
        """Load the library now, which takes about a second, instead of with the first call."""
        conversations("")
        self._certificates()

    async def servers(self) -> tuple[McpServer, ...]:
        """Return all registered servers, enabled or not."""
        return await asyncio.to_thread(self._registry.mcp_servers)

    async def list_tools(self, name: str, caller: Caller, *, chain: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Return the tools of a server: ``name``, ``description``, ``input_schema`` and so on, as plain data.

        ``chain`` is the call chain, outermost first; the server continues it as ``mcp:<name>``.
        """
        found: list[dict[str, Any]] = await self._talk(name, "", "{}", caller, chain)
        return found

    async def call_tool(
        self, name: str, tool: str, arguments: dict[str, Any], caller: Caller, *, chain: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return the answer of a tool: ``content``, a list of blocks, and ``structured`` data if any.

        Raise ``McpToolFailed`` if the tool reports a failure.
        """
        _check_tool(tool)
        found: dict[str, Any] = await self._talk(name, tool, self._arguments(arguments), caller, chain)
        if found.pop("is_error"):
            raise McpToolFailed(name, text_of(found["content"]), found["content"])
        return found

    async def _talk(self, name: str, tool: str, arguments: str, caller: Caller, chain: tuple[str, ...]) -> Any:
        # On a thread, because the import of the library and the registry block.
        library, server = await asyncio.to_thread(self._found, name)
        required = self._settings.approval is McpApproval.REQUIRED
        check_endpoint(self._decider, server, caller, chain, required=required)
        order = self._order(library, server, tool, arguments)
        with self._place(name, chain):
            # Only text comes back, so no object that was made from the server's data reaches the host.
            return json.loads(await guard_of(server, caller, chain).run(library.converse, order, self._certificates()))

    @contextmanager
    def _place(self, name: str, chain: tuple[str, ...]) -> Iterator[None]:
        """Occupy one of the outermost subject's slots for this server."""
        key = (name, *chain[:1])
        if chain and self._under_way[key] >= self._settings.calls_at_once:
            raise McpBusy(name, f"{chain[0]} has {self._under_way[key]} running calls to this server; try again later")
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def _found(self, name: str) -> tuple[ModuleType, McpServer]:
        if type(name) is not str:
            raise InvalidInputError.of(f"expected the name of a server, got {type(name).__name__}", pointer="/server")
        library = conversations(name)
        self._certificates()
        try:
            server = self._registry.mcp_server(name)
        except LookupError:
            fix = f"an administrator adds it with 'democrai-sandbox mcp add {name}', or in the console"
            raise McpUnknown(name, f"no MCP server of this name is registered; {fix}") from None
        if not server.enabled:
            fix = f"an administrator enables it with 'democrai-sandbox mcp change {name} --enable', or in the console"
            raise McpDisabled(name, f"the server is registered, but not enabled; {fix}")
        return library, server

    def _order(self, library: ModuleType, server: McpServer, tool: str, arguments: str) -> Any:
        settings = self._settings
        return library.Order(
            server=server.name,
            transport=str(server.transport),
            url=server.endpoint_url,
            seconds=server.timeout_ms / 1000,
            tool=tool,
            arguments=arguments,
            answer_bytes=settings.answer_bytes,
            answer_brackets=settings.answer_brackets,
            tools=settings.tools,
            pages=settings.pages,
            depth=settings.depth,
            closing_seconds=settings.closing_seconds,
        )

    def _arguments(self, arguments: object) -> str:
        if type(arguments) is not dict:
            raise InvalidInputError.of(f"expected an object, got {type(arguments).__name__}", pointer="/arguments")
        try:
            text = json.dumps(plain(arguments), allow_nan=False)
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError.of(f"not JSON: {error}", pointer="/arguments") from None
        if len(text) > self._settings.argument_bytes:
            message = f"expected at most {self._settings.argument_bytes} characters of JSON, got {len(text)}"
            raise InvalidInputError.of(message, pointer="/arguments")
        return text

    def _certificates(self) -> ssl.SSLContext:
        """Return the TLS context, created once outside the guard, which cannot open the certificate files."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _check_tool(tool: object) -> None:
    if type(tool) is not str or not 0 < len(tool) <= LONGEST_TOOL_NAME or invisible_character(tool):
        raise InvalidInputError.of(f"expected a name of 1 to {LONGEST_TOOL_NAME} characters", pointer="/tool")
