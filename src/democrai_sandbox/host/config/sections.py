"""Convert the sections of a configuration to the settings of a host, and collect all problems."""

from __future__ import annotations

import os
import re
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.access.events import check_bus
from democrai_sandbox.access.store.database_location import SQLITE, parse_url
from democrai_sandbox.host.settings import (
    MODEL_TIMEOUT,
    ConsoleSettings,
    ExtensionSettings,
    GuardSettings,
    HostSettings,
    InstalledSettings,
    ModelSettings,
    ServerSettings,
    WorkerSettings,
)
from democrai_sandbox.kernel.egress.allowlist import NotMaterialised, endpoints_of
from democrai_sandbox.kernel.settings import os_settings
from democrai_sandbox.manifests import McpServer, McpTransport, make_manifest
from democrai_sandbox.manifests.limits import NO_LIMITS, limits_from
from democrai_sandbox.policy.config_section import ConfigSection, absolute_path, described, each, number, switch, whole
from democrai_sandbox.policy.text import exact_str, shown
from democrai_sandbox.runtime.extensions.settings import DEFAULT_ISOLATION, Isolation, McpApproval, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from enum import StrEnum

    _Readers = Mapping[str, Callable[[object], Any]]

_LOCALHOST = "localhost"
_URL = re.compile(r"(https?)://[^/?#\\]+", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_model_timeout = number(0.1, 3600, "seconds")
_NAME_RULE = "the name of a model must have up to 64 letters, digits, '.', '_' and '-'"
_SERVER_KEYS = ("transport", "endpoint_url", "enabled", "timeout_ms")
_RESERVED = ("messages", "model", "tools")
"""Fields of a model request that the runtime sets."""


# ---- values: each error says what was expected ----------------------------------------------------------------------


def _path(value: object) -> str:
    """Validate the absolute path of a file or folder, which may not exist."""
    found = policy.normalise_path(absolute_path(value))
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        raise ValueError(f"{shown(found)} is not a valid file name") from None
    return found


def _folder(value: object) -> str:
    found = _path(value)
    try:
        with os.scandir(found):
            return found
    except FileNotFoundError:
        raise ValueError(f"the folder {shown(found)} does not exist") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the name is invalid"
        raise ValueError(f"the folder {shown(found)} cannot be read: {why}") from None


_folders = each(_folder, "folders")


def _with_folder(file: str, to_be_made: str) -> str:
    """Return the path of a file if its folder exists or will be created by the host; raise otherwise."""
    parent = str(Path(file).parent)
    if parent != to_be_made:
        _folder(parent)
    return file


def _address(value: object) -> str:
    try:
        return str(ip_address(exact_str(value) or ""))
    except ValueError:
        raise ValueError(f"expected an address such as 127.0.0.1 or ::1, got {described(value)}") from None


def _listening_address(value: object) -> str:
    return _LOCALHOST if value == _LOCALHOST else _address(value)


def _is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == _LOCALHOST:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_addresses = each(_address, "addresses")


def _public_url(value: object) -> str:
    """Validate the public URL of the console: scheme, host, and optional port."""
    text = exact_str(value) or ""
    match = _URL.match(text)
    if match is None or "@" in text:
        raise ValueError(f"expected a URL such as https://sandbox.example.com, without a user, got {described(value)}")
    try:
        origin = policy.parse_request_url(match.group())
    except policy.InvalidInputError as error:
        why = "; ".join(problem.message for problem in error.problems)
        raise ValueError(f"expected a URL such as https://sandbox.example.com: {why}") from None
    if match.group() != text:
        message = "expected a scheme and a host with an optional port, without path, query and fragment"
        raise policy.InvalidInputError.of(message, suggestion=origin.normalized)
    if origin.scheme != "https" and not _is_loopback(origin.host):
        message = "passwords are sent over it: it must use https beyond this machine"
        raise policy.InvalidInputError.of(message, suggestion=f"https{match.group()[len(match[1]) :]}")
    return origin.normalized


def _manager(value: object) -> policy.Subject:
    subject = _subject(value)
    if subject.kind is not policy.SubjectKind.MODULE:
        raise ValueError(f"expected a module, as 'module:name', got {described(str(subject))}")
    return subject


_managers = each(_manager, "modules, as 'module:name'")


def _import_name(value: object) -> str:
    name = exact_str(value) or ""
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"expected the import name of a package, such as scipy, got {described(value)}")
    return name


_import_names = each(_import_name, "import names of packages")


def _named_entries(read: Callable[[str, object], str], what: str, value: object) -> dict[str, str]:
    """Validate an object with free keys; raise with all problems of its entries."""
    if value is None:
        return {}
    if type(value) is not dict:
        raise ValueError(f"expected an object {what}, got {described(value)}")
    problems: list[policy.Problem] = []
    section = ConfigSection(value, "", problems)
    found = {name: section.take(name, partial(read, name), default="") for name in section.names}
    if problems:
        raise policy.InvalidInputError(problems)
    return found


def _subject(value: object) -> policy.Subject:
    text = exact_str(value)
    if text is None or "://" in text:
        raise ValueError(f"expected a subject as 'kind:name', got {described(value)}")
    try:
        return policy.Subject.parse(text)
    except policy.InvalidInputError as error:
        # The problems have pointers for kind and name, which a text does not have; the message is enough.
        raise _without_pointers(error) from None


def _one_of(value: object, names: type[StrEnum]) -> str:
    text = exact_str(value)
    if text not in tuple(names):
        message = f"expected one of {', '.join(names)}, got {described(value)}"
        raise policy.InvalidInputError.of(message, suggestion=policy.nearest(text or "", names))
    return text


def _isolated(label: str, how: object) -> str:
    text = _one_of(how, Isolation)
    if label == DEFAULT_ISOLATION:
        return text
    subject = str(_subject(label))
    try:
        RuntimeSettings(data_dir="/", isolation={subject: text})
    except policy.InvalidInputError as error:
        raise _without_pointers(error) from None
    return text


def _remote_service(name: str, url: object) -> str:
    expected = "expected a URL with a host, and a port if the scheme has none, such as https://api.example.com"
    if not _NAME.fullmatch(name):
        raise ValueError("the name of an endpoint must have up to 64 letters, digits, '.', '_' and '-'")
    text = exact_str(url)
    if text is None:
        raise ValueError(f"{expected}, got {described(url)}")
    found = endpoints_of(text, name) if "://" in text else ()
    if isinstance(found, NotMaterialised) or not found:
        # Omit the reason if it might quote a part of a password.
        why = f": {found.why}" if isinstance(found, NotMaterialised) and "@" not in text else ""
        raise ValueError(expected + why)
    return text


def _isolation(value: object) -> dict[str, str]:
    return _named_entries(_isolated, "with 'default' and subjects, as 'module:reports: in_process'", value)


def _remote_services(value: object) -> dict[str, str]:
    return _named_entries(_remote_service, "with URLs by name", value)


def _without_pointers(error: policy.InvalidInputError) -> policy.InvalidInputError:
    return policy.InvalidInputError(policy.Problem("", item.message, item.suggestion) for item in error.problems)


# ---- sections --------------------------------------------------------------------------------------------------------


def extension_settings(section: ConfigSection) -> ExtensionSettings:
    """Read the section and record all its problems."""
    mcp = section.inner("mcp")
    settings = ExtensionSettings(
        models=dict(_entries(section.inner("models"), _model_name, _model)),
        mcp_approval=McpApproval(
            mcp.take("approval", lambda value: _one_of(value, McpApproval), default=McpApproval.REGISTERED)
        ),
        mcp_servers=dict(_entries(mcp.inner("servers"), partial(policy.Subject, policy.SubjectKind.MCP), _mcp_server)),
        engines=dict(
            _entries(section.inner("engines"), partial(policy.Subject, policy.SubjectKind.ENGINE), _installed)
        ),
        extractors=dict(
            _entries(section.inner("extractors"), partial(policy.Subject, policy.SubjectKind.EXTRACTOR), _installed)
        ),
    )
    mcp.refuse_others()
    section.refuse_others()
    return settings


def stored_model(name: object, entry: object) -> ModelSettings:
    """Validate a model from outside the configuration; raise ``InvalidInputError`` with all problems.

    It cannot name a file: only the configuration decides which files the host reads.
    """
    problems: list[policy.Problem] = []
    text = exact_str(name)
    if text is None or not _NAME.fullmatch(text):
        problems.append(policy.Problem("/name", _NAME_RULE))
    if isinstance(entry, dict) and "api_key_file" in entry:
        problems.append(
            policy.Problem("/api_key_file", "a key file is possible in the configuration only: use api_key")
        )
        entry = {key: value for key, value in entry.items() if key != "api_key_file"}
    settings = _model(text or "", ConfigSection(entry, "", problems))
    if problems:
        raise policy.InvalidInputError(problems)
    return settings


def _entries(
    section: ConfigSection, check: Callable[[str], object], make: Callable[[str, ConfigSection], Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the value of each key of a section with free names."""
    for name in section.names:
        inner = section.inner(name)
        try:
            check(name)
        except policy.InvalidInputError as error:
            section.problems += [problem.moved(inner.pointer) for problem in _without_pointers(error).problems]
            continue
        before = len(section.problems)
        made = make(name, inner)
        if len(section.problems) == before:
            yield name, made


def _model_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise policy.InvalidInputError.of(_NAME_RULE)


def _model(_: str, section: ConfigSection) -> ModelSettings:
    given = set(section.names)
    settings = ModelSettings(
        endpoint=section.take("endpoint", _endpoint, default=""),
        model=section.take("model", _name_at_endpoint, default=""),
        api_key=section.take("api_key", api_key, default=""),
        api_key_file=section.take("api_key_file", _path, default=""),
        timeout_seconds=section.take("timeout_seconds", _model_timeout, default=MODEL_TIMEOUT),
        options=section.take("options", _options, default={}),
    )
    section.refuse_others()
    for name in ("endpoint", "model"):
        if name not in given:
            section.problems.append(policy.Problem(section.pointer, f"a model needs the key {name!r}"))
    if {"api_key", "api_key_file"} <= given:
        message = "set either api_key or api_key_file, not both"
        section.problems.append(policy.Problem(f"{section.pointer}/api_key_file", message))
    return settings


def _endpoint(value: object) -> str:
    """Validate the URL of a model before ``/chat/completions``. Errors never quote it: it may contain a secret."""
    text = exact_str(value)
    if text is None or not text.startswith(("http://", "https://")):
        raise ValueError("expected an http or https URL, such as https://models.example.com/v1")
    if "?" in text or "#" in text or "@" in text:
        raise ValueError("expected a URL without a user, a query or a fragment: put a key into api_key_file")
    try:
        policy.parse_request_url(text)
    except policy.InvalidInputError as error:
        raise ValueError("; ".join(item.message for item in error.problems)) from None
    return text


def api_key(value: object) -> str:
    """Validate a key that can be sent in a header. Errors never quote it."""
    text = exact_str(value)
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected the key of the model: ASCII text without spaces")
    return text


def _name_at_endpoint(value: object) -> str:
    text = exact_str(value)
    if not text or not text.isprintable():
        raise ValueError(f"expected the name of the model at the endpoint as a text, got {described(value)}")
    return text


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


def _mcp_server(name: str, section: ConfigSection) -> McpServer | None:
    """Validate an entry of the registry by the rules for manifests."""
    given = {key: section.raw(key) for key in _SERVER_KEYS if key in section.names}
    section.refuse_others()
    try:
        return make_manifest({"name": name, "transport": McpTransport.STREAMABLE_HTTP.value, **given}, McpServer)
    except policy.InvalidInputError as error:
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
_DAY = 24 * 3600
_timeout = number(0.001, _DAY, "seconds")
_wait = number(0, _DAY, "seconds (0 does not wait)")
_connections = whole(2, 1000, "connections")
_days = whole(1, 3650, "days")
_GUARD: _Readers = MappingProxyType({"native_packages": _import_names})
_WORKER: _Readers = MappingProxyType(
    {
        "preload": _import_names,
        "idle_seconds": number(1, 7 * 24 * 3600, "seconds"),
        "warm": whole(0, 100_000, "workers"),
    }
)
_SANDBOX: _Readers = MappingProxyType(
    {
        "call_timeout": _timeout,
        "load_timeout": _timeout,
        "managers": _managers,
        "pending_days": _days,
        "poll_seconds": number(0.01, 3600, "seconds"),
    }
)
_SERVER: _Readers = MappingProxyType(
    {
        "host": _listening_address,
        "port": whole(0, 65535, "a port (0 selects a free one)"),
        "public_url": _public_url,
        "trusted_proxies": _addresses,
    }
)
_CONSOLE: _Readers = MappingProxyType(
    {
        "enabled": switch,
        "reauth_high_risk": switch,
        "idle_minutes": whole(1, 7 * 24 * 60, "minutes"),
        "session_hours": whole(1, 365 * 24, "hours"),
        "reauth_minutes": whole(0, 7 * 24 * 60, "minutes (0 disables it)"),
        "unused_days": _days,
    }
)
_DEFAULT = HostSettings(state_dir="", data_dir="", database="", key_file="")


def read_settings(
    values: dict[str, Any], environ: Mapping[str, str], config_file: str = ""
) -> tuple[HostSettings, list[policy.Problem]]:
    """Return the settings and their problems; settings with problems must not be used."""
    problems: list[policy.Problem] = []
    root = ConfigSection(values, "", problems)
    state = _state_dir(root, environ)
    settings = HostSettings(
        state_dir=state,
        data_dir=root.take("data_dir", _path, default=f"{state}/data"),
        **_database(root.inner("database"), state),
        config_file=config_file,
        **_extensions(root),
        **_network(root.inner("network")),
        **_sandbox(root.inner("sandbox")),
        extensions=extension_settings(root.inner("extensions")),
        server=_server(root.inner("server")),
        console=ConsoleSettings(**_fields(root.inner("console"), _CONSOLE, _DEFAULT.console)),
    )
    root.refuse_others()
    return settings, problems


def _extensions(root: ConfigSection) -> dict[str, Any]:
    main: dict[str, Any] = {name: root.take(name, _folder, default=None) for name in _FOLDERS}
    return main | {name: root.take(name, _folders, default=()) for name in _EXTRA}


def _state_dir(root: ConfigSection, environ: Mapping[str, str]) -> str:
    default = _default_state_dir(environ)
    found = root.take("state_dir", _path, default=default)
    if not found:
        root.problems.append(policy.Problem("/state_dir", "expected an absolute path, because HOME is not set"))
    return found


def _default_state_dir(environ: Mapping[str, str]) -> str:
    """Return the default folder for program state; by the XDG standard, ignore relative paths."""
    for variable, below in (("XDG_STATE_HOME", ""), ("HOME", "/.local/state")):
        home = environ.get(variable, "")
        if home.startswith("/") and "\0" not in home:
            return _path(f"{home}{below}/democrai-sandbox")
    return ""


def _database(section: ConfigSection, state: str) -> dict[str, Any]:
    key_file = section.take("key_file", lambda value: _with_folder(_path(value), state), default=f"{state}/keys")
    default = f"{SQLITE}:///{state}/sandbox.db"
    url = section.take("url", lambda value: _database_url(value, state), default=default)
    wait = section.take("wait_seconds", _wait, default=_DEFAULT.database_wait)
    connections = section.take("connections", _connections, default=_DEFAULT.database_connections)
    section.refuse_others()
    if url is default and state and not _leads_to(url, f"{state}/sandbox.db"):
        message = "a database URL cannot contain this path: use another one, or set database.url as well"
        section.problems.append(policy.Problem("/state_dir", message))
    return {"database": url, "key_file": key_file, "database_wait": wait, "database_connections": connections}


def _database_url(value: object, state: str) -> str:
    """Validate the URL of a database. Errors never quote it, because it may contain a password."""
    text = exact_str(value)
    if text is None:
        raise ValueError("expected the URL of a database, as a text")
    try:
        url = parse_url(text, needs_folder=False)
    except policy.InvalidInputError as error:
        raise _without_pointers(error) from None
    if url.drivername == SQLITE:
        if not str(url.database).startswith("/"):
            raise ValueError("expected an absolute path after sqlite:///, which means four slashes")
        _with_folder(str(url.database), state)
    return text


def _leads_to(url: str, file: str) -> bool:
    try:
        return parse_url(url, needs_folder=False).database == file
    except policy.InvalidInputError:
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
        except policy.InvalidInputError as error:
            stream.problems += [problem.moved(stream.pointer) for problem in error.problems]
    endpoints = section.take("endpoints", _remote_services, default={})
    section.refuse_others()
    return {"stream_type": kind, "stream": settings, "endpoints": endpoints}


def _sandbox(section: ConfigSection) -> dict[str, Any]:
    settings = {
        "os": _elsewhere(section, "os", os_settings, _DEFAULT.os),
        "isolation": section.take("isolation", _isolation, default={}),
        "limits": _elsewhere(section, "limits", _limits, NO_LIMITS),
        "worker": WorkerSettings(**_fields(section.inner("worker"), _WORKER, _DEFAULT.worker)),
        "guard": GuardSettings(**_fields(section.inner("guard"), _GUARD, _DEFAULT.guard)),
    }
    return settings | _fields(section, _SANDBOX, _DEFAULT)


def _fields(section: ConfigSection, readers: _Readers, default: object) -> dict[str, Any]:
    """Read the keys of a section that are fields of settings, and refuse others."""
    found = {name: section.take(name, reader, default=getattr(default, name)) for name, reader in readers.items()}
    section.refuse_others()
    return found


def _elsewhere(section: ConfigSection, name: str, read_section: Callable[[Any], Any], default: object) -> Any:
    """Return a section that another module reads, which sets the pointers of its problems."""
    try:
        return read_section(section.raw(name))
    except policy.InvalidInputError as error:
        section.problems += error.problems
        return default


def _limits(value: object) -> Any:
    return NO_LIMITS if value is None else limits_from(value, "/sandbox/limits")


def _server(section: ConfigSection) -> ServerSettings:
    found = len(section.problems)
    settings = ServerSettings(**_fields(section, _SERVER, _DEFAULT.server))
    is_public = not _is_loopback(settings.host)
    if len(section.problems) == found and is_public and not settings.public_url.startswith("https://"):
        message = (
            f"{settings.host} is reachable from other machines, and passwords are sent over it: "
            "put an https proxy in front and set server.public_url to its address, or use 127.0.0.1"
        )
        section.problems.append(policy.Problem(policy.pointer_to(section.pointer, "host"), message))
    return settings
