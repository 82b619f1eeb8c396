"""Keys of each manifest kind, which the parser and the serializer use, and the JSON Schemas made from them."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import nearest, pointer_to
from democrai_sandbox.policy.text import shown

from . import limits, models, shapes
from .models import ManifestKind
from .shapes import AccessShape, ImportsShape, NumberShape, TextListShape, TextShape, ValueShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .shapes import ParseState

SCHEMA_KEY = "$schema"
"""Key by which editors find the schema of a file; allowed at the top of any manifest, and ignored otherwise."""

# Settings that only the host makes. Listed here so that an error can say where they belong.
_HOST_KEYS = frozenset(
    {
        *("isolation", "limits", "timeout"),
        *("allow_subprocess", "subprocess", "include_runtime_paths", "trusted", "privileged", "access_manager"),
        *("subject", "subject_kind", "user", "organization", "session", "role", "runtime_code", "protected_paths"),
    }
)
# Names that other systems use. They are only hints in errors, never accepted.
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("allowed_paths", "allowed_targets", "permissions", "allow", "rules", "policy"), "access"),
        **dict.fromkeys(("imports", "allow_imports"), "allowed_imports"),
        **dict.fromkeys(("id", "title", "slug"), "name"),
        **dict.fromkeys(("main", "entrypoint", "entry_point", "module", "script"), "entry"),
        **dict.fromkeys(("summary", "about"), "description"),
        **dict.fromkeys(("dependencies", "packages", "install_requires", "pip"), "requirements"),
        **dict.fromkeys(("url", "endpoint", "uri", "address"), "endpoint_url"),
        **dict.fromkeys(("active", "disabled"), "enabled"),
        **dict.fromkeys(("type", "protocol"), "transport"),
        **dict.fromkeys(("timeout", "timeout_s", "timeout_seconds"), "timeout_ms"),
        **dict.fromkeys(("config_urls", "allowed_urls"), "allowed_config_urls"),
        **dict.fromkeys(("resources", "ulimits", "rlimits", "quota"), "limits"),
    }
)
_OTHER_TRANSPORTS = MappingProxyType(dict.fromkeys(("http", "https", "streamable"), "streamable_http"))


@dataclass(frozen=True, slots=True)
class KeyShape:
    """Key of an object: the shape of its value, and its description."""

    name: str
    shape: ValueShape
    about: str
    needs: str | None = None
    """Other key that this one requires."""
    from_folder: bool = False
    """Whether the name of the manifest's folder is the default."""


@dataclass(frozen=True, slots=True)
class ObjectShape(ValueShape):
    """Object with fixed keys, which becomes a model with fields of the same names."""

    model: type[Any]
    about: str
    keys: tuple[KeyShape, ...]
    whole: bool = False
    """Whether this is a whole manifest and not a part of one."""
    other_names: Mapping[str, str] | None = None
    """Names of its keys in other systems, if they differ from the common ones."""

    @property
    def required(self) -> tuple[str, ...]:
        """Required keys: those whose field has no default."""
        needed = {item.name for item in fields(self.model) if item.default is MISSING}
        return tuple(key.name for key in self.keys if key.name in needed and not key.from_folder)

    def read(self, value: Any, pointer: str, reading: ParseState) -> Any:
        """Return the model, or None if the object has a problem."""
        if type(value) is not dict:
            reading.refuse(pointer, f"expected an object ({self.about}), got {shapes.described(value)}")
            return None
        before = len(reading.problems)
        names = [key.name for key in self.keys]
        absent = [name for name in names if name not in value]
        for name in value:
            if name not in names and not (self.whole and name == SCHEMA_KEY):
                reading.refuse(pointer_to(pointer, name), *self._unknown(name, absent))
        for name in self.required:
            if name in absent:
                reading.refuse(pointer, f"the key '{name}' is missing")
        if self.whole and type(value.get(SCHEMA_KEY, "")) is not str:
            reading.refuse(
                pointer_to(pointer, SCHEMA_KEY), f"expected a text, got {shapes.described(value[SCHEMA_KEY])}"
            )
        found = {
            key.name: key.shape.read(value[key.name], pointer_to(pointer, key.name), reading)
            for key in self.keys
            if key.name in value
        }
        found |= {
            key.name: _folder_name(key, pointer, reading) for key in self.keys if key.from_folder and key.name in absent
        }
        for key in self.keys:
            if key.name in value and key.needs in absent:
                reading.refuse(pointer_to(pointer, key.name), f"'{key.name}' requires '{key.needs}'")
        return self.model(**found) if len(reading.problems) == before else None

    def _unknown(self, name: str, absent: list[str]) -> tuple[str, str | None]:
        """Return the problem of an unknown key, with the probably intended name."""
        others = _OTHER_NAMES if self.other_names is None else self.other_names
        other = others.get(name.lower())
        meant = other if other in absent else nearest(name, absent)
        sections = {key.name: key.shape for key in self.keys if isinstance(key.shape, ObjectShape)}
        below = {inner for section in sections.values() for inner in section.names}
        if meant is None and name.lower() in _HOST_KEYS and name not in below:
            return f"{shown(name)} is a setting of the host, not of a manifest", None
        known = {word: inner for section in sections.values() for word, inner in (section.other_names or {}).items()}
        words = (name, other, known.get(name.lower()), nearest(name, below))
        inner = next((word for word in words if word in below), None)
        if meant is None and inner is not None:
            inside = " or ".join(repr(word) for word, section in sections.items() if inner in section.names)
            what = f"the key {inner!r} belongs" if inner == name else f"unknown key {shown(name)}; {inner!r} belongs"
            return f"{what} in {inside}", None
        return f"unknown key {shown(name)}", meant

    @property
    def names(self) -> frozenset[str]:
        """Names of the keys."""
        return frozenset(key.name for key in self.keys)

    def plain(self, value: Any) -> dict[str, Any]:
        """Return the model as JSON data, without keys that have their default value."""
        defaults = {item.name: item.default for item in fields(self.model)}
        return {
            key.name: key.shape.plain(given)
            for key in self.keys
            if (given := getattr(value, key.name)) != defaults[key.name]
        }

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the object."""
        needs = {key.name: [key.needs] for key in self.keys if key.needs}
        return {
            "type": "object",
            "description": self.about,
            **({"required": list(self.required)} if self.required else {}),
            "additionalProperties": False,
            "properties": {
                **({SCHEMA_KEY: {"type": "string"}} if self.whole else {}),
                **{key.name: {"description": key.about, **key.shape.schema()} for key in self.keys},
            },
            **({"dependentRequired": needs} if needs else {}),
        }


def _folder_name(key: KeyShape, pointer: str, reading: ParseState) -> Any:
    """Return the default of a missing key: the name of the manifest's folder."""
    if not reading.name:
        reading.refuse(pointer, f"the key '{key.name}' is missing")
        return None
    tried = type(reading)()
    found = key.shape.read(reading.name, pointer_to(pointer, key.name), tried)
    for problem in tried.problems:
        message = f"the key '{key.name}' is missing, and the folder name is not valid: {problem.message}"
        reading.refuse(problem.pointer, message, problem.suggestion)
    return found


_NAME = TextShape(
    "a name of letters, digits, '.', '_' and '-' that starts with a letter or digit",
    128,
    r"[A-Za-z0-9][A-Za-z0-9._-]*",
    lambda text: re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._"),
)
_VERSION = TextShape("a version such as 1.4.2", 64, r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", str.strip)
_DESCRIPTION = TextShape("a description on one line", 500)
_ENTRY = TextShape(
    "the path of a Python file below the manifest's folder, such as main.py",
    200,
    r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*\.py",
    lambda text: text.removeprefix("./"),
)
# A text that starts with a dash would be an option of pip, such as another index.
_REQUIREMENT = TextShape(
    "a requirement such as numpy>=2, or ./folder of a package next to the manifest",
    500,
    r"(?:\./)?[A-Za-z0-9][ -~]*",
)
_CONFIG_KEY = TextShape("the name of a configuration key", 128, r"[A-Za-z_][A-Za-z0-9_.-]*")

_NAMED = KeyShape("name", _NAME, "Name of the subject in checks, requests and the audit log.")
_ABOUT = KeyShape("description", _DESCRIPTION, "Purpose, in one line.")
_ACCESS = KeyShape("access", AccessShape(), "Declared access. With an empty or missing list, nothing is declared.")
_IMPORTS = KeyShape(
    "allowed_imports", ImportsShape(), "Sensitive import roots (ctypes, cffi) that it may use. Rarely needed."
)
_LIMITS = KeyShape(
    "limits",
    ObjectShape(
        limits.Limits,
        "the limits of each process",
        tuple(KeyShape(name, NumberShape(1, largest), limits.ABOUT[name]) for name, largest in limits.LARGEST.items()),
        other_names=limits.OTHER_NAMES,
    ),
    "Resource limits of each of its processes; the host may set lower limits.",
)
_REVIEW = KeyShape(
    "review",
    TextListShape(TextShape("a remark on one line", models.LONGEST_REMARK)),
    "Remarks of record about unverified entries. Remove a line after checking it. No decision depends on it.",
)
_RIGHTS = (_ACCESS, _IMPORTS, _LIMITS, _REVIEW)
_REQUIRED = KeyShape("requirements", TextListShape(_REQUIREMENT), "Packages that pip installs into its environment.")
_EXTENSION = (
    KeyShape("name", _NAME, f"{_NAMED.about} Without it, the name of the manifest's folder is used.", from_folder=True),
    KeyShape("version", _VERSION, "Version of the extension."),
    _ABOUT,
    KeyShape("entry", _ENTRY, "File to import, relative to the manifest's folder."),
)

_ENGINE_RUNTIME = ObjectShape(
    models.EngineRuntime,
    "the runtime phase",
    (
        *_RIGHTS,
        KeyShape(
            "allowed_config_urls",
            TextListShape(_CONFIG_KEY),
            "Keys of the engine's stored configuration whose values are URLs that it may use.",
        ),
    ),
)
_RUNTIME = ObjectShape(models.Section, "the runtime phase", _RIGHTS)
_INSTALL = ObjectShape(models.Install, "the install phase", (*_RIGHTS, _REQUIRED))


def _declaration(model: type[models.Manifest], word: str) -> ObjectShape:
    access = KeyShape(
        "access",
        AccessShape(),
        "Declared access, and nothing else. Without this key it has the rights of its caller.",
    )
    imports = KeyShape("allowed_imports", ImportsShape(), _IMPORTS.about, needs="access")
    return ObjectShape(model, f"the declaration of {word}", (_NAMED, _ABOUT, access, imports), whole=True)


def _installed(model: type[models.Manifest], word: str, runtime: ObjectShape) -> ObjectShape:
    phases = (
        KeyShape("runtime", runtime, "Declarations for the runtime phase."),
        KeyShape("install", _INSTALL, "Declarations for the install phase."),
    )
    return ObjectShape(model, f"the manifest of {word}", (*_EXTENSION, *phases), whole=True)


MANIFEST_SHAPES: Mapping[ManifestKind, ObjectShape] = MappingProxyType(
    {
        ManifestKind.MODULE: ObjectShape(
            models.ModuleManifest, "the manifest of a module", (*_EXTENSION, *_RIGHTS), whole=True
        ),
        ManifestKind.ENGINE: _installed(models.EngineManifest, "an engine", _ENGINE_RUNTIME),
        ManifestKind.EXTRACTOR: _installed(models.ExtractorManifest, "an extractor", _RUNTIME),
        ManifestKind.MCP: ObjectShape(
            models.McpServer,
            "the registry entry of an MCP server",
            (
                _NAMED,
                KeyShape(
                    "transport", shapes.ChoiceShape(models.McpTransport, _OTHER_TRANSPORTS), "Transport of the server."
                ),
                KeyShape("endpoint_url", shapes.EndpointShape(), "The only URL that may be used."),
                KeyShape("enabled", shapes.FlagShape(), "Whether the server may be used."),
                KeyShape("timeout_ms", NumberShape(1, 3_600_000), "Timeout of one call, in milliseconds."),
            ),
            whole=True,
        ),
        ManifestKind.TOOL: _declaration(models.ToolDeclaration, "a tool"),
        ManifestKind.AGENT: _declaration(models.AgentDeclaration, "an agent"),
        ManifestKind.PIPELINE: _declaration(models.PipelineDeclaration, "a pipeline"),
    }
)
"""Keys of each manifest kind."""


FOLDER = Path(__file__).parent / "schemas"
"""Folder of the published files."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema(kind: ManifestKind) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a manifest kind; ``manifest schema --output FOLDER`` writes the files.

    A schema accepts every manifest that the parser accepts, so that an editor never complains about a valid one. It
    cannot express everything: only the parser detects a non-canonical host, a wildcard that is too broad or a duplicate
    key.
    """
    schema = {
        "$schema": DIALECT,
        "$id": f"urn:democrai-sandbox:manifest:{kind}:1",
        "title": f"{kind} manifest of democrai-sandbox",
        **MANIFEST_SHAPES[kind].schema(),
    }
    if "#/$defs/access_entry" in json.dumps(schema):
        schema["$defs"] = {"access_entry": shapes.access_entry_schema()}
    return schema


def schema_text(kind: ManifestKind) -> str:
    """Return the text of the published file."""
    return json.dumps(manifest_schema(kind), indent=2) + "\n"


def schema_path(kind: ManifestKind, folder: Path = FOLDER) -> Path:
    """Return the path of the published schema of a manifest kind."""
    return folder / f"{kind}.schema.json"
