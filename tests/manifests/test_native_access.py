"""Packages whose native code opens files and connections, found in the sources of in-process modules."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.manifests import FindingCode, ManifestKind, Severity, lint, load_manifest
from democrai_sandbox.manifests.lint import NATIVE_ACCESS, native_imports


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import lxml", ["lxml"]),
        ("import lxml.etree as etree", ["lxml"]),
        ("import json, duckdb", ["duckdb"]),
        ("from pyarrow import fs", ["pyarrow"]),
        ("from pyarrow.fs import LocalFileSystem", ["pyarrow"]),
        ("def f():\n\timport zmq\n", ["zmq"]),
        ("import lxml\nimport grpc\nimport lxml", ["lxml", "grpc"]),
        ("import lxml_html_clean", []),
        ("from . import lxml", []),
        ("from .lxml import x", []),
        ("import numpy, pandas", []),
        ("# import lxml", []),
        ("text = 'lxml'", []),
    ],
)
def test_imports_are_found(source, found):
    """Whole package names in import statements, at any position."""
    assert list(native_imports([source.encode()])) == found


def test_the_list_has_import_roots():
    """Each entry is one word with the resources it opens."""
    assert all(root.isidentifier() and opens for root, opens in NATIVE_ACCESS.items())


def findings(folder, **options):
    (folder / "manifest.json").write_text(json.dumps({"name": "feeds"}))
    (folder / "module.py").write_text("import duckdb\n")
    manifest = load_manifest(folder / "manifest.json", ManifestKind.MODULE)
    return [(one.code, one.severity) for one in lint(manifest, **options)]


def test_a_module_in_process_is_warned_of(tmp_path):
    """It runs in the host's process unless a configuration says otherwise."""
    assert findings(tmp_path) == [(FindingCode.NATIVE_ACCESS, Severity.WARNING)]


def test_a_module_in_a_worker_is_not(tmp_path):
    """The kernel confines it there."""
    assert findings(tmp_path, in_process=False) == []
