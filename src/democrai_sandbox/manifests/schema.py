"""JSON Schemas of the manifests, generated from the tables of the parser and published as files.

A schema accepts every manifest that the parser accepts, so that an editor never complains about a valid one. It cannot
express everything: only the parser detects a non-canonical host, a wildcard that is too broad or a duplicate key.

``democrai-sandbox manifest schema --output FOLDER`` writes the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .grants import access_entry_schema
from .tables import TABLES

if TYPE_CHECKING:
    from .models import ManifestKind

FOLDER = Path(__file__).parent / "schemas"
"""Folder of the published files."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def manifest_schema(kind: ManifestKind) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a manifest kind."""
    schema = {
        "$schema": DIALECT,
        "$id": f"urn:democrai-sandbox:manifest:{kind}:1",
        "title": f"{kind} manifest of democrai-sandbox",
        **TABLES[kind].schema(),
    }
    if "#/$defs/access_entry" in json.dumps(schema):
        schema["$defs"] = {"access_entry": access_entry_schema()}
    return schema


def schema_text(kind: ManifestKind) -> str:
    """Return the text of the published file."""
    return json.dumps(manifest_schema(kind), indent=2) + "\n"


def schema_path(kind: ManifestKind, folder: Path = FOLDER) -> Path:
    """Return the path of the published schema of a manifest kind."""
    return folder / f"{kind}.schema.json"
