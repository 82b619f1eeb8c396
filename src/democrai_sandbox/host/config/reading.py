"""Convert configuration values to the settings of a host, and collect all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.events import check_bus
from democrai_sandbox.access.store.urls import SQLITE, parse_url
from democrai_sandbox.host.settings import ConsoleSettings, GuardSettings, HostSettings, ServerSettings
from democrai_sandbox.kernel.settings import os_settings
from democrai_sandbox.manifests.limits import NO_LIMITS, limits_from
from democrai_sandbox.policy import InvalidInputError, Problem, pointer_to
from democrai_sandbox.policy.sections import Section, absolute_path, number, switch, whole
from democrai_sandbox.policy.text import exact_str

from . import values as read
from .extensions import extension_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    root = Section(values, "", problems)
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


def _extensions(root: Section) -> dict[str, Any]:
    main: dict[str, Any] = {name: root.take(name, read.folder, default=None) for name in _FOLDERS}
    return main | {name: root.take(name, read.folders, default=()) for name in _EXTRA}


def _state_dir(root: Section, environ: Mapping[str, str]) -> str:
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


def _database(section: Section, state: str) -> dict[str, Any]:
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


def _network(section: Section) -> dict[str, Any]:
    stream = section.inner("stream")
    kind = stream.take("type", lambda value: value, default=_DEFAULT.stream_type)
    settings = stream.rest()
    found = len(stream.problems)
    if "folder" in settings:
        Section(settings, stream.pointer, stream.problems).take("folder", absolute_path, default="")
    if len(stream.problems) == found:
        try:
            check_bus(kind, settings)
        except InvalidInputError as error:
            stream.problems += [problem.moved(stream.pointer) for problem in error.problems]
    endpoints = section.take("endpoints", read.endpoints, default={})
    section.refuse_others()
    return {"stream_type": kind, "stream": settings, "endpoints": endpoints}


def _sandbox(section: Section) -> dict[str, Any]:
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


def _guard(section: Section) -> GuardSettings:
    settings = GuardSettings(native_packages=section.take("native_packages", read.import_names, default=()))
    section.refuse_others()
    return settings


def _elsewhere(section: Section, name: str, read_section: Callable[[Any], Any], default: object) -> Any:
    """Return a section that another module reads, which sets the pointers of its problems."""
    try:
        return read_section(section.raw(name))
    except InvalidInputError as error:
        section.problems += error.problems
        return default


def _limits(value: object) -> Any:
    return NO_LIMITS if value is None else limits_from(value, "/sandbox/limits")


def _server(section: Section) -> ServerSettings:
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


def _console(section: Section) -> ConsoleSettings:
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
