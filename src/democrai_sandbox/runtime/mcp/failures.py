"""Conversion of the library's errors, from groups, causes and codes, to one typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx2
import mcp_types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from democrai_sandbox.errors.mcp import McpError, McpProtocolError, McpToolFailed, McpUnreachable
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_CAUSES = 64
_GATEWAY: Final = frozenset({502, 503, 504})
# The library also raises these itself: when a connection ends, and when it could not parse an answer.
_NOT_THE_TOOLS = frozenset(
    {mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR, mcp_types.INTERNAL_ERROR, mcp_types.INVALID_REQUEST}
)


def one_error(server: str, error: BaseException, status: int = 0) -> SandboxError:
    """Return the error to raise; ``status`` is the last HTTP error status.

    Errors of the sandbox are returned as they are, a denial first; all others are converted to text.
    """
    leaves = list(_leaves(error))
    for kind in (PermissionError, SandboxError):
        for leaf in leaves:
            if isinstance(leaf, SandboxError) and isinstance(leaf, kind):
                return _bare(leaf)
    for leaf in leaves:
        if found := _known(server, leaf, status):
            return found
    return McpProtocolError(server, "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves))


def _bare(error: SandboxError) -> SandboxError:
    """Return it without its traceback and causes: the frames of the library reference the whole conversation."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the members of groups, and the causes of errors, the outermost first."""
    waiting, seen = [error], 0
    while waiting and seen < _MOST_CAUSES:
        found = waiting.pop(0)
        seen += 1
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
            continue
        yield found
        waiting += filter(None, (found.__cause__, found.__context__))


def _known(server: str, error: BaseException, status: int) -> McpError | None:
    if isinstance(error, MCPError):
        return _said(server, error, status)
    if isinstance(error, httpx2.HTTPStatusError):
        return _refused(server, error.response.status_code)
    if isinstance(error, httpx2.NetworkError | httpx2.TimeoutException) or _is_cut(error):
        return McpUnreachable(server, str(error) or "the connection failed")
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        return McpProtocolError(server, str(error))
    if isinstance(error, ValidationError):
        return McpProtocolError(server, f"the answer is not valid MCP: {_problems(error)}")
    return None


def _is_cut(error: BaseException) -> bool:
    """Return whether a connection ended too early, as opposed to one that did not carry HTTP."""
    text = str(error).lower() if isinstance(error, httpx2.RemoteProtocolError) else ""
    return "disconnected" in text or "closed connection" in text


def _said(server: str, error: MCPError, status: int) -> McpError:
    """Return the error for a JSON-RPC error. An HTTP status is more specific than the library's code."""
    if status and error.code in _NOT_THE_TOOLS | {mcp_types.METHOD_NOT_FOUND}:
        return _refused(server, status)
    if error.code == mcp_types.CONNECTION_CLOSED:
        return McpUnreachable(server, f"the connection ended before the answer: {error.message}")
    if error.code in _NOT_THE_TOOLS:
        return McpProtocolError(server, error.message)
    return McpToolFailed(server, f"{error.message} ({error.code})")


def _refused(server: str, status: int) -> McpError:
    kind = McpUnreachable if status in _GATEWAY else McpProtocolError
    return kind(server, f"the server answered with HTTP status {status}")


def _problems(error: ValidationError) -> str:
    """Return the locations of problems in an answer, without its values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in found)
