"""Texts of the hints that denials give."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FULL_PATHS = "Use a full path instead of {target}: descriptor-relative names are for install phases."
BY_PATH = "Open the file by its path inside the guard; descriptors of other owners are refused."
BY_SOCKET = "Send with the methods of the socket: a file object for it is not available inside a guard."
BY_REQUESTS = "This connection was opened for HTTP requests, which the guard checks as they are sent: use its send()."
HIGH_TRUST = "It then has all rights of the process; prefer a dependency that does not need it."
SDK_SUBPROCESS = (
    "Start the child with await sdk.tasks.run_subprocess([...]): the runtime gives it a guarded environment."
)
OWN_SUBPROCESS = (
    "Pass allow_subprocess=True to {function}(...): programs that the subject starts then have the rights of the "
    "application. Or start the program outside the guard."
)
RUNTIME_NAME = "DEMOCRAI_* belongs to the runtime, which sets it for children; use another name."
OTHER_CODE = "{target} could make programs, or this process, load other code or resolve other names."
NEVER = "{target} is not available inside a guard; no declaration allows it."
WAITING = "Request {request} is waiting for an administrator to approve or deny it."
HOST_CODE = (
    "{target} belongs to the Python environment of the application, or is one of its parent folders. "
    "Extensions cannot change it, even if a rule covers it: write to sdk.data_dir() or another folder."
)
NATIVE_PLACE = (
    "Native modules load only from installed packages, never from a folder that extensions can write. "
    "Install the package that {target} belongs to into the Python environment that runs the extension."
)
TEMPORARY = "The entry names the folder, because the name of {target} differs in every run."
ASK_FOR_PATH = "If the path is chosen at run time, ask for approval instead: "
ASK_FOR_TARGET = "If the target is chosen at run time, ask for approval instead: "
OTHER_SOCKETS = "Only TCP, UDP and unix sockets are available inside a guard."
SOCKETS: Mapping[str, str] = MappingProxyType(
    {
        "socket:kernel": (
            "The kernel gives this process no network sockets, because the subject declares no network access. "
            "Declare the targets that it connects to. For a server on loopback, declare its address and port:\n"
            '  {"resource_type": "network", "operation": "receive", "target": "127.0.0.1:8080"}'
        ),
        "socket:foreign": "The socket belongs to the host or to another subject: open a new connection.",
        "socket:option": "Options that route packets through other hosts are not available inside a guard.",
    }
)


def asking(resource_type: str, operation: str, target: str) -> str:
    """Return the call that asks for approval."""
    return (
        f'sdk.access.check_external_access(resource_type="{resource_type}", operation="{operation}", target={target!r})'
    )


def argument_of(function: str, name: str, key: str) -> str:
    """Return the argument that takes a declaration, for a guard that the host opens with a function."""
    return f"{key}=[...] of {function}(subject={name!r}, ...)"


def place_of(kind: str, name: str, key: str, *, installing: bool = False) -> str:
    """Return the file and section where a subject declares ``key``."""
    if kind in {"engine", "extractor"}:
        section = "install" if installing else "runtime"
        return f'"{key}" in the "{section}" section of manifest.json of {kind} {name}'
    if kind in {"skill", "core"}:
        return f'"{key}" of the process_guard_context(...) with which the host runs {kind} {name}'
    if kind in {"tool", "agent", "pipeline"}:
        return f'"{key}" of the declaration of {kind} {name} (or of manifest.json of its module)'
    if kind == "mcp":
        return f"the endpoint_url in the registry entry of MCP server {name}"
    if kind == "task":
        return f'"{key}" in manifest.json of module {name.rpartition(".")[0] or name}'
    return f'"{key}" in manifest.json of module {name}'
