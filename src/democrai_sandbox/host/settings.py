"""Validated configuration of the host, with absolute paths and all defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from democrai_sandbox.kernel.settings import OsSettings
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.extensions.settings import ExtensionDefaults, McpApproval, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.manifests import McpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``server``: address of the console and the API."""

    host: str = "127.0.0.1"
    """Address of this machine. Beyond loopback, ``public_url`` must use ``https`` to protect passwords."""
    port: int = 8420
    """0 selects a free port."""
    public_url: str = ""
    """URL that users open, when a proxy is in front: ``https://sandbox.example.com``."""
    trusted_proxies: tuple[str, ...] = ()
    """Proxy addresses whose ``X-Forwarded-For`` is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """``console``: sessions of users."""

    enabled: bool = True
    """Serve the pages; the API, health and metrics do not need them."""
    idle_minutes: int = 60
    """Time without use after which a session ends."""
    session_hours: int = 12
    """Maximum duration of a session."""
    reauth_minutes: int = 0
    """Ask for the password again before a permanent approval after this time; 0 never asks."""
    reauth_high_risk: bool = True
    """Ask for the password again before every permanent approval of high risk."""
    unused_days: int = 30
    """Time without use after which an approval is marked as unused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """``sandbox.guard``: guard in the process."""

    native_packages: tuple[str, ...] = ()
    """Installed packages that may use ctypes and cffi, and so run native code for a subject."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """``sandbox.worker``: worker processes of modules."""

    preload: tuple[str, ...] = ()
    """Packages that the template process imports for all workers."""
    idle_seconds: float = 600.0
    """Seconds after its last call until a worker is stopped."""
    warm: int = 32
    """Maximum number of idle workers."""


MODEL_TIMEOUT = 60.0
"""Default timeout of a model, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One of ``extensions.models``: endpoint and parameters of a model."""

    endpoint: str
    """URL before ``/chat/completions``."""
    model: str
    """Name of the model at the endpoint."""
    api_key: str = field(default="", repr=False)
    api_key_file: str = ""
    """File whose first line is the key; read at the start."""
    timeout_seconds: float = MODEL_TIMEOUT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of each request, such as ``temperature``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSettings:
    """One of ``extensions.engines`` or ``extensions.extractors``."""

    install: bool = False
    """Install it in the background at the start, if its environment is missing or outdated."""
    settings: Mapping[str, Any] | None = field(default=None, repr=False)
    """Settings for ``sdk.engines.settings()``; None uses those of the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """``extensions``: resources of extensions that the host chooses."""

    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    mcp_approval: McpApproval = McpApproval.REGISTERED
    """``extensions.mcp.approval``."""
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict, repr=False)
    """``extensions.mcp.servers``; the query of a URL may contain a secret."""
    engines: Mapping[str, InstalledSettings] = field(default_factory=dict)
    extractors: Mapping[str, InstalledSettings] = field(default_factory=dict)

    def installed(self) -> Iterator[tuple[Subject, InstalledSettings]]:
        """Yield the settings of engines and extractors by subject."""
        for kind, entries in ((SubjectKind.ENGINE, self.engines), (SubjectKind.EXTRACTOR, self.extractors)):
            for name, entry in entries.items():
                yield Subject(kind, name), entry


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(ExtensionDefaults):
    """Complete configuration; isolation, limits and timeouts of extensions are in ``sandbox``."""

    state_dir: str
    """Default folder of the host's files: database, keys, sockets, data of extensions."""
    database: str = field(repr=False)
    """``database.url``; SQLite in the state directory by default. May contain a password."""
    key_file: str
    """``database.key_file``: keys for resume contexts."""
    database_wait: float = 60.0
    """``database.wait_seconds``: seconds that ``serve`` waits for a database server that does not answer yet."""
    database_connections: int = 16
    """``database.connections``: maximum database connections of one process."""
    config_file: str = ""
    """Path of the configuration file; empty without one."""

    stream_type: str = "memory"
    """``network.stream.type``."""
    stream: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Other keys of ``network.stream``; may contain a password."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """``network.endpoints``: remote services of the host, URLs by name, for the egress allowlist."""

    worker: WorkerSettings = field(default_factory=WorkerSettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    managers: tuple[Subject, ...] = ()
    """``sandbox.managers``: modules whose code may decide, for a user who may."""
    pending_days: int = 30
    """``sandbox.pending_days``: days that a request waits for a decision."""
    poll_seconds: float = 1.0
    """``sandbox.poll_seconds``: seconds between two checks for decisions without an event."""
    os: OsSettings = field(default_factory=OsSettings)
    """``sandbox.os``."""

    extensions: ExtensionSettings = field(default_factory=ExtensionSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)

    def for_runtime(self) -> RuntimeSettings:
        """Return the settings of the runtime."""
        configured = ((str(subject), entry.settings) for subject, entry in self.extensions.installed())
        return RuntimeSettings(
            **{each.name: getattr(self, each.name) for each in fields(ExtensionDefaults)},
            worker_idle_seconds=self.worker.idle_seconds,
            warm_workers=self.worker.warm,
            native_packages=self.guard.native_packages,
            mcp_approval=self.extensions.mcp_approval,
            mcp_servers=self.extensions.mcp_servers,
            configurations={subject: given for subject, given in configured if given is not None},
        )
