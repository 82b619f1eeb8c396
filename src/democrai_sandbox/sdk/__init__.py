"""Package that extension code imports: ``from democrai_sandbox import sdk``. It needs only the standard library."""

from __future__ import annotations

from . import access, ai, engines, mcp, media, tasks
from .ai import agent, pipeline, tool
from .decorators import Request, action, cancelled, command, data_dir, extension_dir, method, render, request, task

__all__ = [
    "Request",
    "access",
    "action",
    "agent",
    "ai",
    "cancelled",
    "command",
    "data_dir",
    "engines",
    "extension_dir",
    "mcp",
    "media",
    "method",
    "pipeline",
    "render",
    "request",
    "task",
    "tasks",
    "tool",
]
