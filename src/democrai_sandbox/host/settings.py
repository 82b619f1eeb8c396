"""What a configuration settles, as the host uses it: read and checked, every path absolute, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from democrai_sandbox.kernel.settings import OsSettings
from democrai_sandbox.manifests.limits import NO_LIMITS, Limits
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.settings import McpApproval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.manifests import McpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """``server``: where the console and the API are served."""

    host: str = "127.0.0.1"
    """An address of this machine. Beyond loopback ``public_url`` must be ``https``: passwords travel over it."""
    port: int = 8420
    """0 takes any free one."""
    public_url: str = ""
    """What people type, when a proxy stands before it: ``https://sandbox.example.com``."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose ``X-Forwarded-For`` is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """``console``: sessions of people."""

    enabled: bool = True
    """Serve the pages; the API, health and metrics are there without them."""
    idle_minutes: int = 60
    """A session that was not used for so long is over."""
    session_hours: int = 12
    """A session is over after so long in any case."""
    reauth_minutes: int = 0
    """Ask for the password again before a permanent approval, if it was not given for so long; 0 never asks."""
    reauth_high_risk: bool = True
    """Ask for the password again before every permanent approval of high risk."""
    unused_days: int = 30
    """An approval that was not used for so long is pointed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """``sandbox.guard``: the guard in the process."""

    native_packages: tuple[str, ...] = ()
    """Installed packages that may use ctypes and cffi for themselves, and so run native code for a subject."""


MODEL_TIMEOUT = 60.0
"""Seconds that an answer of a model may take, unless its settings say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One of ``extensions.models``: where a model is, and how it is asked."""

    endpoint: str
    """The URL up to ``/chat/completions``."""
    model: str
    """The name by which the endpoint knows it."""
    api_key: str = field(default="", repr=False)
    api_key_file: str = ""
    """A file whose first line is the key; read when the host starts."""
    timeout_seconds: float = MODEL_TIMEOUT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sent with each request, such as ``temperature``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledSettings:
    """One of ``extensions.engines`` or ``extensions.extractors``."""

    install: bool = False
    """Install it in the background when the host starts, if its environment is missing or outdated."""
    settings: Mapping[str, Any] | None = field(default=None, repr=False)
    """What its code reads with ``sdk.engines.settings()``; None leaves that to the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionSettings:
    """``extensions``: what extensions use that is the host's to choose."""

    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    mcp_approval: McpApproval = McpApproval.REGISTERED
    """``extensions.mcp.approval``."""
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict, repr=False)
    """``extensions.mcp.servers``; the query of a URL may hold a secret."""
    engines: Mapping[str, InstalledSettings] = field(default_factory=dict)
    extractors: Mapping[str, InstalledSettings] = field(default_factory=dict)

    def installed(self) -> Iterator[tuple[Subject, InstalledSettings]]:
        """Yield what is set for engines and extractors, by subject."""
        for kind, entries in ((SubjectKind.ENGINE, self.engines), (SubjectKind.EXTRACTOR, self.extractors)):
            for name, entry in entries.items():
                yield Subject(kind, name), entry


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The whole configuration."""

    state_dir: str
    """Database, keys, sockets: everything that is the host's own lies here unless it is put elsewhere."""
    data_dir: str
    """What extensions keep; ``<state_dir>/data`` by default."""
    database: str = field(repr=False)
    """``database.url``; SQLite in the state directory by default. May hold a password."""
    key_file: str
    """``database.key_file``: the keys for what requests go on with."""
    database_wait: float = 60.0
    """``database.wait_seconds``: how long ``serve`` waits for a database server that does not answer yet."""
    database_connections: int = 16
    """``database.connections``: of one process to the database, at most."""
    config_file: str = ""
    """Where the configuration was read; empty without a file."""

    modules_path: str | None = None
    engines_path: str | None = None
    extractors_path: str | None = None
    extra_module_dirs: tuple[str, ...] = ()
    extra_engine_dirs: tuple[str, ...] = ()
    extra_extractor_dirs: tuple[str, ...] = ()

    stream_type: str = "memory"
    """``network.stream.type``."""
    stream: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The other keys of ``network.stream``; may hold a password."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """``network.endpoints``: remote services of the host itself, URLs by name, for the egress allowlist."""

    isolation: Mapping[str, str] = field(default_factory=dict)
    """``sandbox.isolation``: ``module:reports: process``."""
    limits: Limits = NO_LIMITS
    """``sandbox.limits``."""
    guard: GuardSettings = field(default_factory=GuardSettings)
    call_timeout: float = 30.0
    """``sandbox.call_timeout``."""
    load_timeout: float = 30.0
    """``sandbox.load_timeout``."""
    managers: tuple[Subject, ...] = ()
    """``sandbox.managers``: modules whose code may decide, for a person who may."""
    pending_days: int = 30
    """``sandbox.pending_days``: how long a request waits for a decision."""
    poll_seconds: float = 1.0
    """``sandbox.poll_seconds``: how often decisions are looked for when no event came."""
    os: OsSettings = field(default_factory=OsSettings)
    """``sandbox.os``."""

    extensions: ExtensionSettings = field(default_factory=ExtensionSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
