"""All keys of the configuration, by pointer, with the format of their values."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.manifests.limits import LARGEST

if TYPE_CHECKING:
    from collections.abc import Mapping


class Form(Enum):
    """Format of a value. In a variable, all formats except texts are YAML."""

    VALUE = "a number, true or false, or a list"
    TEXT = "a text"
    PATH = "a text, the path of a file or folder"
    PATHS = "a list of paths"
    DATABASE = "a text, the URL of a database, which may be a file"

    @property
    def is_text(self) -> bool:
        """Whether a variable contains the plain text."""
        return self in (Form.TEXT, Form.PATH, Form.DATABASE)


KEYS: Mapping[str, Form] = MappingProxyType(
    {
        "/state_dir": Form.PATH,
        "/data_dir": Form.PATH,
        "/modules_path": Form.PATH,
        "/engines_path": Form.PATH,
        "/extractors_path": Form.PATH,
        "/extra_module_dirs": Form.PATHS,
        "/extra_engine_dirs": Form.PATHS,
        "/extra_extractor_dirs": Form.PATHS,
        "/database/url": Form.DATABASE,
        "/database/key_file": Form.PATH,
        "/database/wait_seconds": Form.VALUE,
        "/database/connections": Form.VALUE,
        "/network/stream/type": Form.TEXT,
        "/network/stream/channel": Form.TEXT,
        "/network/stream/folder": Form.PATH,
        "/network/stream/url": Form.TEXT,
        "/network/stream/longest": Form.VALUE,
        "/sandbox/os/enabled": Form.VALUE,
        "/sandbox/os/require": Form.VALUE,
        "/sandbox/os/desktop": Form.VALUE,
        "/sandbox/os/policy_file": Form.PATH,
        "/sandbox/os/helper_socket": Form.PATH,
        "/sandbox/os/refresh_seconds": Form.VALUE,
        "/sandbox/os/seccomp/enabled": Form.VALUE,
        "/sandbox/os/landlock/enabled": Form.VALUE,
        "/sandbox/os/landlock/extra_read_paths": Form.PATHS,
        "/sandbox/os/landlock/extra_write_paths": Form.PATHS,
        "/sandbox/guard/native_packages": Form.VALUE,
        **{f"/sandbox/limits/{name}": Form.VALUE for name in LARGEST},
        "/sandbox/call_timeout": Form.VALUE,
        "/sandbox/load_timeout": Form.VALUE,
        "/sandbox/managers": Form.VALUE,
        "/sandbox/pending_days": Form.VALUE,
        "/sandbox/poll_seconds": Form.VALUE,
        "/extensions/mcp/approval": Form.TEXT,
        "/server/host": Form.TEXT,
        "/server/port": Form.VALUE,
        "/server/public_url": Form.TEXT,
        "/server/trusted_proxies": Form.VALUE,
        "/console/enabled": Form.VALUE,
        "/console/idle_minutes": Form.VALUE,
        "/console/session_hours": Form.VALUE,
        "/console/reauth_minutes": Form.VALUE,
        "/console/reauth_high_risk": Form.VALUE,
        "/console/unused_days": Form.VALUE,
    }
)
"""Keys with fixed names."""

OPEN: Mapping[str, Form] = MappingProxyType({"/network/endpoints": Form.TEXT, "/sandbox/isolation": Form.TEXT})
"""Objects with free keys."""


NAMED: Mapping[str, Mapping[str, Form]] = MappingProxyType(
    {
        "/extensions/models": {
            "endpoint": Form.TEXT,
            "model": Form.TEXT,
            "api_key": Form.TEXT,
            "api_key_file": Form.PATH,
            "timeout_seconds": Form.VALUE,
            "options": Form.VALUE,
        },
        "/extensions/mcp/servers": {
            "endpoint_url": Form.TEXT,
            "transport": Form.TEXT,
            "enabled": Form.VALUE,
            "timeout_ms": Form.VALUE,
        },
        "/extensions/engines": {"install": Form.VALUE, "settings": Form.VALUE},
        "/extensions/extractors": {"install": Form.VALUE, "settings": Form.VALUE},
    }
)
"""Objects of objects with free names: the keys of each entry."""


def form_of(pointer: str) -> Form:
    """Return the format of the value at a pointer; YAML for unknown keys and objects."""
    entry, _, key = pointer.rpartition("/")
    above = entry.rpartition("/")[0]
    return KEYS.get(pointer) or OPEN.get(entry) or NAMED.get(above, {}).get(key) or Form.VALUE
