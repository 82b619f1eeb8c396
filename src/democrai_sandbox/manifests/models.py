"""What manifests say, as immutable values. ``loading`` makes them; nothing here reads a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from democrai_sandbox.policy import (
    AccessRule,
    Subject,
    SubjectKind,
    parse_request_url,
    rules_for_targets,
)

from .limits import NO_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .document import Document
    from .problems import Place

DEFAULT_TIMEOUT_MS = 30_000
LONGEST_REMARK = 1000
"""Characters of a line of ``review``."""


class ManifestKind(StrEnum):
    """The kinds of subject that declare what they need. Each is also a ``SubjectKind`` of the same name."""

    MODULE = "module"
    ENGINE = "engine"
    EXTRACTOR = "extractor"
    MCP = "mcp"
    TOOL = "tool"
    AGENT = "agent"
    PIPELINE = "pipeline"


class McpTransport(StrEnum):
    """How an MCP server is spoken to."""

    STREAMABLE_HTTP = "streamable_http"
    SSE = "sse"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a manifest came from, for those who have to say where something stands in it."""

    path: str = ""
    """The file, if it was read from one."""
    folder: str | None = None
    """What relative filesystem targets are relative to."""
    value: Any = None
    """The data as it was written, after it was found to be right; None for a model that was made by hand."""
    document: Document | None = None

    def place(self, pointer: str) -> Place | None:
        """Return the position of the value at a JSON pointer, if there is a text."""
        return None if self.document is None else self.document.place(pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a subject may do in one phase. By default that is nothing."""

    access: tuple[AccessRule, ...] = ()
    allowed_imports: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """Of each process in that phase."""
    review: tuple[str, ...] = ()
    """Remarks of ``record`` about the declarations, for a reader; nothing depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRuntime(Section):
    """What an engine may do while it serves."""

    allowed_config_urls: tuple[str, ...] = ()
    """Keys of the engine's stored configuration whose values are URLs that it may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install(Section):
    """What an engine or extractor may do while it is installed, and what is installed for it."""

    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What all manifests have."""

    kind: ClassVar[ManifestKind]

    name: str
    source: Source = field(default=Source(), compare=False, repr=False)

    @property
    def subject(self) -> Subject:
        """The subject that runs under these declarations."""
        return Subject(SubjectKind(self.kind.value), self.name)

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """The declarations by the JSON pointer of the object that holds them.

        None in place of a section means that nothing is declared there: the subject runs under what encloses it.
        """
        return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleManifest(Manifest):
    """A module: its actions, commands, renders and tasks."""

    kind: ClassVar[ManifestKind] = ManifestKind.MODULE

    version: str = ""
    description: str = ""
    entry: str = "module.py"
    """The file that is imported, relative to the manifest's folder."""
    access: tuple[AccessRule, ...] = ()
    allowed_imports: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    """Of each process of the module: the programs that it starts, and its worker if it has one."""
    review: tuple[str, ...] = ()
    """Remarks of ``record`` about the declarations, for a reader; nothing depends on them."""

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """The declarations of the module, which stand at the top level."""
        section = Section(
            access=self.access, allowed_imports=self.allowed_imports, limits=self.limits, review=self.review
        )
        return MappingProxyType({"": section})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManifest(Manifest):
    """An engine, which is installed once and then serves."""

    kind: ClassVar[ManifestKind] = ManifestKind.ENGINE

    version: str = ""
    description: str = ""
    entry: str = "engine.py"
    """The file that is imported, relative to the manifest's folder."""
    runtime: EngineRuntime = EngineRuntime()
    install: Install = Install()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """The declarations of both phases; neither holds in the other."""
        return MappingProxyType({"/runtime": self.runtime, "/install": self.install})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractorManifest(Manifest):
    """An extractor, which is installed once and then reads documents."""

    kind: ClassVar[ManifestKind] = ManifestKind.EXTRACTOR

    version: str = ""
    description: str = ""
    entry: str = "extractor.py"
    """The file that is imported, relative to the manifest's folder."""
    runtime: Section = Section()
    install: Install = Install()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """The declarations of both phases; neither holds in the other."""
        return MappingProxyType({"/runtime": self.runtime, "/install": self.install})


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer(Manifest):
    """An entry of the registry of MCP servers. It may use its endpoint and nothing else."""

    kind: ClassVar[ManifestKind] = ManifestKind.MCP

    transport: McpTransport
    endpoint_url: str
    """As it was written, with its query."""
    enabled: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    @property
    def target(self) -> str:
        """The endpoint in canonical form, without the query: what is checked and approved."""
        return parse_request_url(self.endpoint_url).normalized

    @property
    def access(self) -> tuple[AccessRule, ...]:
        """The rules for the endpoint; a server that is not enabled has none."""
        return rules_for_targets([self.target]) if self.enabled else ()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """What follows from the endpoint; the registry has no declarations of its own."""
        return MappingProxyType({"": Section(access=self.access)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration(Manifest):
    """What tools, agents and pipelines declare where they are defined."""

    description: str = ""
    access: tuple[AccessRule, ...] | None = None
    """None: it runs under what encloses it. Otherwise it runs under exactly these rules, which may be none."""
    allowed_imports: tuple[str, ...] = ()

    @property
    def sections(self) -> Mapping[str, Section | None]:
        """The declarations, or None when there are none."""
        if self.access is None:
            return MappingProxyType({"": None})
        return MappingProxyType({"": Section(access=self.access, allowed_imports=self.allowed_imports)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration(Declaration):
    """A tool that agents may call."""

    kind: ClassVar[ManifestKind] = ManifestKind.TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeclaration(Declaration):
    """An agent."""

    kind: ClassVar[ManifestKind] = ManifestKind.AGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDeclaration(Declaration):
    """A pipeline of steps."""

    kind: ClassVar[ManifestKind] = ManifestKind.PIPELINE
