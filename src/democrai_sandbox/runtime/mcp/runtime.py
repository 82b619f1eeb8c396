"""MCP runtime: settings, checks, calls and results of registered servers, and the services for extension code."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import Counter
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from democrai_sandbox.errors import GuardUsageError
from democrai_sandbox.errors.services import McpBusy, McpDisabled, McpMissing, McpToolFailed, McpUnknown
from democrai_sandbox.guard import Guard, is_guarded, plain
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.policy import DecisionCode, InvalidInputError, Operation, Subject, SubjectKind
from democrai_sandbox.policy.text import invisible_character
from democrai_sandbox.runtime.access_environment import caller_of, network_denial, network_question
from democrai_sandbox.runtime.calls.invocation import require_object
from democrai_sandbox.runtime.extensions.settings import McpApproval
from democrai_sandbox.runtime.sdk_services import SdkFutures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.runtime.store import RuntimeStore


MEGABYTE = 1 << 20
LONGEST_TOOL_NAME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """Approval mode and limits. Exceeding a limit is an error: nothing is truncated silently."""

    approval: McpApproval = McpApproval.REGISTERED
    calls_at_once: int = 16
    """Maximum running calls of a subject to one server; the host itself has no limit."""
    answer_bytes: int = 4 * MEGABYTE
    """Maximum bytes of all answers during one call."""
    answer_brackets: int = 50_000
    """Maximum lists and objects in all answers: they need far more memory than bytes on the wire."""
    argument_bytes: int = MEGABYTE
    """Maximum size of a call's arguments as JSON."""
    tools: int = 1000
    pages: int = 100
    """Maximum pages of a list of tools."""
    depth: int = 64
    """Maximum nesting depth of lists and objects."""
    closing_seconds: float = 2.0
    """Timeout for closing the connection, after the answer has arrived."""


# Modules that the library and its client would otherwise import during a conversation.
LATE: Final = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "httpcore2",
    "httpcore2._backends.anyio",
    "httpcore2._backends.auto",
)
_MODELS: Final = frozenset({"mcp", "mcp_types"})
_LOGGERS: Final = ("mcp", "client")  # its sessions log under the second name


def conversations(server: str) -> ModuleType:
    """Return the module that implements conversations; the first call loads it (about a second)."""
    if is_guarded():
        raise GuardUsageError("guarded code cannot use the MCP runtime directly: use sdk.mcp")
    try:
        return _load()
    except ModuleNotFoundError as error:
        raise McpMissing(server, f"install democrai-sandbox[mcp]: the module {error.name} is missing") from None


@cache
def _load() -> ModuleType:
    import_module("mcp.client")
    for name in LATE:
        import_module(name)
    _complete(import_module("pydantic").BaseModel)
    for name in _LOGGERS:
        # It logs the errors that it also raises; without a handler they would go to standard error.
        logging.getLogger(name).addHandler(logging.NullHandler())
    return import_module(f"{__package__}.conversation")


def _complete(base: Any) -> None:
    """Complete the library's models that are otherwise built on first use.

    Building one inspects the variables of its first user for type definitions. Inside a guard that is refused for our
    frames.
    """
    for model in base.__subclasses__():
        if model.__module__.partition(".")[0] in _MODELS and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)
        _complete(model)


_USED = (Operation.SEND, Operation.RECEIVE)
"""Operations of both transports: they post messages and receive answers. They need no other sockets."""


def check_endpoint(
    decider: AccessService, server: McpServer, caller: Caller, chain: tuple[str, ...], *, required: bool
) -> None:
    """Ask about the endpoint before anything is sent; raise the guard's own ``NetworkDenied``.

    The guard will allow the registry entry. A denial of the endpoint for this server is the later and narrower
    decision, and wins; so the question bypasses the allowlist, which would otherwise answer it. If approval is
    ``required`` and missing, a request is filed.
    """
    subject = Subject(SubjectKind.MCP, server.name)
    who = (caller.user_id or None, caller.organization_id or None, caller.session_key or None)
    questions = [
        network_question(subject, (*chain, str(subject)), (operation, server.target), who, register=required)
        for operation in _USED
    ]
    # Ask all questions before refusing one, so that the administrator sees all necessary approvals together.
    answers = [(question, decider.decide(question)) for question in questions]
    for question, answer in answers:
        if not (answer.allowed is True if required else answer.code != DecisionCode.DENIED):
            raise network_denial(question, answer)


def guard_of(server: McpServer, caller: Caller, chain: tuple[str, ...]) -> Guard:
    """Return the guard of one conversation: only the endpoint, without paths, imports, children or inherited rights."""
    return make_guard(
        subject=server.name,
        subject_kind=SubjectKind.MCP.value,
        access=tuple(rule for rule in server.access if rule.operation in _USED),
        include_runtime_paths=False,
        ancestors=tuple(map(Subject.parse, chain)),
        exact=True,
        user_id=caller.user_id or None,
        organization_id=caller.organization_id or None,
        session_key=caller.session_key or None,
    )


_LONGEST_CALL = 7300.0
"""Upper limit in seconds: connecting and answering each have the timeout of the registry entry, an hour at most."""


@dataclass(eq=False, repr=False)
class McpRuntime:
    """Lists and calls the tools of registered servers. Each call is a separate conversation, under its own guard.

    Connections are not kept open: they would have to be separated by server, call chain and user, and could outlive the
    decision that permitted them.

    An import inside the guard of a server would run as that server, under its rules and its timeout. So everything a
    conversation uses is loaded before, including ``_cffi_backend``, which no subject may import.
    """

    registry: RuntimeStore
    decider: AccessService
    """Answers about the endpoints of servers."""
    settings: McpSettings = field(default_factory=McpSettings)
    _: KW_ONLY
    tls: ssl.SSLContext | None = None
    """For servers with certificates that the system does not trust."""
    _under_way: Counter[tuple[str, ...]] = field(default_factory=Counter, init=False)
    promises: SdkFutures = field(default_factory=lambda: SdkFutures("mcp", patience=_LONGEST_CALL), init=False)
    """Gives extension code bare futures of this runtime's results."""

    def prepare(self) -> None:
        """Load the library now, which takes about a second, instead of with the first call."""
        conversations("")
        self._certificates()

    async def servers(self) -> tuple[McpServer, ...]:
        """Return all registered servers, enabled or not."""
        return await asyncio.to_thread(self.registry.mcp_servers)

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
        if type(tool) is not str or not 0 < len(tool) <= LONGEST_TOOL_NAME or invisible_character(tool):
            raise InvalidInputError.of(f"expected a name of 1 to {LONGEST_TOOL_NAME} characters", pointer="/tool")
        found: dict[str, Any] = await self._talk(name, tool, self._arguments(arguments), caller, chain)
        if found.pop("is_error"):
            raise McpToolFailed(name, text_of(found["content"]), found["content"])
        return found

    async def _talk(self, name: str, tool: str, arguments: str, caller: Caller, chain: tuple[str, ...]) -> Any:
        # On a thread, because the import of the library and the registry block.
        library, server = await asyncio.to_thread(self._found, name)
        required = self.settings.approval is McpApproval.REQUIRED
        check_endpoint(self.decider, server, caller, chain, required=required)
        order = library.ConversationRequest(
            server=server.name,
            transport=str(server.transport),
            url=server.endpoint_url,
            seconds=server.timeout_ms / 1000,
            tool=tool,
            arguments=arguments,
            limits=self.settings,
        )
        with self._place(name, chain):
            # Only text comes back, so no object that was made from the server's data reaches the host.
            return json.loads(await guard_of(server, caller, chain).run(library.converse, order, self._certificates()))

    @contextmanager
    def _place(self, name: str, chain: tuple[str, ...]) -> Iterator[None]:
        """Occupy one of the outermost subject's slots for this server."""
        key = (name, *chain[:1])
        if chain and self._under_way[key] >= self.settings.calls_at_once:
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
            server = self.registry.mcp_server(name)
        except LookupError:
            fix = f"an administrator adds it with 'democrai-sandbox mcp add {name}', or in the console"
            raise McpUnknown(name, f"no MCP server of this name is registered; {fix}") from None
        if not server.enabled:
            fix = f"an administrator enables it with 'democrai-sandbox mcp change {name} --enable', or in the console"
            raise McpDisabled(name, f"the server is registered, but not enabled; {fix}")
        return library, server

    def _arguments(self, arguments: object) -> str:
        given = require_object(arguments, "/arguments")
        try:
            text = json.dumps(plain(given), allow_nan=False)
        except InvalidInputError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidInputError.of(f"not JSON: {error}", pointer="/arguments") from None
        if len(text) > self.settings.argument_bytes:
            message = f"expected at most {self.settings.argument_bytes} characters of JSON, got {len(text)}"
            raise InvalidInputError.of(message, pointer="/arguments")
        return text

    def _certificates(self) -> ssl.SSLContext:
        """Return the TLS context, created once outside the guard, which cannot open the certificate files."""
        if self.tls is None:
            self.tls = ssl.create_default_context()
        return self.tls


def text_of(content: list[Any]) -> str:
    """Return the texts of a content, for an error."""
    texts = [block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return " ".join(texts) or "the server gave no reason"


def services(runtime: McpRuntime) -> Mapping[str, Callable[..., Any]]:
    """Return the services ``mcp.tools(server)`` and ``mcp.call(server, tool, arguments)`` for ``sdk_services.install``.

    Each returns a future of plain data after the runtime is open.
    """

    def tools(view: RawView | None, server: str) -> Any:
        return runtime.promises.promise(runtime.list_tools(server, caller_of(view), chain=view.labels if view else ()))

    def call(view: RawView | None, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        work = runtime.call_tool(server, tool, arguments, caller_of(view), chain=view.labels if view else ())
        return runtime.promises.promise(work)

    return {"mcp.tools": tools, "mcp.call": call}
