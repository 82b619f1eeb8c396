"""Package as a whole."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

from democrai_sandbox import manifests

FOLDER = pathlib.Path(manifests.__file__).parent


def test_everything_public_is_listed():
    """The list of public names is complete and has no stale name."""
    imported = {
        alias.asname or alias.name
        for node in ast.parse((FOLDER / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert set(manifests.__all__) == imported


def test_the_guard_and_foreign_packages_stay_unloaded():
    """Checking a manifest activates no guard and loads only the standard library."""
    program = (
        "import sys\n"
        "from democrai_sandbox.manifests import parse_manifest\n"
        "parse_manifest('{\"name\": \"x\"}', 'module')\n"
        "ours = {name for name in sys.modules if name.startswith('democrai_sandbox.')}\n"
        "assert not [name for name in ours if name.split('.')[1] not in ('policy', 'manifests', '_moved')], ours\n"
        "assert not {'idna', 'pydantic', 'sqlalchemy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
