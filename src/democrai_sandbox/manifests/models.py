"""Manifests as immutable values. ``loading`` creates them; this module reads no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from democrai_sandbox.policy import AccessRule, Subject, SubjectKind, parse_request_url, rules_for_targets

from .limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .document import Place, PlacedDocument

DEFAULT_TIMEOUT_MS = 30_000
LONGEST_REMARK = 1000
"""Characters of a line of ``review``."""


class ManifestKind(StrEnum):
    """Kind of a manifest. Each is also a ``SubjectKind`` of the same name."""

    MODULE = "module"
    ENGINE = "engine"
    EXTRACTOR = "extractor"
    MCP = "mcp"
    TOOL = "tool"
    AGENT = "agent"
    PIPELINE = "pipeline"


class McpTransport(StrEnum):
    """Transport of an MCP server."""

    STREAMABLE_HTTP = "streamable_http"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of a manifest, for messages with positions."""

    path: str = ""
    """File, if it was read from one."""
    folder: str | None = None
    """Base folder of relative filesystem targets."""
    value: Any = None
    """Validated data as written; None for a model that was created in code."""
    document: PlacedDocument | None = None

    def place(self, pointer: str) -> Place | None:
        """Return the position of the value at a JSON pointer, if the manifest has a text."""
        return None if self.document is None else self.document.place(pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rights of a subject in one phase. By default it has none."""

    access: tuple[AccessRule, ...] = ()
    allowed_imports: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """Limits of each process in that phase."""
    review: tuple[str, ...] = ()
    """Remarks of ``record`` about the entries, for reviewers; no decision depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRuntime(Section):
    """Rights of an engine in the runtime phase."""

    allowed_config_urls: tuple[str, ...] = ()
    """Keys of the engine's stored configuration whose values are URLs that it may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install(Section):
    """Rights of an engine or extractor in the install phase, and the requirements to install."""

    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Common part of all manifests."""

    kind: ClassVar[ManifestKind]

    name: str
    source: Source = field(default=Source(), compare=False, repr=False)

    @property
    def subject(self) -> Subject:
        """Subject that runs with these rights."""
        return Subject(SubjectKind(self.kind.value), self.name)

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """Sections by the JSON pointer of their object.

        None instead of a section means that nothing is declared there: the subject has the rights of its caller.
        """
        return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleManifest(Manifest):
    """Manifest of a module: its actions, commands, renders and tasks."""

    kind: ClassVar[ManifestKind] = ManifestKind.MODULE

    version: str = ""
    description: str = ""
    entry: str = "module.py"
    """File to import, relative to the manifest's folder."""
    access: tuple[AccessRule, ...] = ()
    allowed_imports: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """Limits of each process of the module: the programs that it starts, and its worker if it has one."""
    review: tuple[str, ...] = ()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """Section of the module, at the top level."""
        section = Section(
            access=self.access, allowed_imports=self.allowed_imports, limits=self.limits, review=self.review
        )
        return MappingProxyType({"": section})


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledManifest(Manifest):
    """Common part of engines and extractors, which are installed once."""

    version: str = ""
    description: str = ""
    entry: str = ""
    """File to import, relative to the manifest's folder."""
    runtime: Section = Section()
    install: Install = Install()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """Sections of both phases; neither applies in the other."""
        return MappingProxyType({"/runtime": self.runtime, "/install": self.install})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManifest(InstalledManifest):
    """Manifest of an engine, which serves calls."""

    kind: ClassVar[ManifestKind] = ManifestKind.ENGINE

    entry: str = "engine.py"
    runtime: EngineRuntime = EngineRuntime()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorManifest(InstalledManifest):
    """Manifest of an extractor, which reads documents."""

    kind: ClassVar[ManifestKind] = ManifestKind.EXTRACTOR

    entry: str = "extractor.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer(Manifest):
    """Registry entry of an MCP server. It may use only its endpoint."""

    kind: ClassVar[ManifestKind] = ManifestKind.MCP

    transport: McpTransport
    endpoint_url: str
    """As written, with its query."""
    enabled: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    @property
    def target(self) -> str:
        """Endpoint in canonical form without the query, as it is checked and approved."""
        return parse_request_url(self.endpoint_url).normalized

    @property
    def access(self) -> tuple[AccessRule, ...]:
        """Rules for the endpoint; a disabled server has none."""
        return rules_for_targets([self.target]) if self.enabled else ()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """Section that follows from the endpoint; the registry has no other declarations."""
        return MappingProxyType({"": Section(access=self.access)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Manifest):
    """Declaration of a tool, agent or pipeline in code."""

    description: str = ""
    access: tuple[AccessRule, ...] | None = None
    """None: it has the rights of its caller. Otherwise it has exactly these rules, possibly none."""
    allowed_imports: tuple[str, ...] = ()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """Section of the declaration, or None without an ``access`` list."""
        if self.access is None:
            return MappingProxyType({"": None})
        return MappingProxyType({"": Section(access=self.access, allowed_imports=self.allowed_imports)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration(Declaration):
    """Tool that agents may call."""

    kind: ClassVar[ManifestKind] = ManifestKind.TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeclaration(Declaration):
    """Agent."""

    kind: ClassVar[ManifestKind] = ManifestKind.AGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeclaration(Declaration):
    """Pipeline of steps."""

    kind: ClassVar[ManifestKind] = ManifestKind.PIPELINE
