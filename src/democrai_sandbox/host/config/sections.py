"""Convert the sections of a configuration to the settings of a host, and collect all problems."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.events import check_bus
from democrai_sandbox.access.store.database_location import SQLITE, parse_url
from democrai_sandbox.host.settings import (
    ConsoleSettings,
    ExtensionSettings,
    GuardSettings,
    HostSettings,
    InstalledSettings,
    ModelSettings,
    ServerSettings,
)
from democrai_sandbox.kernel.settings import os_settings
from democrai_sandbox.manifests import McpServer, McpTransport, make_manifest
from democrai_sandbox.manifests.limits import NO_LIMITS, limits_from
from democrai_sandbox.policy import (
    InvalidInputError,
    Problem,
    Subject,
    SubjectKind,
    nearest,
    parse_request_url,
    pointer_to,
)
from democrai_sandbox.policy.config_section import ConfigSection, absolute_path, described, number, switch, whole
from democrai_sandbox.policy.text import exact_str
from democrai_sandbox.runtime.extensions.settings import McpApproval

from . import validators as read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LONGEST_TIMEOUT = 3600
_model_timeout = number(0.1, _LONGEST_TIMEOUT, "seconds")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "the name of a model must have up to 64 letters, digits, '.', '_' and '-'"
_MODEL_DEFAULT = ModelSettings(endpoint="", model="")
_SERVER_KEYS = ("transport", "endpoint_url", "enabled", "timeout_ms")
_RESERVED = ("messages", "model", "tools")
"""Fields of a model request that the runtime sets."""


def extension_settings(section: ConfigSection) -> ExtensionSettings:
    """Read the section and record all its problems."""
    mcp = section.inner("mcp")
    settings = ExtensionSettings(
        models=dict(_entries(section.inner("models"), _model_name, _model)),
        mcp_approval=mcp.take("approval", _approval, default=McpApproval.REGISTERED),
        mcp_servers=dict(_entries(mcp.inner("servers"), _named(SubjectKind.MCP), _mcp_server)),
        engines=dict(_entries(section.inner("engines"), _named(SubjectKind.ENGINE), _installed)),
        extractors=dict(_entries(section.inner("extractors"), _named(SubjectKind.EXTRACTOR), _installed)),
    )
    mcp.refuse_others()
    section.refuse_others()
    return settings


def stored_model(name: object, entry: object) -> ModelSettings:
    """Validate a model from outside the configuration; raise ``InvalidInputError`` with all problems.

    It cannot name a file: only the configuration decides which files the host reads.
    """
    problems: list[Problem] = []
    text = exact_str(name)
    if text is None or not _MODEL_NAME.fullmatch(text):
        problems.append(Problem("/name", _NAME_RULE))
    if isinstance(entry, dict) and "api_key_file" in entry:
        problems.append(Problem("/api_key_file", "a key file is possible in the configuration only: use api_key"))
        entry = {key: value for key, value in entry.items() if key != "api_key_file"}
    settings = _model(text or "", ConfigSection(entry, "", problems))
    if problems:
        raise InvalidInputError(problems)
    return settings


def _entries(
    section: ConfigSection, check: Callable[[str], None], make: Callable[[str, ConfigSection], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the value of each key of a section with free names."""
    for name in section.names:
        inner = section.inner(name)
        try:
            check(name)
        except InvalidInputError as error:
            section.problems += [Problem(inner.pointer, item.message, item.suggestion) for item in error.problems]
            continue
        before = len(section.problems)
        made = make(name, inner)
        if len(section.problems) == before:
            yield name, made


def _named(kind: SubjectKind) -> Callable[[str], None]:
    def check(name: str) -> None:
        Subject(kind, name)

    return check


def _model_name(name: str) -> None:
    if not _MODEL_NAME.fullmatch(name):
        raise InvalidInputError.of(_NAME_RULE)


def _model(_: str, section: ConfigSection) -> ModelSettings:
    given = set(section.names)
    settings = ModelSettings(
        endpoint=section.take("endpoint", _endpoint, default=""),
        model=section.take("model", _text("the name of the model at the endpoint"), default=""),
        api_key=section.take("api_key", api_key, default=""),
        api_key_file=section.take("api_key_file", read.path, default=""),
        timeout_seconds=section.take("timeout_seconds", _model_timeout, default=_MODEL_DEFAULT.timeout_seconds),
        options=section.take("options", _options, default={}),
    )
    section.refuse_others()
    for name in ("endpoint", "model"):
        if name not in given:
            section.problems.append(Problem(section.pointer, f"a model needs the key {name!r}"))
    if {"api_key", "api_key_file"} <= given:
        message = "set either api_key or api_key_file, not both"
        section.problems.append(Problem(f"{section.pointer}/api_key_file", message))
    return settings


def _endpoint(value: object) -> str:
    """Validate the URL of a model before ``/chat/completions``. Errors never quote it: it may contain a secret."""
    text = exact_str(value)
    if text is None or not text.startswith(("http://", "https://")):
        raise ValueError("expected an http or https URL, such as https://models.example.com/v1")
    if "?" in text or "#" in text or "@" in text:
        raise ValueError("expected a URL without a user, a query or a fragment: put a key into api_key_file")
    try:
        parse_request_url(text)
    except InvalidInputError as error:
        raise ValueError("; ".join(item.message for item in error.problems)) from None
    return text


def api_key(value: object) -> str:
    """Validate a key that can be sent in a header. Errors never quote it."""
    text = exact_str(value)
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected the key of the model: ASCII text without spaces")
    return text


def _text(what: str) -> Callable[[object], str]:
    def take(value: object) -> str:
        text = exact_str(value)
        if not text or not text.isprintable():
            raise ValueError(f"expected {what} as a text, got {described(value)}")
        return text

    return take


def _options(value: object) -> dict[str, Any]:
    found = _object(value)
    for name in _RESERVED:
        if name in found:
            raise ValueError(f"{name!r} is set by the runtime: remove it from the options")
    return found


def _object(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"expected an object, got {described(value)}")
    return value


def _approval(value: object) -> McpApproval:
    text = exact_str(value)
    if text not in tuple(McpApproval):
        message = f"expected one of {', '.join(McpApproval)}, got {described(value)}"
        raise InvalidInputError.of(message, suggestion=nearest(text or "", McpApproval))
    return McpApproval(text)


def _mcp_server(name: str, section: ConfigSection) -> McpServer | None:
    """Validate an entry of the registry by the rules for manifests."""
    given = {key: section.raw(key) for key in _SERVER_KEYS if key in section.names}
    section.refuse_others()
    try:
        return make_manifest({"name": name, "transport": McpTransport.STREAMABLE_HTTP.value, **given}, McpServer)
    except InvalidInputError as error:
        section.problems += [problem.moved(section.pointer) for problem in error.problems]
        return None


def _installed(_: str, section: ConfigSection) -> InstalledSettings:
    settings = InstalledSettings(
        install=section.take("install", switch, default=False),
        settings=section.take("settings", _object, default=None),
    )
    section.refuse_others()
    return settings


_FOLDERS = ("modules_path", "engines_path", "extractors_path")
_EXTRA = ("extra_module_dirs", "extra_engine_dirs", "extra_extractor_dirs")
_HIGHEST_PORT = 65535
_DAY = 24 * 3600
_port = whole(0, _HIGHEST_PORT, "a port (0 selects a free one)")
_timeout = number(0.001, _DAY, "seconds")
_wait = number(0, _DAY, "seconds (0 does not wait)")
_connections = whole(2, 1000, "connections")
_pause = number(0.01, 3600, "seconds")
_days = whole(1, 3650, "days")
_minutes = whole(1, 7 * 24 * 60, "minutes")
_minutes_or_never = whole(0, 7 * 24 * 60, "minutes (0 disables it)")
_hours = whole(1, 365 * 24, "hours")
_DEFAULT = HostSettings(state_dir="", data_dir="", database="", key_file="")


def read_settings(
    values: dict[str, Any], environ: Mapping[str, str], config_file: str = ""
) -> tuple[HostSettings, list[Problem]]:
    """Return the settings and their problems; settings with problems must not be used."""
    problems: list[Problem] = []
    root = ConfigSection(values, "", problems)
    state = _state_dir(root, environ)
    settings = HostSettings(
        state_dir=state,
        data_dir=root.take("data_dir", read.path, default=f"{state}/data"),
        **_database(root.inner("database"), state),
        config_file=config_file,
        **_extensions(root),
        **_network(root.inner("network")),
        **_sandbox(root.inner("sandbox")),
        extensions=extension_settings(root.inner("extensions")),
        server=_server(root.inner("server")),
        console=_console(root.inner("console")),
    )
    root.refuse_others()
    return settings, problems


def _extensions(root: ConfigSection) -> dict[str, Any]:
    main: dict[str, Any] = {name: root.take(name, read.folder, default=None) for name in _FOLDERS}
    return main | {name: root.take(name, read.folders, default=()) for name in _EXTRA}


def _state_dir(root: ConfigSection, environ: Mapping[str, str]) -> str:
    default = _default_state_dir(environ)
    found = root.take("state_dir", read.path, default=default)
    if not found:
        root.problems.append(Problem("/state_dir", "expected an absolute path, because HOME is not set"))
    return found


def _default_state_dir(environ: Mapping[str, str]) -> str:
    """Return the default folder for program state; by the XDG standard, ignore relative paths."""
    for variable, below in (("XDG_STATE_HOME", ""), ("HOME", "/.local/state")):
        home = environ.get(variable, "")
        if home.startswith("/") and "\0" not in home:
            return read.path(f"{home}{below}/democrai-sandbox")
    return ""


def _database(section: ConfigSection, state: str) -> dict[str, Any]:
    key_file = section.take("key_file", lambda value: read.has_folder(read.path(value), state), default=f"{state}/keys")
    default = f"{SQLITE}:///{state}/sandbox.db"
    url = section.take("url", lambda value: _database_url(value, state), default=default)
    wait = section.take("wait_seconds", _wait, default=_DEFAULT.database_wait)
    connections = section.take("connections", _connections, default=_DEFAULT.database_connections)
    section.refuse_others()
    if url is default and state and not _leads_to(url, f"{state}/sandbox.db"):
        message = "a database URL cannot contain this path: use another one, or set database.url as well"
        section.problems.append(Problem("/state_dir", message))
    return {
        "database": url,
        "key_file": key_file,
        "database_wait": wait,
        "database_connections": connections,
    }


def _database_url(value: object, state: str) -> str:
    """Validate the URL of a database. Errors never quote it, because it may contain a password."""
    text = exact_str(value)
    if text is None:
        raise ValueError("expected the URL of a database, as a text")
    try:
        url = parse_url(text, needs_folder=False)
    except InvalidInputError as error:
        raise InvalidInputError(Problem("", item.message, item.suggestion) for item in error.problems) from None
    if url.drivername == SQLITE:
        if not str(url.database).startswith("/"):
            raise ValueError("expected an absolute path after sqlite:///, which means four slashes")
        read.has_folder(str(url.database), state)
    return text


def _leads_to(url: str, file: str) -> bool:
    try:
        return parse_url(url, needs_folder=False).database == file
    except InvalidInputError:
        return False


def _network(section: ConfigSection) -> dict[str, Any]:
    stream = section.inner("stream")
    kind = stream.take("type", lambda value: value, default=_DEFAULT.stream_type)
    settings = stream.rest()
    found = len(stream.problems)
    if "folder" in settings:
        ConfigSection(settings, stream.pointer, stream.problems).take("folder", absolute_path, default="")
    if len(stream.problems) == found:
        try:
            check_bus(kind, settings)
        except InvalidInputError as error:
            stream.problems += [problem.moved(stream.pointer) for problem in error.problems]
    endpoints = section.take("endpoints", read.endpoints, default={})
    section.refuse_others()
    return {"stream_type": kind, "stream": settings, "endpoints": endpoints}


def _sandbox(section: ConfigSection) -> dict[str, Any]:
    settings = {
        "os": _elsewhere(section, "os", os_settings, _DEFAULT.os),
        "isolation": section.take("isolation", read.isolation, default={}),
        "limits": _elsewhere(section, "limits", _limits, NO_LIMITS),
        "guard": _guard(section.inner("guard")),
        "call_timeout": section.take("call_timeout", _timeout, default=_DEFAULT.call_timeout),
        "load_timeout": section.take("load_timeout", _timeout, default=_DEFAULT.load_timeout),
        "managers": section.take("managers", read.managers, default=()),
        "pending_days": section.take("pending_days", _days, default=_DEFAULT.pending_days),
        "poll_seconds": section.take("poll_seconds", _pause, default=_DEFAULT.poll_seconds),
    }
    section.refuse_others()
    return settings


def _guard(section: ConfigSection) -> GuardSettings:
    settings = GuardSettings(native_packages=section.take("native_packages", read.import_names, default=()))
    section.refuse_others()
    return settings


def _elsewhere(section: ConfigSection, name: str, read_section: Callable[[Any], Any], default: object) -> Any:
    """Return a section that another module reads, which sets the pointers of its problems."""
    try:
        return read_section(section.raw(name))
    except InvalidInputError as error:
        section.problems += error.problems
        return default


def _limits(value: object) -> Any:
    return NO_LIMITS if value is None else limits_from(value, "/sandbox/limits")


def _server(section: ConfigSection) -> ServerSettings:
    found, default = len(section.problems), _DEFAULT.server
    settings = ServerSettings(
        host=section.take("host", read.listening_address, default=default.host),
        port=section.take("port", _port, default=default.port),
        public_url=section.take("public_url", read.public_url, default=""),
        trusted_proxies=section.take("trusted_proxies", read.addresses, default=()),
    )
    section.refuse_others()
    is_public = not read.is_loopback(settings.host)
    if len(section.problems) == found and is_public and not settings.public_url.startswith("https://"):
        message = (
            f"{settings.host} is reachable from other machines, and passwords are sent over it: "
            "put an https proxy in front and set server.public_url to its address, or use 127.0.0.1"
        )
        section.problems.append(Problem(pointer_to(section.pointer, "host"), message))
    return settings


def _console(section: ConfigSection) -> ConsoleSettings:
    default = _DEFAULT.console
    numbers = {
        "idle_minutes": _minutes,
        "session_hours": _hours,
        "reauth_minutes": _minutes_or_never,
        "unused_days": _days,
    }
    settings = ConsoleSettings(
        enabled=section.take("enabled", switch, default=default.enabled),
        reauth_high_risk=section.take("reauth_high_risk", switch, default=default.reauth_high_risk),
        **{name: section.take(name, reader, default=getattr(default, name)) for name, reader in numbers.items()},
    )
    section.refuse_others()
    return settings
