"""Errors of MCP servers. A denial is the guard's own ``NetworkDenied``."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import SandboxError

_LONGEST_TEXT = 500


class McpError(SandboxError, RuntimeError):
    """Error of one MCP server: ``server`` is its name, ``why`` the reason."""

    code = "mcp_failed"

    def __init__(self, server: str, why: str) -> None:
        """Take the server's name and the reason; text of the server is shortened and made printable."""
        self.server = server
        self.why = printable(why)
        super().__init__(f"{server}: {self.why}")

    @property
    def parts(self) -> tuple[str, str]:
        """Constructor arguments, for rebuilding it on the other side of a guard or a process."""
        return self.server, self.why

    def __str__(self) -> str:
        return f"{self.code}:{self.server}: {self.why}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the same error in another process."""
        return (type(self), (self.server, self.why), self.__dict__)


class McpUnknown(McpError, LookupError):  # noqa: N818 - it says what happened
    """The registry has no server with this name."""

    code = "mcp_server_unknown"


class McpDisabled(McpError):  # noqa: N818 - likewise
    """The server is registered, but not enabled."""

    code = "mcp_server_disabled"


class McpMissing(McpError):  # noqa: N818 - likewise
    """The ``mcp`` library is not installed; it is an optional extra."""

    code = "mcp_library_missing"


class McpUnreachable(McpError, ConnectionError):  # noqa: N818 - likewise
    """The connection failed, or ended before the answer."""

    code = "mcp_server_unreachable"


class McpTimeout(McpError, TimeoutError):  # noqa: N818 - likewise
    """The server took longer than ``timeout_ms`` of its registry entry."""

    code = "mcp_server_timeout"


class McpProtocolError(McpError):
    """The server's answer is not valid MCP, or exceeds a limit."""

    code = "mcp_protocol_error"


class McpRedirected(McpProtocolError):  # noqa: N818 - likewise
    """The server redirects to another origin. Only the registered endpoint is contacted."""

    code = "mcp_server_redirected"


class McpBusy(McpError):  # noqa: N818 - likewise
    """The subject has the maximum number of running calls to this server."""

    code = "mcp_server_busy"


class McpToolFailed(McpError):  # noqa: N818 - likewise
    """The server reports that the call failed. ``content`` is its answer as plain data."""

    code = "mcp_tool_failed"

    def __init__(self, server: str, why: str, content: Any = None) -> None:
        """Store the content as well, for the model."""
        super().__init__(server, why)
        self.content = content


def printable(text: str) -> str:
    """Return untrusted text for a log: one line, of limited length."""
    kept = "".join(character if character.isprintable() else " " for character in text[: _LONGEST_TEXT * 2])
    line = " ".join(kept.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."
