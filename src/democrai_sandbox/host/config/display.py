"""Complete configuration for display: each value with its origin, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.policy import pointer_to

from .keys import DEFAULT, KEYS, NAMED, OPEN, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.host.settings import ExtensionSettings, HostSettings

    from .loader import Loaded

HIDDEN = "***"
"""Placeholder for a secret."""
_PASSWORD = re.compile(r"(?<=://).*@")  # up to the last @, because a password may contain one
_IN_QUERY = re.compile(r"(?i)(?<=[?&])([^=&#]*(?:pass|secret|token|key)[^=&#]*)=[^&#]*")
_SECRET_NAME = re.compile(r"(?i)pass|secret|token|key|credential")
_DATABASE = "/database/url"
_NAMED = MappingProxyType({"/database/wait_seconds": "database_wait", "/database/connections": "database_connections"})
_APPROVAL = "/extensions/mcp/approval"
_STREAM = "/network/stream/"
_NO_OBJECTS = frozenset({"database", "sandbox"})
"""Sections with settings of the host itself."""


class ShownValue(NamedTuple):
    """One setting."""

    pointer: str
    value: Any
    """JSON data, including empty lists and objects; None without a value."""
    origin: Origin

    @property
    def name(self) -> str:
        """Name in dotted notation: ``sandbox.os.enabled``; a name with a dot is in brackets."""
        first, *steps = (step.replace("~1", "/").replace("~0", "~") for step in self.pointer.split("/")[1:])
        return first + "".join(f".{step}" if step.isidentifier() else f"[{step!r}]" for step in steps)


def shown_values(loaded: Loaded) -> tuple[ShownValue, ...]:
    """Return every setting, set or not, in the order of the documentation."""
    return tuple(ShownValue(pointer, value, _origin(loaded, pointer)) for pointer, value in _values(loaded.settings))


def without_password(url: str) -> str:
    """Return a URL without its password and without secret query values."""
    hidden = _PASSWORD.sub(lambda found: _hidden_user(found[0]), url)
    return _IN_QUERY.sub(rf"\1={HIDDEN}", hidden)


def _hidden_user(text: str) -> str:
    user, colon, _ = text.removesuffix("@").partition(":")
    return f"{user}:{HIDDEN}@" if colon else text


def _values(settings: HostSettings) -> Iterator[tuple[str, Any]]:
    opened = {"/network/endpoints": settings.endpoints, "/sandbox/isolation": settings.isolation}
    for pointer in KEYS:
        yield pointer, _plain(_value(settings, pointer))
    for pointer in OPEN:
        if not opened[pointer]:
            yield pointer, {}
        for name, value in opened[pointer].items():
            yield pointer_to(pointer, name), without_password(str(value))
    yield from _extensions(settings.extensions)


def _extensions(settings: ExtensionSettings) -> Iterator[tuple[str, Any]]:
    """Yield the settings of extensions, without values that are or may be keys."""
    listed: dict[str, Mapping[str, Any]] = {
        "/extensions/models": settings.models,
        "/extensions/mcp/servers": settings.mcp_servers,
        "/extensions/engines": settings.engines,
        "/extensions/extractors": settings.extractors,
    }
    for pointer, entries in listed.items():
        if not entries:
            yield pointer, {}
        for name, entry in entries.items():
            for key in NAMED[pointer]:
                value = getattr(entry, key)
                if value not in (None, "", {}):
                    yield pointer_to(pointer, name, key), without_secrets(value, key)


def without_secrets(value: Any, name: str = "") -> Any:
    """Return data without secret values, and without passwords in URLs."""
    if isinstance(value, Mapping):
        return {str(key): without_secrets(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, name) for item in value]
    if _SECRET_NAME.search(name) and not name.endswith("_file") and type(value) in (str, int, float) and value:
        return HIDDEN
    return without_password(str(value)) if isinstance(value, str) else value


def _value(settings: HostSettings, pointer: str) -> Any:
    if pointer == _DATABASE:
        return shown_url(parse_url(settings.database, needs_folder=False))
    if pointer.startswith(_STREAM):
        name = pointer.removeprefix(_STREAM)
        value = settings.stream_type if name == "type" else settings.stream.get(name)
        return without_password(value) if isinstance(value, str) else value
    if pointer in _NAMED:
        return getattr(settings, _NAMED[pointer])
    if pointer == _APPROVAL:
        return str(settings.extensions.mcp_approval)
    steps = pointer.split("/")[1:]
    if steps[0] in _NO_OBJECTS:
        del steps[0]
    return attrgetter(".".join(steps))(settings)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return None if value == "" else value  # an empty text means no value


def _origin(loaded: Loaded, pointer: str) -> Origin:
    """Return the origin of a value; a value inside a given object has the origin of the object."""
    while pointer not in loaded.origins and pointer:
        pointer = pointer.rpartition("/")[0]
    return loaded.origins.get(pointer, Origin(DEFAULT))
