"""What administrators set for extensions while the host runs: MCP servers, settings, installations; models are listed.

The API, the console and the command line all come here. Entries of the configuration can be read here, and are changed
in its file.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.policy import InvalidInputError, Problem, pointer_to
from democrai_sandbox.runtime.installs.serving import config_rules

from .authority import require_administrator
from .config.showing import without_password, without_secrets
from .installing import url_keys
from .inventory import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.runtime.extensions import Extension
    from democrai_sandbox.runtime.installs.interface import InstallStatus

    from .sandbox import Sandbox

CONFIGURATION, DATABASE = "configuration", "database"
"""Where an entry is set."""
_WHAT = "extension settings"


class ModelEntry(NamedTuple):
    """A model that agents can use, or that one names and the host lacks."""

    name: str
    target: str
    """What an agent has to be allowed to send to; empty where it is not known."""
    is_configured: bool
    agents: tuple[str, ...]
    """Those that name it."""


class ServerEntry(NamedTuple):
    """An MCP server of the registry."""

    name: str
    transport: str
    endpoint_url: str
    """Without what may be secret in it."""
    enabled: bool
    timeout_ms: int
    source: str
    """``configuration`` or ``database``."""


class ShownSettings(NamedTuple):
    """The settings of an engine or extractor."""

    settings: dict[str, Any]
    """Without what is called secret in it."""
    source: str
    """``configuration`` or ``database``."""
    url_keys: tuple[str, ...]
    """The settings whose values are URLs that the extension may then use."""


# ---- models ----------------------------------------------------------------------------------------------------------


def models(sandbox: Sandbox, caller: Caller) -> tuple[ModelEntry, ...]:
    """List the models of the host, and those that agents name and the host lacks."""
    require_administrator(caller, _WHAT)
    known, used = sandbox.runtime.ai.models, sandbox.runtime.ai.agents_by_model
    return tuple(
        ModelEntry(name, str(getattr(known.get(name), "target", "")), name in known, used.get(name, ()))
        for name in sorted({*known, *used})
    )


# ---- MCP servers -----------------------------------------------------------------------------------------------------


def mcp_servers(sandbox: Sandbox, caller: Caller) -> tuple[ServerEntry, ...]:
    """List the registry of MCP servers."""
    require_administrator(caller, _WHAT)
    return tuple(_entry(sandbox, server) for server in sandbox.runtime.store.mcp_servers())


def add_mcp_server(sandbox: Sandbox, entry: Mapping[str, object], caller: Caller) -> ServerEntry:
    """Register a server; raises ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
    require_administrator(caller, _WHAT)
    now = sandbox.access.node.clock()
    server = sandbox.runtime.store.add_mcp_server(entry, now=now, actor=caller.user_id)
    sandbox.access.node.announce()
    return _entry(sandbox, server)


def change_mcp_server(sandbox: Sandbox, name: str, changes: Mapping[str, object], caller: Caller) -> ServerEntry:
    """Change a server, whose name stays; raises ``EntryUnknown`` besides."""
    require_administrator(caller, _WHAT)
    now = sandbox.access.node.clock()
    server = sandbox.runtime.store.update_mcp_server(name, changes, now=now, actor=caller.user_id)
    sandbox.access.node.announce()
    return _entry(sandbox, server)


def remove_mcp_server(sandbox: Sandbox, name: str, caller: Caller) -> ServerEntry:
    """Remove a server; return what it was."""
    require_administrator(caller, _WHAT)
    store = sandbox.runtime.store
    entry = _entry(sandbox, store.mcp_server(name))
    store.remove_mcp_server(name, now=sandbox.access.node.clock(), actor=caller.user_id)
    sandbox.access.node.announce()
    return entry


def _entry(sandbox: Sandbox, server: McpServer) -> ServerEntry:
    source = CONFIGURATION if sandbox.runtime.store.is_configured_server(server.name) else DATABASE
    shown = without_password(server.endpoint_url)
    return ServerEntry(server.name, str(server.transport), shown, server.enabled, server.timeout_ms, source)


# ---- settings of engines and extractors ------------------------------------------------------------------------------


def settings_of(sandbox: Sandbox, kind: str, name: str, caller: Caller) -> ShownSettings:
    """Return the settings of an engine or extractor."""
    require_administrator(caller, _WHAT)
    extension = _installed(sandbox, kind, name)
    return _shown(sandbox, extension, sandbox.runtime.store.settings(kind, name))


def change_settings(
    sandbox: Sandbox,
    kind: str,
    name: str,
    caller: Caller,
    *,
    wanted: Mapping[str, Any] | None = None,
    unwanted: Iterable[str] = (),
) -> ShownSettings:
    """Set some settings and remove others; the rest stays. They take effect with a new process, at the next call."""
    require_administrator(caller, _WHAT)
    extension = _installed(sandbox, kind, name)
    removed = frozenset(unwanted)

    def changed(present: dict[str, Any]) -> dict[str, Any]:
        merged = {**present, **(wanted or {})}
        kept = {key: value for key, value in merged.items() if key not in removed}
        _check_urls(extension, kept)
        return kept

    after = sandbox.runtime.store.change_settings(
        kind, name, changed, now=sandbox.access.node.clock(), actor=caller.user_id
    )
    sandbox.access.node.announce()
    return _shown(sandbox, extension, after)


def _check_urls(extension: Extension, settings: Mapping[str, Any]) -> None:
    try:
        config_rules(url_keys(extension), settings)
    except InvalidInputError as error:
        found = ((problem, problem.pointer.rpartition("/")[2]) for problem in error.problems)
        raise InvalidInputError(
            Problem(pointer_to("/set", key), problem.message, problem.suggestion) for problem, key in found
        ) from None


def _shown(sandbox: Sandbox, extension: Extension, settings: Mapping[str, Any]) -> ShownSettings:
    is_configured = sandbox.runtime.store.has_configured_settings(extension.kind.value, extension.name)
    source = CONFIGURATION if is_configured else DATABASE
    return ShownSettings(without_secrets(settings), source, url_keys(extension))


# ---- installing ------------------------------------------------------------------------------------------------------


async def install(sandbox: Sandbox, kind: str, name: str, caller: Caller, *, again: bool = False) -> InstallStatus:
    """Begin to install an engine or extractor in the background, and return its status."""
    require_administrator(caller, _WHAT)
    extension = _installed(sandbox, kind, name)
    runtime = sandbox.runtime.installed(extension.kind)
    if runtime is None:
        raise _not_installed()
    extension.require_sound()
    now = sandbox.access.node.clock()
    await asyncio.to_thread(sandbox.runtime.store.note_install, kind, name, now=now, actor=caller.user_id)
    sandbox.installing.begin(runtime, name, caller=caller, again=again)
    await asyncio.sleep(0)  # it has begun then, and its status says so
    return await asyncio.to_thread(runtime.status, name)


def _installed(sandbox: Sandbox, kind: str, name: str) -> Extension:
    """Return an engine or extractor; a module has neither settings nor an installation."""
    extension = find(sandbox, kind, name)
    if extension.kind is ManifestKind.MODULE:
        raise _not_installed()
    return extension


def _not_installed() -> InvalidInputError:
    message = "only engines and extractors are installed and have settings: a module runs as it is"
    return InvalidInputError.of(message, pointer="/kind")
