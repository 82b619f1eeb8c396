"""Errors of the services that extensions use: tools and agents, MCP servers and their registry, media."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping


class AssetUnknown(SandboxError, LookupError):
    """No tool, agent or pipeline of this name is visible to the caller.

    Nothing ran. The text suggests the nearest name.
    """

    code = "asset_unknown"
    guidance = """
    Cause: The name is misspelled, or the asset belongs to another module that does not share it.
    Fix: Correct the name, or declare the asset with `shared=True` in the other module.
    Example:
    await sdk.ai.run_tool("fetch_repotr", {"id": 7})
    -> AssetUnknown: ... 'fetch_repotr'; did you mean 'fetch_report'?
    See: ai.md
    """


class NestingTooDeep(SandboxError, RecursionError):
    """Tools, agents and pipelines call each other too deeply.

    The innermost call was refused; the text shows the end of the call chain.
    """

    code = "nesting_too_deep"
    guidance = """
    Cause: An asset calls itself through other assets.
    Fix: Break the cycle that the text shows.
    Example:
    Agent planner calls tool search, and tool search calls agent planner:
    -> NestingTooDeep: ... agent:demo.planner -> tool:demo.search -> agent:demo.planner is nested more than 24 deep
    See: ai.md
    """


class RunStopped(SandboxError, RuntimeError):
    """An agent or pipeline exceeded its limits.

    The run ended without a result. Tool calls that completed are not undone.
    """

    code = "run_stopped"
    guidance = """
    Cause: The run needed more turns, more tool calls or more time than its declaration or the host allows.
    Fix: Raise `max_turns`, `max_tool_calls` or `timeout` in the declaration, or split the work.
    Example:
    @sdk.pipeline("answer", steps=["fetch"], timeout=10)      # and one step takes 30 s
    -> RunStopped
    See: ai.md
    """


class ModelFailed(SandboxError, RuntimeError):
    """The model could not be called, or its answer is malformed.

    The run ends. If the address of the model is not declared, the error is ``sandbox_network_denied`` instead.
    """

    code = "model_failed"
    guidance = """
    Cause: The model's server is down or refuses the key, or the host has no model of this name.
    Fix: Add a missing model with `democrai-sandbox models add`, or under `extensions.models` in the configuration;
    `democrai-sandbox models list` shows the models that agents name. Otherwise fix the failure in the text.
    Example:
    @sdk.agent("helper", model="small")      # and the host has no model "small"
    -> ModelFailed
    See: ai.md configuration.md
    """


class StepFailed(SandboxError, RuntimeError):
    """A step of a pipeline failed.

    Later steps did not run. The text names the step and its error, which is also the ``__cause__``.
    """

    code = "step_failed"
    guidance = """
    Cause: A tool, agent or function of the step raised an error, for example a denial or a bad argument.
    Fix: Read the error after the name of the step, and fix that step or its input.
    Example:
    A pipeline has the steps fetch and summarize, and fetch opens an undeclared URL:
    -> StepFailed: ... NetworkDenied: External URL is locked. (sandbox_network_denied:...)
    See: ai.md
    """


STOPPING_ERRORS: dict[str, type[SandboxError]] = {
    error.code: error for error in (AssetUnknown, NestingTooDeep, RunStopped, ModelFailed)
}
"""Errors that cross guards unchanged, by code. Read only."""


_LONGEST_TEXT = 500


class McpError(SandboxError, RuntimeError):
    """A call of an MCP server failed.

    Base class of the MCP errors; catch it to handle all of them. ``server`` is the name of the server, ``why`` the
    reason.
    """

    code = "mcp_failed"
    guidance = """
    Cause: The registry, the connection or the server; the subclass and its code say which.
    Fix: Look up the code of the subclass. Retry `mcp_server_unreachable`, `mcp_server_timeout` and `mcp_server_busy`
    later.
    Example:
    try:
        await sdk.mcp.call_tool("weather", "forecast", {"city": "Oslo"})
    except McpError as error:
        print(error.code, error.server)
    -> mcp_server_timeout weather
    See: mcp.md
    """

    def __init__(self, server: str, why: str) -> None:
        self.server = server
        self.why = printable(why)
        super().__init__(f"{server}: {self.why}")

    @property
    def parts(self) -> tuple[str, str]:
        """The arguments that rebuild the error across a guard or a process."""
        return self.server, self.why

    def __str__(self) -> str:
        return f"{self.code}:{self.server}: {self.why}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.server, self.why), self.__dict__)


class McpUnknown(McpError, LookupError):
    """No MCP server of this name is registered.

    Nothing was sent. A manifest alone does not register a server.
    """

    code = "mcp_server_unknown"
    guidance = """
    Cause: The name is misspelled, or no administrator registered the server.
    Fix: Let an administrator register it with `democrai-sandbox mcp add`, in the console, or under
    `extensions.mcp.servers`.
    Example:
    await sdk.mcp.call_tool("wether", "forecast", {})
    -> McpUnknown: mcp_server_unknown:wether: no MCP server of this name is registered; ...
    See: mcp.md
    """


class McpDisabled(McpError):
    """The MCP server is disabled.

    It is registered, but an administrator disabled it. Nothing was sent.
    """

    code = "mcp_server_disabled"
    guidance = """
    Cause: The entry in the registry is not enabled.
    Fix: Let an administrator enable it with `democrai-sandbox mcp change NAME --enable`, or in the console.
    Example:
    await sdk.mcp.call_tool("weather", "forecast", {})      # disabled in the console
    -> McpDisabled: mcp_server_disabled:weather: the server is registered, but not enabled; ...
    See: mcp.md
    """


class McpMissing(McpError):
    """The ``mcp`` library is not installed.

    MCP servers cannot be called until it is. Everything else works.
    """

    code = "mcp_library_missing"
    guidance = """
    Cause: The package was installed without the extra `mcp`.
    Fix: Run `pip install 'democrai-sandbox[mcp]'` and restart the host.
    Example:
    await sdk.mcp.call_tool("weather", "forecast", {})      # installed with pip install democrai-sandbox
    -> McpMissing: mcp_library_missing:weather: install democrai-sandbox[mcp]: ...
    See: mcp.md
    """


class McpUnreachable(McpError, ConnectionError):
    """The MCP server cannot be reached.

    No connection was made, or it ended before the answer. In the second case it is unknown whether the call had an
    effect.
    """

    code = "mcp_server_unreachable"
    guidance = """
    Cause: The server is down, or its address in the registry is wrong.
    Fix: Start the server, or correct its address with `democrai-sandbox mcp change`.
    Example:
    await sdk.mcp.call_tool("weather", "forecast", {})      # the server is stopped
    -> McpUnreachable: mcp_server_unreachable:weather: ... Connection refused
    See: mcp.md
    """


class McpTimeout(McpError, TimeoutError):
    """The MCP server did not answer in time.

    The call was canceled. It is unknown whether it had an effect.
    """

    code = "mcp_server_timeout"
    guidance = """
    Cause: The server needs longer than `timeout_ms` of its entry, or hangs.
    Fix: Raise `timeout_ms` with `democrai-sandbox mcp change`, or fix the server.
    Example:
    timeout_ms is 5000, and the tool needs 8 s:
    -> McpTimeout: mcp_server_timeout:weather: the server took longer than 5 s, ...
    See: mcp.md
    """


class McpProtocolError(McpError):
    """The answer of the MCP server is not valid MCP, or is too large.

    The answer was discarded.
    """

    code = "mcp_protocol_error"
    guidance = """
    Cause: The registered address is not the MCP endpoint, or the server uses another transport.
    Fix: Correct the address or the transport of the entry.
    Example:
    The entry has https://example.com/ instead of https://example.com/mcp, and gets an HTML page:
    -> McpProtocolError: mcp_protocol_error:weather: ...
    See: mcp.md
    """


class McpRedirected(McpProtocolError):
    """The MCP server redirects to another address.

    The redirect was not followed: messages go only to the registered origin.
    """

    code = "mcp_server_redirected"
    guidance = """
    Cause: The server moved, or tries to send the messages elsewhere.
    Fix: If the new address is right, register it with `democrai-sandbox mcp change`.
    Example:
    https://old.example.com/mcp redirects to https://new.example.com/mcp:
    -> McpRedirected: mcp_server_redirected:weather: the server redirects to https://new.example.com, ...
    See: mcp.md
    """


class McpBusy(McpError):
    """The subject has too many calls of this MCP server running.

    This call was not sent.
    """

    code = "mcp_server_busy"
    guidance = """
    Cause: Calls start faster than the server answers.
    Fix: Wait for running calls before you start more.
    Example:
    await asyncio.gather(*(sdk.mcp.call_tool("weather", "forecast", {"city": city}) for city in a_thousand_cities))
    -> McpBusy: mcp_server_busy:weather: module:trips has 16 calls of this server under way
    See: mcp.md
    """


class McpToolFailed(McpError):
    """The MCP server reports that the call failed.

    The server was reached. ``content`` is its answer as plain data.
    """

    code = "mcp_tool_failed"
    guidance = """
    Cause: The arguments are wrong, or the tool on the server failed.
    Fix: Read the answer of the server in the text, and correct the arguments or the server.
    Example:
    await sdk.mcp.call_tool("weather", "forecast", {"city": 7})
    -> McpToolFailed: mcp_tool_failed:weather: city must be a string
    See: mcp.md
    """

    def __init__(self, server: str, why: str, content: Any = None) -> None:
        """Take the content too, which a model gets to read."""
        super().__init__(server, why)
        self.content = content


def printable(text: str) -> str:
    """Return a remote text as one printable line of bounded length."""
    kept = "".join(character if character.isprintable() else " " for character in text[: _LONGEST_TEXT * 2])
    line = " ".join(kept.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."


class EntryUnknown(SandboxError, LookupError):
    """No MCP server, model or shadow run of this name exists.

    Nothing was changed, in the database and in the running host.
    """

    code = "runtime_entry_unknown"
    guidance = """
    Cause: The name or id is misspelled, or belongs to another database.
    Fix: List the entries with `democrai-sandbox mcp list`, `models list` or `shadow list`, and add a missing one.
    Example:
    $ democrai-sandbox mcp remove wether
    runtime_entry_unknown: ... wether
    See: mcp.md
    """


class EntryExists(SandboxError, ValueError):
    """An MCP server, model or shadow run of this name already exists.

    The existing entry was not changed.
    """

    code = "runtime_entry_exists"
    guidance = """
    Cause: The entry was added twice, or the subject already runs beside a candidate manifest.
    Fix: Change the entry with `democrai-sandbox mcp change` or `models change`, stop the shadow run, or use another
    name.
    Example:
    $ democrai-sandbox mcp add weather --endpoint https://mcp.example.com/mcp     # twice
    runtime_entry_exists: ... weather ...
    See: mcp.md
    """


class EntryConfigured(SandboxError, ValueError):
    """The configuration sets this entry.

    Nothing was changed: entries of the configuration replace those of the database and are fixed while the host runs.
    """

    code = "runtime_entry_configured"
    guidance = """
    Cause: The configuration file or a variable names this MCP server, model, or the settings of this engine or
    extractor.
    Fix: Change the key that the text names in the configuration and restart the host, or remove it there.
    Example:
    $ democrai-sandbox mcp remove weather     # listed under extensions.mcp.servers
    runtime_entry_configured: MCP server weather is set in the configuration: change ... there, and restart
    See: configuration.md
    """


class MediaError(SandboxError):
    """A fetch of external media failed.

    Base class of the media errors; catch it to handle all of them. A refused address is ``sandbox_network_denied``.
    """

    code = "media_failed"
    guidance = """
    Cause: The site, the connection or a limit; the subclass and its code say which.
    Fix: Look up the code of the subclass. Retry `media_unreachable`, `media_broken` and `media_timeout` later.
    Example:
    try:
        await sdk.media.fetch(url)
    except MediaError as error:
        print(error.code)
    -> media_timeout
    See: media.md
    """


class MediaUnreachable(MediaError):
    """The site cannot be reached.

    No connection was made, so nothing was sent.
    """

    code = "media_unreachable"
    guidance = """
    Cause: The name does not resolve, the server is down, or its certificate is invalid.
    Fix: Check the URL in a browser, then retry.
    Example:
    await sdk.media.fetch("https://expired.example.com/logo.png")
    -> MediaUnreachable: expired.example.com:443 cannot be reached: certificate has expired
    See: media.md
    """


class MediaBroken(MediaError):
    """The response is not valid HTTP or is incomplete.

    The data received so far was discarded.
    """

    code = "media_broken"
    guidance = """
    Cause: The server or a proxy sent malformed HTTP, or closed the connection early.
    Fix: Retry. If it fails again, check the server.
    Example:
    The server announces Content-Length: 1000 and closes the connection after 400 bytes:
    -> MediaBroken
    See: media.md
    """


class MediaTooLarge(MediaError):
    """The response is larger than the limit.

    The fetch stopped at the limit, and the data was discarded.
    """

    code = "media_too_large"
    guidance = """
    Cause: The body exceeds `max_bytes` or the limit of the host, or the headers exceed theirs.
    Fix: Raise `max_bytes`, request a range, or stream the body.
    Example:
    await sdk.media.fetch(url, max_bytes=1000)      # the image has 48 kB
    -> MediaTooLarge: the body is larger than 1000 bytes
    See: media.md
    """


class MediaTimeout(MediaError, TimeoutError):
    """The fetch exceeded its timeout.

    Either the whole fetch took too long, or no data arrived for too long.
    """

    code = "media_timeout"
    guidance = """
    Cause: The server is slow, or streams without an end.
    Fix: Retry, request a range, or stream the body.
    Example:
    await sdk.media.fetch("https://radio.example.com/live.mp3")      # never ends
    -> MediaTimeout: the fetch took too long
    See: media.md
    """


class MediaRedirectRefused(MediaError):
    """A redirect was not followed.

    The first response was a redirect; the address after it was not contacted.
    """

    code = "media_redirect_refused"
    guidance = """
    Cause: The redirects form a loop or exceed the maximum, change from `https` to `http`, or name an address that is
    not HTTP.
    Fix: Use the final address of the content.
    Example:
    https://example.com/logo redirects to http://example.com/logo.png:
    -> MediaRedirectRefused
    See: media.md
    """


class MediaBusy(MediaError):
    """The subject has too many fetches running.

    This fetch did not start: no slot became free in time.
    """

    code = "media_busy"
    guidance = """
    Cause: Fetches start faster than servers answer, or streams stay open.
    Fix: Wait for running fetches, and close streams.
    Example:
    await asyncio.gather(*(sdk.media.fetch(url) for url in a_thousand_urls))
    -> MediaBusy: module:gallery has too many fetches under way
    See: media.md
    """


class MediaClosed(MediaError):
    """The stream is closed.

    No more data can be read from it.
    """

    code = "media_closed"
    guidance = """
    Cause: The stream is used after its `async with` block, after its end, or by another extension than the one that
    opened it.
    Fix: Open a new stream.
    Example:
    async with await sdk.media.stream(url) as stream:
        pass
    await stream.read()
    -> MediaClosed
    See: media.md
    """


MEDIA_ERRORS: Mapping[str, type[MediaError]] = MappingProxyType(
    {MediaError.code: MediaError, **{kind.code: kind for kind in MediaError.__subclasses__()}}
)
"""The errors by code, to rebuild them across a guard."""
