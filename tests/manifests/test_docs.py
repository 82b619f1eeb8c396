"""docs/manifests.md: its examples are complete manifests without findings, and its programs print the shown output."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from democrai_sandbox.manifests import FindingCode, ManifestKind, lint, manifest_schema, parse_manifest
from tests.manifests.schema_reader import accepts
from tests.services.rows import rows

PAGE = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text(encoding="utf-8")
TITLES = {kind: "MCP server" if kind is ManifestKind.MCP else kind.title() for kind in ManifestKind}
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def example(kind):
    return re.search(rf"^## {TITLES[kind]}\n\n```json\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE).group(1)


@rows("kind", ManifestKind)
def test_each_kind_has_a_complete_example(kind):
    """The example loads, is valid against the schema, and has no lint findings."""
    text = example(kind)
    manifest = parse_manifest(text, kind, folder="/srv/democrai/extensions/example")
    assert accepts(manifest_schema(kind), json.loads(text))
    assert {finding.code for finding in lint(manifest)} <= {FindingCode.SENSITIVE_IMPORT}


@rows(("program", "output"), PROGRAMS)
def test_the_programs_print_what_the_page_says(program, output):
    """The output on the page is the output of the program."""
    with redirect_stdout(StringIO()) as printed:
        exec(compile(program, "manifests.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == output


def test_there_are_programs():
    """The pattern above matches programs."""
    assert len(PROGRAMS) == 2


def test_every_finding_is_on_the_page():
    """Each lint code is explained."""
    assert all(f"`{code}`" in PAGE for code in FindingCode)
