"""Settings that administrators change while the host runs: models, MCP servers, settings, installations.

Used by the API, the console and the command line. Entries of the configuration file are read-only here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.policy import InvalidInputError, Problem, pointer_to
from democrai_sandbox.runtime.installs.serving import config_rules

from .authority import require_administrator
from .config.showing import without_password, without_secrets
from .installing import url_keys
from .inventory import find
from .models import STORED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.runtime.extensions import Extension
    from democrai_sandbox.runtime.installs.interface import InstallStatus
    from democrai_sandbox.runtime.store import StoredModel

    from .sandbox import Sandbox

CONFIGURATION, DATABASE, APPLICATION = "configuration", "database", "application"
"""Origin of an entry."""
_WHAT = "extension settings"


class ModelEntry(NamedTuple):
    """Model that agents can use, or that an agent names but the host lacks."""

    name: str
    target: str
    """Endpoint that an agent must be allowed to send to; empty if unknown."""
    is_configured: bool
    """Whether the host has it."""
    agents: tuple[str, ...]
    """Agents that name it."""
    source: str = ""
    """``configuration``, ``database`` or ``application``; empty for a model that the host lacks."""
    endpoint: str = ""
    model: str = ""
    """Name of the model at the endpoint."""
    has_key: bool = False
    timeout_seconds: float | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    """Without secret values."""


class ServerEntry(NamedTuple):
    """MCP server of the registry."""

    name: str
    transport: str
    endpoint_url: str
    """Without parts that may be secret."""
    enabled: bool
    timeout_ms: int
    source: str
    """``configuration`` or ``database``."""


class ShownSettings(NamedTuple):
    """Settings of an engine or extractor."""

    settings: dict[str, Any]
    """Without secret values."""
    source: str
    """``configuration`` or ``database``."""
    url_keys: tuple[str, ...]
    """Settings whose values are URLs that the extension may then use."""


# ---- models ----------------------------------------------------------------------------------------------------------


def models(sandbox: Sandbox, caller: Caller) -> tuple[ModelEntry, ...]:
    """List the models of the host, and models that agents name but the host lacks."""
    require_administrator(caller, _WHAT)
    known, used, stored = sandbox.runtime.ai.models, sandbox.runtime.ai.agents_by_model, sandbox.models.all()
    return tuple(_model_entry(sandbox, name, stored.get(name)) for name in sorted({*known, *used, *stored}))


def add_model(sandbox: Sandbox, name: str, entry: Mapping[str, object], caller: Caller) -> ModelEntry:
    """Add a model; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
    require_administrator(caller, _WHAT)
    added = sandbox.models.add(name, entry, now=sandbox.access.node.clock(), actor=caller.user_id)
    return _model_changed(sandbox, added)


def change_model(sandbox: Sandbox, name: str, changes: Mapping[str, object], caller: Caller) -> ModelEntry:
    """Change a model except its name; also raises ``EntryUnknown``."""
    require_administrator(caller, _WHAT)
    changed = sandbox.models.change(name, changes, now=sandbox.access.node.clock(), actor=caller.user_id)
    return _model_changed(sandbox, changed)


def remove_model(sandbox: Sandbox, name: str, caller: Caller) -> ModelEntry:
    """Remove a model with its key; return its last state."""
    require_administrator(caller, _WHAT)
    removed = sandbox.models.remove(name, now=sandbox.access.node.clock(), actor=caller.user_id)
    entry = _model_entry(sandbox, name, removed)
    _announce_models(sandbox)
    return entry


def _model_changed(sandbox: Sandbox, stored: StoredModel) -> ModelEntry:
    _announce_models(sandbox)
    return _model_entry(sandbox, stored.name, stored)


def _announce_models(sandbox: Sandbox) -> None:
    """Apply the change on this node and notify the others. Each node also polls."""
    sandbox.access.node.announce()
    with suppress(StoreUnavailable):
        sandbox.models.refresh()


def _model_entry(sandbox: Sandbox, name: str, stored: StoredModel | None) -> ModelEntry:
    known = sandbox.runtime.ai.models.get(name)
    agents = sandbox.runtime.ai.agents_by_model.get(name, ())
    entry = ModelEntry(name, str(getattr(known, "target", "")), is_configured=known is not None, agents=agents)
    settings = sandbox.settings.extensions.models.get(name)
    if settings is not None:
        facts = {field: getattr(settings, field) for field in STORED_FIELDS}
        has_key = bool(settings.api_key or settings.api_key_file)
        return entry._replace(source=CONFIGURATION, has_key=has_key, **_shown_facts(facts))
    if stored is not None:
        shown = _shown_facts(stored.settings)
        return entry._replace(source=DATABASE, is_configured=True, has_key=bool(stored.sealed_key), **shown)
    return entry._replace(source=APPLICATION if known is not None else "")


def _shown_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "endpoint": without_password(str(facts.get("endpoint", ""))),
        "model": str(facts.get("model", "")),
        "timeout_seconds": facts.get("timeout_seconds"),
        "options": without_secrets(facts.get("options", {})),
    }


# ---- MCP servers -----------------------------------------------------------------------------------------------------


def mcp_servers(sandbox: Sandbox, caller: Caller) -> tuple[ServerEntry, ...]:
    """List the registry of MCP servers."""
    require_administrator(caller, _WHAT)
    return tuple(_entry(sandbox, server) for server in sandbox.runtime.store.mcp_servers())


def add_mcp_server(sandbox: Sandbox, entry: Mapping[str, object], caller: Caller) -> ServerEntry:
    """Register a server; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
    require_administrator(caller, _WHAT)
    now = sandbox.access.node.clock()
    server = sandbox.runtime.store.add_mcp_server(entry, now=now, actor=caller.user_id)
    sandbox.access.node.announce()
    return _entry(sandbox, server)


def change_mcp_server(sandbox: Sandbox, name: str, changes: Mapping[str, object], caller: Caller) -> ServerEntry:
    """Change a server except its name; also raises ``EntryUnknown``."""
    require_administrator(caller, _WHAT)
    now = sandbox.access.node.clock()
    server = sandbox.runtime.store.update_mcp_server(name, changes, now=now, actor=caller.user_id)
    sandbox.access.node.announce()
    return _entry(sandbox, server)


def remove_mcp_server(sandbox: Sandbox, name: str, caller: Caller) -> ServerEntry:
    """Remove a server; return its last state."""
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
    """Set some settings and remove others. They take effect in a new process, at the next call."""
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
    """Start installing an engine or extractor in the background, and return its status."""
    require_administrator(caller, _WHAT)
    extension = _installed(sandbox, kind, name)
    runtime = sandbox.runtime.installed(extension.kind)
    if runtime is None:
        raise _not_installed()
    extension.require_sound()
    now = sandbox.access.node.clock()
    await asyncio.to_thread(sandbox.runtime.store.note_install, kind, name, now=now, actor=caller.user_id)
    sandbox.installing.begin(runtime, name, caller=caller, again=again)
    await asyncio.sleep(0)  # let the task start, so that the status shows it
    return await asyncio.to_thread(runtime.status, name)


def _installed(sandbox: Sandbox, kind: str, name: str) -> Extension:
    """Return an engine or extractor; modules have no settings and no installation."""
    extension = find(sandbox, kind, name)
    if extension.kind is ManifestKind.MODULE:
        raise _not_installed()
    return extension


def _not_installed() -> InvalidInputError:
    message = "only engines and extractors are installed and have settings; a module runs as it is"
    return InvalidInputError.of(message, pointer="/kind")
