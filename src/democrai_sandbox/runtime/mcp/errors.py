"""What can come of speaking to an MCP server, besides an answer. A denial is the guard's own ``NetworkDenied``."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import SandboxError

_LONGEST_TEXT = 500


class McpError(SandboxError, RuntimeError):
    """Something about one MCP server: ``server`` is its name, ``why`` the reason."""

    code = "mcp_failed"

    def __init__(self, server: str, why: str) -> None:
        """Name the server and say what happened; what the server itself said is cut and made printable."""
        self.server = server
        self.why = printable(why)
        super().__init__(f"{server}: {self.why}")

    @property
    def parts(self) -> tuple[str, str]:
        """What it is made of again on the other side of a guard or a process."""
        return self.server, self.why

    def __str__(self) -> str:
        """Return the code, the server and the reason."""
        return f"{self.code}:{self.server}: {self.why}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the same error in another process."""
        return (type(self), (self.server, self.why), self.__dict__)


class McpUnknown(McpError, LookupError):  # noqa: N818 - it says what happened
    """The registry has no server of this name."""

    code = "mcp_server_unknown"


class McpDisabled(McpError):  # noqa: N818 - likewise
    """The server is registered, but not enabled."""

    code = "mcp_server_disabled"


class McpMissing(McpError):  # noqa: N818 - likewise
    """The ``mcp`` library is not installed: it comes with an extra."""

    code = "mcp_library_missing"


class McpUnreachable(McpError, ConnectionError):  # noqa: N818 - likewise
    """No connection, or one that ended before the answer was there."""

    code = "mcp_server_unreachable"


class McpTimeout(McpError, TimeoutError):  # noqa: N818 - likewise
    """The server took longer than ``timeout_ms`` of its registry entry."""

    code = "mcp_server_timeout"


class McpProtocolError(McpError):
    """What the server answered is no MCP, or more than is taken."""

    code = "mcp_protocol_error"


class McpRedirected(McpProtocolError):  # noqa: N818 - likewise
    """The server sends its callers to another origin. Only the registered endpoint is spoken to."""

    code = "mcp_server_redirected"


class McpBusy(McpError):  # noqa: N818 - likewise
    """The subject has as many calls of this server under way as it may."""

    code = "mcp_server_busy"


class McpToolFailed(McpError):  # noqa: N818 - likewise
    """The server was reached, and says that the call failed. ``content`` is what it said, as plain data."""

    code = "mcp_tool_failed"

    def __init__(self, server: str, why: str, content: Any = None) -> None:
        """Keep the content as well: a model is told of it."""
        super().__init__(server, why)
        self.content = content


def printable(text: str) -> str:
    """Return a text of the other side as it can stand in a log: one line, of bounded length."""
    kept = "".join(character if character.isprintable() else " " for character in text[: _LONGEST_TEXT * 2])
    line = " ".join(kept.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."
