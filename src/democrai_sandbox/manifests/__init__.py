"""Manifests: strict parsing, JSON Schemas, lint findings and comparison of versions."""

from __future__ import annotations

from .coverage import Change, ChangeEffect, Coverage, Difference, common_rules, covers, diff
from .document import ManifestError, Place, PlacedProblem
from .limits import Limits, limits_from
from .lint import Finding, FindingCode, Severity, broadness, lint
from .loader import FILE_NAME, load_manifest, make_manifest, manifest_to_dict, parse_manifest
from .models import (
    AgentDeclaration,
    EngineManifest,
    EngineRuntime,
    ExtractorManifest,
    Install,
    Manifest,
    ManifestKind,
    McpServer,
    McpTransport,
    ModuleManifest,
    PipelineDeclaration,
    Section,
    Source,
    ToolDeclaration,
)
from .schema import manifest_schema, schema_path

__all__ = [
    "FILE_NAME",
    "AgentDeclaration",
    "Change",
    "ChangeEffect",
    "Coverage",
    "Difference",
    "EngineManifest",
    "EngineRuntime",
    "ExtractorManifest",
    "Finding",
    "FindingCode",
    "Install",
    "Limits",
    "Manifest",
    "ManifestError",
    "ManifestKind",
    "McpServer",
    "McpTransport",
    "ModuleManifest",
    "PipelineDeclaration",
    "Place",
    "PlacedProblem",
    "Section",
    "Severity",
    "Source",
    "ToolDeclaration",
    "broadness",
    "common_rules",
    "covers",
    "diff",
    "limits_from",
    "lint",
    "load_manifest",
    "make_manifest",
    "manifest_schema",
    "manifest_to_dict",
    "parse_manifest",
    "schema_path",
]
