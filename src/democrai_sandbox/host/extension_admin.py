"""Models for agents, and extension settings that administrators change while the host runs.

The latter are models, MCP servers, settings and installations, for the API, the console and the command line. Entries
of the configuration file are read-only here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.encryption import DecryptionError, reseal_secret, seal_secret, unseal_secret
from democrai_sandbox.errors import ConfigInvalid, HostRefused, InstallFailed, StateUnusable, StoreUnavailable
from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.host.config.display import without_password, without_secrets
from democrai_sandbox.host.config.sections import api_key, stored_model
from democrai_sandbox.manifests import EngineManifest, ManifestKind
from democrai_sandbox.policy import InvalidInputError, Problem, SandboxError, SubjectKind, nearest, pointer_to
from democrai_sandbox.runtime.ai.openai import OpenAiModel
from democrai_sandbox.runtime.installs.environments import InstallState, config_rules
from democrai_sandbox.runtime.store import StoredModel

from .host_only import require_administrator
from .overview import find_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from democrai_sandbox.access.keyring import KeyRing
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime import Runtime
    from democrai_sandbox.runtime.ai.model import KnownModels, Message, Model, ToolOffer
    from democrai_sandbox.runtime.engines import InstalledRuntime
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry
    from democrai_sandbox.runtime.installs.environments import InstallStatus
    from democrai_sandbox.runtime.store import RuntimeStore

    from .sandbox import Sandbox
    from .settings import ExtensionSettings, HostSettings, InstalledSettings, ModelSettings


_host_log = logging.getLogger("democrai_sandbox.host")
STORED_FIELDS = ("endpoint", "model", "timeout_seconds", "options")
"""Stored fields of a model, except its key."""
_LONGEST = 4096
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO


def open_models(settings: HostSettings, given: Mapping[str, Model] | None = None) -> dict[str, Model]:
    """Return the models by name: those of the configuration and those from the application.

    The keys of configured models are read once, at start.
    """
    brought = dict(given or {})
    twice = sorted(brought.keys() & settings.extensions.models.keys())
    if twice:
        raise HostRefused(
            f"the application and the configuration both have a model {twice[0]!r}",
            fix=f"remove extensions.models.{twice[0]}, or do not pass it to the sandbox",
        )
    return brought | {name: _made(one, key_of(name, one)) for name, one in settings.extensions.models.items()}


def key_of(name: str, settings: ModelSettings) -> str:
    """Return the key of a model; empty without one. Errors never contain it."""
    if not settings.api_key_file:
        return settings.api_key
    file = settings.api_key_file
    setting = f"extensions.models.{name}.api_key_file"
    try:
        # Non-blocking: a pipe at this path would block the start.
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123 - a number
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read(_LONGEST) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise StateUnusable(
            f"{setting}: {file} cannot be read: {error.strerror}",
            fix=f"make it readable for user {os.geteuid()}, or use another file",
        ) from None
    if not stat.S_ISREG(mode):
        raise StateUnusable(f"{setting}: {file} is not a file", fix="use a file whose first line is the key")
    if stat.S_IMODE(mode) & _OTHER_USERS:
        raise StateUnusable(f"{setting}: other users can read {file}", fix=f"chmod 600 {file}, and replace the key")
    try:
        return api_key(text.partition(b"\n")[0].decode("ascii", "replace").strip())
    except ValueError as error:
        raise StateUnusable(f"{setting}: {file}: {error}", fix="write the key into its first line") from None


def _made(settings: ModelSettings, key: str) -> OpenAiModel:
    return OpenAiModel(
        settings.endpoint,
        model=settings.model,
        api_key=key,
        timeout=settings.timeout_seconds,
        options=settings.options,
    )


# ---- models of the database ------------------------------------------------------------------------------------------


class _UnusableModel:
    """Replacement for a stored model that cannot be used; a call raises the reason."""

    target = ""

    def __init__(self, why: str) -> None:
        self._why = why

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        del messages, tools
        raise ModelFailed(self._why)


class StoredModels:
    """Models of the database, which administrators change and every node follows while the host runs.

    Their keys are encrypted with the key ring, each bound to the name and endpoint of its model.
    """

    def __init__(self, store: RuntimeStore, ring: Callable[[], KeyRing], known: KnownModels) -> None:
        self._store = store
        self._ring = ring
        self._known = known
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[StoredModel, Model]] = {}

    def refresh(self) -> None:
        """Read the stored models; agents use them from their next call. Any thread may call this."""
        with self._lock:
            before, stored = self._followed, self._store.models()
            found = {one.name: self._follow(one, before.get(one.name)) for one in stored}
            if found != before:
                self._followed = found
                self._known.exchange({name: model for name, (_, model) in found.items()})

    def all(self) -> dict[str, StoredModel]:
        """Return the stored models by name."""
        return {one.name: one for one in self._store.models()}

    def add(self, name: str, entry: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Add a model; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
        settings = stored_model(name, dict(entry))
        return self._store.add_model(name, lambda: self._sealed(name, settings), now=now, actor=actor)

    def change(self, name: str, changes: Mapping[str, object], *, now: datetime, actor: str) -> StoredModel:
        """Change a model. Its key stays unless the changes contain another one, or an empty text for none.

        The key belongs to its endpoint: with another endpoint it must be entered again.
        """

        def changed(before: StoredModel) -> StoredModel:
            given = {key: value for key, value in changes.items() if (key, value) != ("api_key", "")}
            after = self._sealed(name, stored_model(name, {**before.settings, **given}))
            if "api_key" in changes or not before.sealed_key:
                return after
            if after.settings["endpoint"] != before.settings.get("endpoint"):
                message = "the key belongs to another endpoint: enter it again, or an empty text for no key"
                raise InvalidInputError.of(message, pointer="/api_key")
            return after._replace(sealed_key=before.sealed_key)

        return self._store.change_model(name, changed, now=now, actor=actor)

    def _sealed(self, name: str, settings: ModelSettings) -> StoredModel:
        facts: dict[str, Any] = {field: getattr(settings, field) for field in STORED_FIELDS}
        key = seal_secret(self._ring(), settings.api_key, *_owner(name, facts)) if settings.api_key else b""
        return StoredModel(name, facts, key)

    def _follow(self, stored: StoredModel, known: tuple[StoredModel, Model] | None) -> tuple[StoredModel, Model]:
        """Return the known object if it is usable and nothing has changed; reject a model that was tampered with."""
        is_same = known is not None and known[0] == stored
        if known is not None and is_same and not isinstance(known[1], _UnusableModel):
            return known
        try:
            settings = stored_model(stored.name, dict(stored.settings))
            key = unseal_secret(self._ring(), stored.sealed_key, *_owner(*stored[:2])) if stored.sealed_key else ""
            return stored, _made(settings, key)
        except DecryptionError as error:
            why = f"the key of model {stored.name} cannot be decrypted: {error}; enter it again"
        except InvalidInputError as error:
            why = f"the stored model {stored.name} is invalid: {'; '.join(map(str, error.problems))}"
        if not is_same:
            _host_log.error("%s", why)
        return stored, _UnusableModel(why)


def reseal_model_keys(store: RuntimeStore, ring: KeyRing) -> tuple[int, tuple[str, ...]]:
    """Encrypt the keys of all stored models with the first key; return their number, and models that no key opens."""
    unreadable = []

    def attempt(stored: StoredModel) -> bytes | None:
        try:
            return reseal_secret(ring, stored.sealed_key, *_owner(*stored[:2]))
        except DecryptionError:
            unreadable.append(stored.name)
            return None

    return store.replace_model_keys(attempt), tuple(unreadable)


def _owner(name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the context to which the key of a model is bound."""
    return "model", name, str(settings.get("endpoint", ""))


T = TypeVar("T")

_log = logging.getLogger(__name__)
_NO_CALLER = Caller()


def check_configured(settings: ExtensionSettings, registry: Registry) -> None:
    """Reject settings of unknown engines and extractors, and invalid URLs, with all problems in one error."""
    problems = [problem for subject, entry in settings.installed() for problem in _problems(registry, subject, entry)]
    if problems:
        raise ConfigInvalid(problems)


def _problems(registry: Registry, subject: Subject, entry: InstalledSettings) -> Iterator[Problem]:
    known = registry.engines if subject.kind is SubjectKind.ENGINE else registry.extractors
    place = pointer_to(f"/extensions/{subject.kind}s", subject.name)
    if subject.name in known:
        yield from _url_problems(known[subject.name], entry.settings or {}, f"{place}/settings")
    else:
        message = f"{subject.kind} {subject.name!r} does not exist in the configured folders: remove this entry"
        yield Problem(place, message, nearest(subject.name, known))


def _url_problems(extension: RegisteredExtension, settings: Mapping[str, Any], place: str) -> Iterator[Problem]:
    """Yield the problems of the settings whose values must be URLs."""
    try:
        config_rules(url_keys(extension), settings)
    except InvalidInputError as error:
        for problem in error.problems:
            yield Problem(f"{place}/{problem.pointer.rpartition('/')[2]}", problem.message, problem.suggestion)


def url_keys(extension: RegisteredExtension) -> tuple[str, ...]:
    """Return the settings whose values are URLs that the extension may then use."""
    manifest = extension.manifest
    return manifest.runtime.allowed_config_urls if isinstance(manifest, EngineManifest) else ()


class BackgroundInstaller:
    """Background installations. The status of the extension contains their result."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, runtime: InstalledRuntime, name: str, *, caller: Caller = _NO_CALLER, again: bool = False) -> None:
        """Start an installation on the running event loop."""
        task = asyncio.get_running_loop().create_task(_installed_extensions(runtime, name, caller, again=again))
        # The event loop holds tasks weakly, so keep a reference.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def begin_configured(self, settings: ExtensionSettings) -> None:
        """Start the configured installations that are missing."""
        for subject, entry in settings.installed():
            runtime = self._runtime.installed(ManifestKind(subject.kind.value))
            if entry.install and runtime is not None and await _is_wanted(runtime, subject.name):
                self.begin(runtime, subject.name)

    async def stop(self) -> None:
        """Cancel running installations, and wait for their end."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with suppress(asyncio.CancelledError):
            task.result()


async def _is_wanted(runtime: InstalledRuntime, name: str) -> bool:
    """Return whether an extension must be installed. A broken one is skipped."""
    try:
        status = await asyncio.to_thread(runtime.status, name)
    except SandboxError as error:
        _log.warning("%s %s is not installed: %s", runtime.kind, name, error)
        return False
    return status.state in (InstallState.MISSING, InstallState.OUTDATED)


async def _installed_extensions(runtime: InstalledRuntime, name: str, caller: Caller, *, again: bool) -> None:
    try:
        await runtime.install(name, caller=caller, again=again)
    except InstallFailed as error:
        _log.warning("the installation of %s failed: %s", name, error)
    except SandboxError as error:
        _log.warning("the installation of %s was not started: %s", name, error)


CONFIGURATION, DATABASE, APPLICATION = "configuration", "database", "application"
"""Origin of an entry."""
_WHAT = "extension settings"


class ConfiguredModel(NamedTuple):
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


class ConfiguredServer(NamedTuple):
    """MCP server of the registry."""

    name: str
    transport: str
    endpoint_url: str
    """Without parts that may be secret."""
    enabled: bool
    timeout_ms: int
    source: str
    """``configuration`` or ``database``."""


class DisplayedSettings(NamedTuple):
    """Settings of an engine or extractor."""

    settings: dict[str, Any]
    """Without secret values."""
    source: str
    """``configuration`` or ``database``."""
    url_keys: tuple[str, ...]
    """Settings whose values are URLs that the extension may then use."""


def _changed(sandbox: Sandbox, caller: Caller, change: Callable[..., T], *details: object) -> T:
    """Change entries of the database as an administrator, and notify the other nodes, which also poll."""
    require_administrator(caller, _WHAT)
    done = change(*details, now=sandbox.access.node.clock(), actor=caller.user_id)
    sandbox.access.node.announce()
    return done


# ---- models ----------------------------------------------------------------------------------------------------------


def models(sandbox: Sandbox, caller: Caller) -> tuple[ConfiguredModel, ...]:
    """List the models of the host, and models that agents name but the host lacks."""
    require_administrator(caller, _WHAT)
    known, used, stored = sandbox.runtime.ai.models, sandbox.runtime.ai.agents_by_model, sandbox.models.all()
    return tuple(_model_entry(sandbox, name, stored.get(name)) for name in sorted({*known, *used, *stored}))


def add_model(sandbox: Sandbox, name: str, entry: Mapping[str, object], caller: Caller) -> ConfiguredModel:
    """Add a model; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
    return _changed_model(sandbox, _changed(sandbox, caller, sandbox.models.add, name, entry))


def change_model(sandbox: Sandbox, name: str, changes: Mapping[str, object], caller: Caller) -> ConfiguredModel:
    """Change a model except its name; also raises ``EntryUnknown``."""
    return _changed_model(sandbox, _changed(sandbox, caller, sandbox.models.change, name, changes))


def remove_model(sandbox: Sandbox, name: str, caller: Caller) -> ConfiguredModel:
    """Remove a model with its key; return its last state."""
    require_administrator(caller, _WHAT)
    entry = _model_entry(sandbox, name, sandbox.models.all().get(name))
    _changed(sandbox, caller, sandbox.runtime.store.remove_model, name)
    _refresh_models(sandbox)
    return entry


def _changed_model(sandbox: Sandbox, stored: StoredModel) -> ConfiguredModel:
    _refresh_models(sandbox)
    return _model_entry(sandbox, stored.name, stored)


def _refresh_models(sandbox: Sandbox) -> None:
    """Apply the change on this node at once."""
    with suppress(StoreUnavailable):
        sandbox.models.refresh()


def _model_entry(sandbox: Sandbox, name: str, stored: StoredModel | None) -> ConfiguredModel:
    known = sandbox.runtime.ai.models.get(name)
    agents = sandbox.runtime.ai.agents_by_model.get(name, ())
    entry = ConfiguredModel(name, str(getattr(known, "target", "")), is_configured=known is not None, agents=agents)
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


def mcp_servers(sandbox: Sandbox, caller: Caller) -> tuple[ConfiguredServer, ...]:
    """List the registry of MCP servers."""
    require_administrator(caller, _WHAT)
    return tuple(_entry(sandbox, server) for server in sandbox.runtime.store.mcp_servers())


def add_mcp_server(sandbox: Sandbox, entry: Mapping[str, object], caller: Caller) -> ConfiguredServer:
    """Register a server; raise ``InvalidInputError`` with every problem, ``EntryExists`` or ``EntryConfigured``."""
    return _entry(sandbox, _changed(sandbox, caller, sandbox.runtime.store.add_mcp_server, entry))


def change_mcp_server(sandbox: Sandbox, name: str, changes: Mapping[str, object], caller: Caller) -> ConfiguredServer:
    """Change a server except its name; also raises ``EntryUnknown``."""
    return _entry(sandbox, _changed(sandbox, caller, sandbox.runtime.store.update_mcp_server, name, changes))


def remove_mcp_server(sandbox: Sandbox, name: str, caller: Caller) -> ConfiguredServer:
    """Remove a server; return its last state."""
    require_administrator(caller, _WHAT)
    entry = _entry(sandbox, sandbox.runtime.store.mcp_server(name))
    _changed(sandbox, caller, sandbox.runtime.store.remove_mcp_server, name)
    return entry


def _entry(sandbox: Sandbox, server: McpServer) -> ConfiguredServer:
    source = CONFIGURATION if sandbox.runtime.store.is_configured_server(server.name) else DATABASE
    shown = without_password(server.endpoint_url)
    return ConfiguredServer(server.name, str(server.transport), shown, server.enabled, server.timeout_ms, source)


# ---- settings of engines and extractors ------------------------------------------------------------------------------


def settings_of(sandbox: Sandbox, kind: str, name: str, caller: Caller) -> DisplayedSettings:
    """Return the settings of an engine or extractor."""
    require_administrator(caller, _WHAT)
    extension, _ = _installed(sandbox, kind, name)
    return _shown(sandbox, extension, sandbox.runtime.store.settings(kind, name))


def change_settings(
    sandbox: Sandbox,
    kind: str,
    name: str,
    caller: Caller,
    *,
    wanted: Mapping[str, Any] | None = None,
    unwanted: Iterable[str] = (),
) -> DisplayedSettings:
    """Set some settings and remove others. They take effect in a new process, at the next call."""
    require_administrator(caller, _WHAT)
    extension, _ = _installed(sandbox, kind, name)
    removed = frozenset(unwanted)

    def changed(present: dict[str, Any]) -> dict[str, Any]:
        merged = {**present, **(wanted or {})}
        kept = {key: value for key, value in merged.items() if key not in removed}
        if problems := list(_url_problems(extension, kept, "/set")):
            raise InvalidInputError(problems)
        return kept

    after = _changed(sandbox, caller, sandbox.runtime.store.change_settings, kind, name, changed)
    return _shown(sandbox, extension, after)


def _shown(sandbox: Sandbox, extension: RegisteredExtension, settings: Mapping[str, Any]) -> DisplayedSettings:
    is_configured = sandbox.runtime.store.has_configured_settings(extension.kind.value, extension.name)
    source = CONFIGURATION if is_configured else DATABASE
    return DisplayedSettings(without_secrets(settings), source, url_keys(extension))


# ---- installing ------------------------------------------------------------------------------------------------------


async def install(sandbox: Sandbox, kind: str, name: str, caller: Caller, *, again: bool = False) -> InstallStatus:
    """Start installing an engine or extractor in the background, and return its status."""
    require_administrator(caller, _WHAT)
    extension, runtime = _installed(sandbox, kind, name)
    extension.require_sound()
    now = sandbox.access.node.clock()
    await asyncio.to_thread(sandbox.runtime.store.note_install, kind, name, now=now, actor=caller.user_id)
    sandbox.installing.begin(runtime, name, caller=caller, again=again)
    await asyncio.sleep(0)  # let the task start, so that the status shows it
    return await asyncio.to_thread(runtime.status, name)


def _installed(sandbox: Sandbox, kind: str, name: str) -> tuple[RegisteredExtension, InstalledRuntime]:
    """Return an engine or extractor with its runtime; modules have no settings and no installation."""
    extension = find_extension(sandbox, kind, name)
    runtime = sandbox.runtime.installed(extension.kind)
    if runtime is None:
        message = "only engines and extractors are installed and have settings; a module runs as it is"
        raise InvalidInputError.of(message, pointer="/kind")
    return extension, runtime
