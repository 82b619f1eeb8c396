"""docs/manifests.md: its examples are complete manifests without findings, and its programs print what it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from democrai_sandbox.manifests import FindingCode, ManifestKind, lint, manifest_schema, parse_manifest
from tests.manifests.schema_reader import accepts

PAGE = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text(encoding="utf-8")
TITLES = {kind: "MCP server" if kind is ManifestKind.MCP else kind.title() for kind in ManifestKind}
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def example(kind):
    return re.search(rf"^## {TITLES[kind]}\n\n```json\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE).group(1)


@pytest.mark.parametrize("kind", ManifestKind)
def test_each_kind_has_a_complete_example(kind):
    """The example loads, is right for the schema, and gives a reviewer nothing to object to."""
    text = example(kind)
    manifest = parse_manifest(text, kind, folder="/srv/democrai/extensions/example")
    assert accepts(manifest_schema(kind), json.loads(text))
    assert {finding.code for finding in lint(manifest)} <= {FindingCode.SENSITIVE_IMPORT}


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_the_programs_print_what_the_page_says(program, output):
    """What is shown was really printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == output


def test_there_are_programs():
    """The pattern above finds what it looks for."""
    assert len(PROGRAMS) == 2


def test_every_finding_is_on_the_page():
    """A code that lint gives is explained."""
    assert all(f"`{code}`" in PAGE for code in FindingCode)
