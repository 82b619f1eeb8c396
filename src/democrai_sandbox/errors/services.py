"""Errors of the services that extensions use: tools and agents, MCP servers and their registry, media."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.problems import Guidance

if TYPE_CHECKING:
    from collections.abc import Mapping


class AssetUnknown(SandboxError, LookupError):
    """No tool, agent or pipeline of this name is visible to the caller.

    Nothing ran. The text suggests the nearest name.
    """

    code = "asset_unknown"
    guidance = Guidance(
        cause="The name is misspelled, or the asset belongs to another module that does not share it.",
        fix="Correct the name, or declare the asset with `shared=True` in the other module.",
        example="""\
await sdk.ai.run_tool("fetch_repotr", {"id": 7})
-> AssetUnknown: ... 'fetch_repotr'; did you mean 'fetch_report'?""",
        see=("ai.md",),
    )


class NestingTooDeep(SandboxError, RecursionError):
    """Tools, agents and pipelines call each other too deeply.

    The innermost call was refused; the text shows the end of the call chain.
    """

    code = "nesting_too_deep"
    guidance = Guidance(
        cause="An asset calls itself through other assets.",
        fix="Break the cycle that the text shows.",
        example="""\
Agent planner calls tool search, and tool search calls agent planner:
-> NestingTooDeep: ... agent:demo.planner -> tool:demo.search -> agent:demo.planner is nested more than 24 deep""",
        see=("ai.md",),
    )


class RunStopped(SandboxError, RuntimeError):
    """An agent or pipeline exceeded its limits.

    The run ended without a result. Tool calls that completed are not undone.
    """

    code = "run_stopped"
    guidance = Guidance(
        cause="The run needed more turns, more tool calls or more time than its declaration or the host allows.",
        fix="Raise `max_turns`, `max_tool_calls` or `timeout` in the declaration, or split the work.",
        example="""\
@sdk.pipeline("answer", steps=["fetch"], timeout=10)      # and one step takes 30 s
-> RunStopped""",
        see=("ai.md",),
    )


class ModelFailed(SandboxError, RuntimeError):
    """The model could not be called, or its answer is malformed.

    The run ends. If the address of the model is not declared, the error is ``sandbox_network_denied`` instead.
    """

    code = "model_failed"
    guidance = Guidance(
        cause="The model's server is down or refuses the key, or the host has no model of this name.",
        fix=(
            "Add a missing model with `democrai-sandbox models add`, or under `extensions.models` in the "
            "configuration; `democrai-sandbox models list` shows the models that agents name. Otherwise fix the "
            "failure in the text."
        ),
        example="""\
@sdk.agent("helper", model="small")      # and the host has no model "small"
-> ModelFailed""",
        see=("ai.md", "configuration.md"),
    )


class StepFailed(SandboxError, RuntimeError):
    """A step of a pipeline failed.

    Later steps did not run. The text names the step and its error, which is also the ``__cause__``.
    """

    code = "step_failed"
    guidance = Guidance(
        cause="A tool, agent or function of the step raised an error, for example a denial or a bad argument.",
        fix="Read the error after the name of the step, and fix that step or its input.",
        example="""\
A pipeline has the steps fetch and summarize, and fetch opens an undeclared URL:
-> StepFailed: ... NetworkDenied: External URL is locked. (sandbox_network_denied:...)""",
        see=("ai.md",),
    )


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
    guidance = Guidance(
        cause="The registry, the connection or the server; the subclass and its code say which.",
        fix=(
            "Look up the code of the subclass. Retry `mcp_server_unreachable`, `mcp_server_timeout` and "
            "`mcp_server_busy` later."
        ),
        example="""\
try:
    await sdk.mcp.call_tool("weather", "forecast", {"city": "Oslo"})
except McpError as error:
    print(error.code, error.server)
-> mcp_server_timeout weather""",
        see=("mcp.md",),
    )

    def __init__(self, server: str, why: str) -> None:
        """Take the server and the reason, which is shortened and made printable."""
        self.server = server
        self.why = printable(why)
        super().__init__(f"{server}: {self.why}")

    @property
    def parts(self) -> tuple[str, str]:
        """The arguments that rebuild the error across a guard or a process."""
        return self.server, self.why

    def __str__(self) -> str:
        """Return the code, the server and the reason."""
        return f"{self.code}:{self.server}: {self.why}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling."""
        return (type(self), (self.server, self.why), self.__dict__)


class McpUnknown(McpError, LookupError):
    """No MCP server of this name is registered.

    Nothing was sent. A manifest alone does not register a server.
    """

    code = "mcp_server_unknown"
    guidance = Guidance(
        cause="The name is misspelled, or no administrator registered the server.",
        fix=(
            "Let an administrator register it with `democrai-sandbox mcp add`, in the console, or under "
            "`extensions.mcp.servers`."
        ),
        example="""\
await sdk.mcp.call_tool("wether", "forecast", {})
-> McpUnknown: mcp_server_unknown:wether: no MCP server of this name is registered; ...""",
        see=("mcp.md",),
    )


class McpDisabled(McpError):
    """The MCP server is disabled.

    It is registered, but an administrator disabled it. Nothing was sent.
    """

    code = "mcp_server_disabled"
    guidance = Guidance(
        cause="The entry in the registry is not enabled.",
        fix="Let an administrator enable it with `democrai-sandbox mcp change NAME --enable`, or in the console.",
        example="""\
await sdk.mcp.call_tool("weather", "forecast", {})      # disabled in the console
-> McpDisabled: mcp_server_disabled:weather: the server is registered, but not enabled; ...""",
        see=("mcp.md",),
    )


class McpMissing(McpError):
    """The ``mcp`` library is not installed.

    MCP servers cannot be called until it is. Everything else works.
    """

    code = "mcp_library_missing"
    guidance = Guidance(
        cause="The package was installed without the extra `mcp`.",
        fix="Run `pip install 'democrai-sandbox[mcp]'` and restart the host.",
        example="""\
await sdk.mcp.call_tool("weather", "forecast", {})      # installed with pip install democrai-sandbox
-> McpMissing: mcp_library_missing:weather: install democrai-sandbox[mcp]: ...""",
        see=("mcp.md",),
    )


class McpUnreachable(McpError, ConnectionError):
    """The MCP server cannot be reached.

    No connection was made, or it ended before the answer. In the second case it is unknown whether the call had an
    effect.
    """

    code = "mcp_server_unreachable"
    guidance = Guidance(
        cause="The server is down, or its address in the registry is wrong.",
        fix="Start the server, or correct its address with `democrai-sandbox mcp change`.",
        example="""\
await sdk.mcp.call_tool("weather", "forecast", {})      # the server is stopped
-> McpUnreachable: mcp_server_unreachable:weather: ... Connection refused""",
        see=("mcp.md",),
    )


class McpTimeout(McpError, TimeoutError):
    """The MCP server did not answer in time.

    The call was canceled. It is unknown whether it had an effect.
    """

    code = "mcp_server_timeout"
    guidance = Guidance(
        cause="The server needs longer than `timeout_ms` of its entry, or hangs.",
        fix="Raise `timeout_ms` with `democrai-sandbox mcp change`, or fix the server.",
        example="""\
timeout_ms is 5000, and the tool needs 8 s:
-> McpTimeout: mcp_server_timeout:weather: the server took longer than 5 s, ...""",
        see=("mcp.md",),
    )


class McpProtocolError(McpError):
    """The answer of the MCP server is not valid MCP, or is too large.

    The answer was discarded.
    """

    code = "mcp_protocol_error"
    guidance = Guidance(
        cause="The registered address is not the MCP endpoint, or the server uses another transport.",
        fix="Correct the address or the transport of the entry.",
        example="""\
The entry has https://example.com/ instead of https://example.com/mcp, and gets an HTML page:
-> McpProtocolError: mcp_protocol_error:weather: ...""",
        see=("mcp.md",),
    )


class McpRedirected(McpProtocolError):
    """The MCP server redirects to another address.

    The redirect was not followed: messages go only to the registered origin.
    """

    code = "mcp_server_redirected"
    guidance = Guidance(
        cause="The server moved, or tries to send the messages elsewhere.",
        fix="If the new address is right, register it with `democrai-sandbox mcp change`.",
        example="""\
https://old.example.com/mcp redirects to https://new.example.com/mcp:
-> McpRedirected: mcp_server_redirected:weather: the server redirects to https://new.example.com, ...""",
        see=("mcp.md",),
    )


class McpBusy(McpError):
    """The subject has too many calls of this MCP server running.

    This call was not sent.
    """

    code = "mcp_server_busy"
    guidance = Guidance(
        cause="Calls start faster than the server answers.",
        fix="Wait for running calls before you start more.",
        example="""\
await asyncio.gather(*(sdk.mcp.call_tool("weather", "forecast", {"city": city}) for city in a_thousand_cities))
-> McpBusy: mcp_server_busy:weather: module:trips has 16 calls of this server under way""",
        see=("mcp.md",),
    )


class McpToolFailed(McpError):
    """The MCP server reports that the call failed.

    The server was reached. ``content`` is its answer as plain data.
    """

    code = "mcp_tool_failed"
    guidance = Guidance(
        cause="The arguments are wrong, or the tool on the server failed.",
        fix="Read the answer of the server in the text, and correct the arguments or the server.",
        example="""\
await sdk.mcp.call_tool("weather", "forecast", {"city": 7})
-> McpToolFailed: mcp_tool_failed:weather: city must be a string""",
        see=("mcp.md",),
    )

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
    guidance = Guidance(
        cause="The name or id is misspelled, or belongs to another database.",
        fix="List the entries with `democrai-sandbox mcp list`, `models list` or `shadow list`, and add a missing one.",
        example="""\
$ democrai-sandbox mcp remove wether
runtime_entry_unknown: ... wether""",
        see=("mcp.md",),
    )


class EntryExists(SandboxError, ValueError):
    """An MCP server, model or shadow run of this name already exists.

    The existing entry was not changed.
    """

    code = "runtime_entry_exists"
    guidance = Guidance(
        cause="The entry was added twice, or the subject already runs beside a candidate manifest.",
        fix=(
            "Change the entry with `democrai-sandbox mcp change` or `models change`, stop the shadow run, or use "
            "another name."
        ),
        example="""\
$ democrai-sandbox mcp add weather --endpoint https://mcp.example.com/mcp     # twice
runtime_entry_exists: ... weather ...""",
        see=("mcp.md",),
    )


class EntryConfigured(SandboxError, ValueError):
    """The configuration sets this entry.

    Nothing was changed: entries of the configuration replace those of the database and are fixed while the host runs.
    """

    code = "runtime_entry_configured"
    guidance = Guidance(
        cause=(
            "The configuration file or a variable names this MCP server, model, or the settings of this engine or "
            "extractor."
        ),
        fix="Change the key that the text names in the configuration and restart the host, or remove it there.",
        example="""\
$ democrai-sandbox mcp remove weather     # listed under extensions.mcp.servers
runtime_entry_configured: MCP server weather is set in the configuration: change ... there, and restart""",
        see=("configuration.md",),
    )


class MediaError(SandboxError):
    """A fetch of external media failed.

    Base class of the media errors; catch it to handle all of them. A refused address is ``sandbox_network_denied``.
    """

    code = "media_failed"
    guidance = Guidance(
        cause="The site, the connection or a limit; the subclass and its code say which.",
        fix="Look up the code of the subclass. Retry `media_unreachable`, `media_broken` and `media_timeout` later.",
        example="""\
try:
    await sdk.media.fetch(url)
except MediaError as error:
    print(error.code)
-> media_timeout""",
        see=("media.md",),
    )


class MediaUnreachable(MediaError):
    """The site cannot be reached.

    No connection was made, so nothing was sent.
    """

    code = "media_unreachable"
    guidance = Guidance(
        cause="The name does not resolve, the server is down, or its certificate is invalid.",
        fix="Check the URL in a browser, then retry.",
        example="""\
await sdk.media.fetch("https://expired.example.com/logo.png")
-> MediaUnreachable: expired.example.com:443 cannot be reached: certificate has expired""",
        see=("media.md",),
    )


class MediaBroken(MediaError):
    """The response is not valid HTTP or is incomplete.

    The data received so far was discarded.
    """

    code = "media_broken"
    guidance = Guidance(
        cause="The server or a proxy sent malformed HTTP, or closed the connection early.",
        fix="Retry. If it fails again, check the server.",
        example="""\
The server announces Content-Length: 1000 and closes the connection after 400 bytes:
-> MediaBroken""",
        see=("media.md",),
    )


class MediaTooLarge(MediaError):
    """The response is larger than the limit.

    The fetch stopped at the limit, and the data was discarded.
    """

    code = "media_too_large"
    guidance = Guidance(
        cause="The body exceeds `max_bytes` or the limit of the host, or the headers exceed theirs.",
        fix="Raise `max_bytes`, request a range, or stream the body.",
        example="""\
await sdk.media.fetch(url, max_bytes=1000)      # the image has 48 kB
-> MediaTooLarge: the body is larger than 1000 bytes""",
        see=("media.md",),
    )


class MediaTimeout(MediaError, TimeoutError):
    """The fetch exceeded its timeout.

    Either the whole fetch took too long, or no data arrived for too long.
    """

    code = "media_timeout"
    guidance = Guidance(
        cause="The server is slow, or streams without an end.",
        fix="Retry, request a range, or stream the body.",
        example="""\
await sdk.media.fetch("https://radio.example.com/live.mp3")      # never ends
-> MediaTimeout: the fetch took too long""",
        see=("media.md",),
    )


class MediaRedirectRefused(MediaError):
    """A redirect was not followed.

    The first response was a redirect; the address after it was not contacted.
    """

    code = "media_redirect_refused"
    guidance = Guidance(
        cause=(
            "The redirects form a loop or exceed the maximum, change from `https` to `http`, or name an address "
            "that is not HTTP."
        ),
        fix="Use the final address of the content.",
        example="""\
https://example.com/logo redirects to http://example.com/logo.png:
-> MediaRedirectRefused""",
        see=("media.md",),
    )


class MediaBusy(MediaError):
    """The subject has too many fetches running.

    This fetch did not start: no slot became free in time.
    """

    code = "media_busy"
    guidance = Guidance(
        cause="Fetches start faster than servers answer, or streams stay open.",
        fix="Wait for running fetches, and close streams.",
        example="""\
await asyncio.gather(*(sdk.media.fetch(url) for url in a_thousand_urls))
-> MediaBusy: module:gallery has too many fetches under way""",
        see=("media.md",),
    )


class MediaClosed(MediaError):
    """The stream is closed.

    No more data can be read from it.
    """

    code = "media_closed"
    guidance = Guidance(
        cause=(
            "The stream is used after its `async with` block, after its end, or by another extension than the one "
            "that opened it."
        ),
        fix="Open a new stream.",
        example="""\
async with await sdk.media.stream(url) as stream:
    pass
await stream.read()
-> MediaClosed""",
        see=("media.md",),
    )


MEDIA_ERRORS: Mapping[str, type[MediaError]] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            MediaError,
            MediaUnreachable,
            MediaBroken,
            MediaTooLarge,
            MediaTimeout,
            MediaRedirectRefused,
            MediaBusy,
            MediaClosed,
        )
    }
)
"""The errors by code, to rebuild them across a guard."""
