"""Errors of MCP servers. A denial is ``NetworkDenied``."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance

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
